"""Nothing that the machines do grows with the square of the launchers."""

from tests.bench.machines import measured

MANY = 1500
LIMIT_MS = 3000.0
"""Ten times what the slowest takes; with one look at all launchers for each of them it is more."""


def test_what_concerns_every_launcher_takes_no_look_at_all_for_each() -> None:
    assert {name: ms for name, ms in measured(MANY) if ms > LIMIT_MS} == {}
