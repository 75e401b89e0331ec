"""The launcher's command: its signals, its last line, and a node that was left out."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from recoverrun.cli.commands import run as command
from recoverrun.cli.commands.run import ASKS_S, asks_again
from recoverrun.config.given_options import Options
from recoverrun.config.options import read
from recoverrun.config.run_config import RunConfig, parse_options
from recoverrun.errors import RecoverrunError
from rendezvous.protocol.exit_codes import ExitCode


def _options(line: str) -> Options:
    options = read(line.split(), {})
    assert options is not None
    return options


def _again(conf: str = "") -> RunConfig:
    line = f"--nnodes 2 --node-rank 0 --rdzv-endpoint own:29500 {conf} train.py"
    config = parse_options(_options(line), {})
    return asks_again(config, [("one", 4000), ("two", 4001)], had=True)


def test_it_asks_those_that_went_on_and_waits_for_nobody_at_its_own_place() -> None:
    again = _again()

    assert [str(place) for place in again.endpoints] == ["one:4000", "two:4001"]
    assert [str(place) for place in again.of_job] == ["own:29500"]  # for who is started there
    assert not again.must_host and not again.may_host
    assert again.had_endpoint


def test_it_asks_for_a_minute_or_less() -> None:
    assert _again().join_timeout_s == ASKS_S
    assert _again("--rdzv-conf join_timeout=7").join_timeout_s == 7.0


class EndedAgent:
    """An agent whose job is stopped by the user at once."""

    stopped = local_workers = None

    def __init__(self, *, signals: Any, **_: Any) -> None:
        signals.hold()

    def run(self) -> int:
        return ExitCode.INTERRUPTED


def test_a_ctrl_c_while_the_verdict_is_made_does_not_cost_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def impatient(*_: object) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        return "the verdict"

    monkeypatch.setattr(command, "Agent", EndedAgent)
    monkeypatch.setattr(command, "_ending", impatient)
    options = _options(f"--run-dir {tmp_path}/run --no-python true")
    before = signal.getsignal(signal.SIGINT)

    code = command.run(parse_options(options, {}), options)

    assert code == ExitCode.INTERRUPTED
    assert capsys.readouterr().err == "the verdict\n"
    assert signal.getsignal(signal.SIGINT) == before


def test_a_system_that_gives_too_little_is_an_error_for_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**_: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(command, "Agent", refused)
    options = _options(f"--run-dir {tmp_path}/run --no-python true")

    with pytest.raises(RecoverrunError, match="resource temporarily unavailable"):
        command.run(parse_options(options, {}), options)
