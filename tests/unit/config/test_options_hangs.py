"""Options of hangs: what a user may say, and how a mistake is told."""

import pytest

from recoverrun.config.options import read
from recoverrun.config.run_config import RunConfig, parse_options
from recoverrun.errors import RecoverrunError


def _config(line: str, **environ: str) -> RunConfig:
    options = read(line.split(), environ)
    assert options is not None, line
    return parse_options(options, environ)


def _refusal(line: str, **environ: str) -> str:
    with pytest.raises(RecoverrunError) as refusal:
        _config(line, **environ)
    assert refusal.value.exit_code == 2
    return str(refusal.value)


def test_a_rank_that_hangs_is_lost_unless_a_user_says_otherwise() -> None:
    def policy(line: str, **environ: str) -> tuple[str, float, int]:
        known = _config(line, **environ).recovery_policy
        return known.on_hang, known.hang_limit_s, known.min_replicas

    assert policy("x.py") == ("recover", 0.0, 1)
    assert policy("--on-hang tell --hang-limit=90.5 --nproc-per-node 2 --min-replicas 2 x.py") == (
        "tell",
        90.5,
        2,
    )
    assert policy("x.py", RECOVERRUN_ON_HANG="off", RECOVERRUN_HANG_LIMIT="3")[:2] == ("off", 3.0)


@pytest.mark.parametrize("value", ["-1", "inf", "nan"])
def test_a_limit_of_quiet_is_a_number_of_seconds(value: str) -> None:
    assert "--hang-limit must be" in _refusal(f"--hang-limit={value} x.py")


def test_what_becomes_of_a_hang_is_one_of_three() -> None:
    assert "--on-hang must be one of" in _refusal("x.py", RECOVERRUN_ON_HANG="kill")
