"""Starts of a job, and which of them count, whatever goes wrong when."""

import pytest

from recoverrun.launcher.leadership import attempts
from tests.sim.attempts import Job
from tests.sim.mutants import Mutant, planted
from tests.sim.violation import Violation


def broken(seeds: range) -> list[str]:
    wrong = []
    for seed in seeds:
        try:
            Job(seed).run()
        except Violation as violation:
            wrong.append(f"seed {seed}: {violation}")
    return wrong


def test_in_whatever_order_attempts_fail_the_rules_of_restarts_hold() -> None:
    wrong = broken(range(400))

    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("Attempts.judge", "NextAttempt(EARLY.format(stop.reason), counts=False)",
         "NextAttempt(EARLY.format(stop.reason), counts=True)"),
        ("Attempts.judge", "and self._early < EARLY_RESTARTS", ""),
        ("Attempts.judge", "self._early < EARLY_RESTARTS", "self._early <= EARLY_RESTARTS"),
        ("Attempts.judge", "if self.restarts < self.most", "if True"),
        ("is_early", "(stop.exit_code > SIGNALLED or stop.root_rank < 0)", "True"),
        ("is_early", "stop.exit_code > SIGNALLED or stop.root_rank < 0", "stop.root_rank < 0"),
        ("is_early", "stop.exit_code > SIGNALLED or stop.root_rank < 0",
         "stop.exit_code > SIGNALLED"),
        ("is_early", "job.starting and", ""),
        ("is_early", "and not job.members.finished", ""),
    ],
)  # fmt: skip
def test_a_planted_bug_is_caught(path: str, old: str, new: str) -> None:
    with planted(Mutant(path, attempts, path, old, new, "attempts", 0)):
        assert broken(range(200))
