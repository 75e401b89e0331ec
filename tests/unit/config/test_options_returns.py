"""Lost ranks come back, unless the user says otherwise."""

import pytest

from recoverrun.config.options import read
from recoverrun.config.run_config import parse_options
from recoverrun.errors import RecoverrunError


def _returns(line: str, **environ: str) -> bool:
    options = read(line.split(), environ)
    assert options is not None, line
    return parse_options(options, environ).recovery_policy.returns


@pytest.mark.parametrize(
    ("line", "returns"),
    [
        ("x.py", True),
        ("--snapshot-every=5 x.py", True),
        ("--no-protect x.py", False),
        ("--no-python x.py", True),  # It may speak to the launcher by itself.
        ("--return x.py", True),
        ("--no-return x.py", False),
        ("--return --no-return x.py", False),
        ("--no-return --return x.py", True),
        ("--no_return x.py", False),
        ("--retu x.py", True),
        ("--return --no-ret x.py", False),
    ],
)
def test_the_last_word_on_the_command_line_counts(line: str, returns: bool) -> None:
    assert _returns(line) == returns


@pytest.mark.parametrize(("value", "returns"), [("1", True), ("0", False), ("yes", True)])
def test_a_variable_gives_the_default(value: str, returns: bool) -> None:
    assert _returns("x.py", RECOVERRUN_RETURNS=value) == returns
    assert not _returns("--no-return x.py", RECOVERRUN_RETURNS=value)


def test_a_launcher_within_a_worker_does_not_obey_what_that_is_told() -> None:
    assert _returns("x.py", RECOVERRUN_RETURNS="0", RECOVERRUN_ENDPOINT="ipc://launcher")


def test_the_opposite_takes_no_value() -> None:
    with pytest.raises(RecoverrunError, match="--no-return takes no value"):
        _returns("--no-return=1 x.py")


@pytest.mark.parametrize(
    ("line", "spares", "idle"),
    [
        ("--return --spares 2 x.py", 2, ""),
        ("--spares 2 x.py", 2, ""),
        ("--no-return --spares 2 x.py", 0, "--spares (without returns)"),
        ("--spares 2 --no-protect x.py", 0, "--spares"),
        ("--return --spares 2 --no-protect x.py", 0, "--spares"),
        ("--return x.py", 0, ""),
    ],
)
def test_spares_are_kept_only_for_ranks_that_may_come_back(
    line: str, spares: int, idle: str
) -> None:
    options = read(line.split(), {})
    assert options is not None
    config = parse_options(options, {})

    assert config.spares == spares
    assert config.notes == ((f"without effect here: {idle}",) if idle else ())


def test_there_are_no_fewer_spares_than_none() -> None:
    with pytest.raises(RecoverrunError, match="--spares must be at least 0, not -1"):
        _returns("--spares=-1 x.py")
