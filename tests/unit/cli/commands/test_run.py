"""A node that was left out of a job asks for a place again."""

from recoverrun.cli.commands.run import ASKS_S, asks_again
from recoverrun.config.options import read
from recoverrun.config.run_config import RunConfig, parse_options


def _again(conf: str = "") -> RunConfig:
    line = f"--nnodes 2 --node-rank 0 --rdzv-endpoint own:29500 {conf} train.py"
    options = read(line.split(), {})
    assert options is not None
    return asks_again(parse_options(options, {}), [("one", 4000), ("two", 4001)], had=True)


def test_it_asks_those_that_went_on_and_waits_for_nobody_at_its_own_place() -> None:
    again = _again()

    assert [str(place) for place in again.endpoints] == ["one:4000", "two:4001"]
    assert [str(place) for place in again.of_job] == ["own:29500"]  # for who is started there
    assert not again.must_host and not again.may_host
    assert again.had_endpoint


def test_it_asks_for_a_minute_or_less() -> None:
    assert _again().join_timeout_s == ASKS_S
    assert _again("--rdzv-conf join_timeout=7").join_timeout_s == 7.0
