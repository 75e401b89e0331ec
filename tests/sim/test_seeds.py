"""Random histories: safety under faults, progress once the network is healed, the same twice."""

import os

import pytest

from tests.sim.history import History, simulate
from tests.sim.plan import Fault, Plan
from tests.sim.processes import DIGESTED, digests
from tests.sim.sweep import swept

SEEDS = (*range(200), 716)  # in the last one ranks are levelled, which is rare
RARE = (
    "decision: redo", "decision: commit", "decision: level", "catch-up", "loss while gathering",
    "loss while redoing", "vote completed by some only", "bucket completed by some only",
    "sum of a lost replica applied", "down to one replica", "view said again",
    "decision said again", "report said again", "report of an old generation",
    "view told to one who missed it", "view while computing extras", "view without a loss",
    "vote of an old generation", "decision that came too late", "standing extras", "late contexts",
    "fault node", "fault pause", "fault crash", "recovery.done", "death in voting",
    "gradients dropped", "death in computing", "death in reducing", "death in asking",
    "death in start", "death in agreeing", "stop before the start",
)  # fmt: skip


def test_random_histories_break_nothing_and_reach_every_rare_path() -> None:
    coverage = swept("make sim SEED=", simulate, SEEDS)

    assert not [path for path in RARE if not coverage[path]]


@pytest.mark.skipif("RECOVERRUN_SIM_SEED" not in os.environ, reason="RECOVERRUN_SIM_SEED is unset")
def test_the_seed_of_the_environment_breaks_nothing() -> None:
    outcome = simulate(int(os.environ["RECOVERRUN_SIM_SEED"]), verbose=True)

    assert outcome.violation is None, "\n".join([*outcome.lines, str(outcome.violation)])


def test_a_seed_is_the_same_history_in_every_process() -> None:
    first = digests("tests.sim.history", "1")

    assert first == digests("tests.sim.history", "2")
    assert first == f"{[simulate(seed).digest for seed in DIGESTED]}\n"


@pytest.mark.parametrize(
    ("seed", "why"),
    [
        (77, "where a rank had ended before all could begin, the others hinted for ever"),
        (12334, "of three shard mates one began a second microbatch: others were levelled once"),
    ],
)
def test_a_seed_that_once_showed_a_bug_breaks_nothing(seed: int, why: str) -> None:
    outcome = simulate(seed)

    assert outcome.violation is None, f"{why}: {outcome.violation}"


def test_losing_replicas_one_after_another_leaves_one_that_finishes() -> None:
    faults = tuple(
        Fault(kind="kill", ranks=(rank,), trigger=rank, step=rank + 1, point="vote")
        for rank in range(3)
    )
    plan = Plan(
        seed=1, replicas=4, shards=1, counts=(2,) * 6, ends=(6,) * 4, faults=faults, heal_at=60.0
    )

    outcome = History(plan).run()

    assert outcome.violation is None
    assert outcome.stop is not None and outcome.stop.exit_code == 0
    assert outcome.coverage["down to one replica"] == 1
