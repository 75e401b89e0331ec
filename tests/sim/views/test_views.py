"""The view register over random histories, planted bugs, and every order of a small history."""

import pytest

from tests.sim.mutants import planted
from tests.sim.processes import DIGESTED, digests
from tests.sim.sweep import swept
from tests.sim.views.mutants import (
    BUGS,
    IN_ETCD,
    PROVED,
    WITNESSED,
    Bug,
    plans,
    run,
    run_hasty,
)  # fmt: skip
from tests.sim.views.outcome import Outcome
from tests.sim.views.plan import draw, draw_etcd, draw_in_turn, draw_witnessed
from tests.sim.views.schedules import SCHEDULES
from tests.sim.views.search import PAIR, Search
from tests.sim.views.times import at, measure
from tests.sim.views.world import simulate

SEEDS = range(150)
RARE = (
    "election", "configuration", "left out", "cut off", "sole survivor", "no quorum left",
    "liveness checked", "lost", "fault crash", "fault pause", "fault cut", "fault oneway",
    "fault leave", "fault drop",
)  # fmt: skip


def test_150_random_histories_break_nothing_and_reach_every_rare_path() -> None:
    coverage = swept("python -m tests.sim.views --seed ", simulate, SEEDS)

    assert not [path for path in RARE if not coverage[path]]
    assert coverage["liveness checked"] > 0.9 * len(SEEDS)


def test_150_random_histories_with_a_witness_break_nothing() -> None:
    coverage = swept(
        "python -m tests.sim.views --witness --seed ",
        lambda seed: simulate(seed, drawn=draw_witnessed),
        SEEDS,
    )

    answers = ("Prepared", "Accepted", "Rejected", "NewConfiguration")
    assert not [answer for answer in answers if not coverage[f"witness: {answer}"]]
    assert coverage["liveness checked"] > 0.8 * len(SEEDS)


def test_150_random_histories_with_etcd_break_nothing() -> None:
    coverage = swept(
        "python -m tests.sim.views --etcd --seed ",
        lambda seed: simulate(seed, drawn=draw_etcd),
        SEEDS,
    )

    calls = ("Look", "Grant", "Renew", "Stand", "Decide", "Revoke")
    assert not [call for call in calls if not coverage[f"etcd: {call}"]]
    assert coverage["liveness checked"] > 0.8 * len(SEEDS)


def test_60_random_histories_of_proved_deaths_break_nothing() -> None:
    coverage = swept(
        "python -m tests.sim.views --in-turn --seed ",
        lambda seed: simulate(seed, drawn=draw_in_turn),
        range(60),
    )

    assert coverage["sole survivor"] > 60


def test_a_seed_is_the_same_history_in_every_process() -> None:
    first = digests("tests.sim.views.world", "1")

    assert first == digests("tests.sim.views.world", "2")
    assert first == f"{[simulate(seed).digest for seed in DIGESTED]}\n"


@pytest.mark.parametrize(
    "bug", [*BUGS, *WITNESSED, *IN_ETCD, *PROVED], ids=lambda bug: bug.name.split(":")[0]
)
def test_a_planted_bug_is_caught(bug: Bug) -> None:
    found: dict[str, int] = {}
    for plan in plans(bug, seeds=300):
        violation = run(bug, plan).violation
        if violation is not None:
            found.setdefault(violation.checker, plan.seed)
        if bug.checker in found:
            return

    raise AssertionError(f"{bug.name}: {bug.checker} is silent, {found}")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_directed_schedule_is_clean_without_the_bug(schedule: str) -> None:
    outcomes: list[Outcome] = [run_hasty(plan) for plan in SCHEDULES[schedule]()]

    assert not [outcome.violation for outcome in outcomes if outcome.violation is not None]


@pytest.mark.parametrize(
    "bug", [b for b in (*BUGS, *IN_ETCD) if b.seed >= 0], ids=lambda bug: f"{bug.seed}"
)
def test_the_seed_that_catches_a_bug_is_clean_without_it(bug: Bug) -> None:
    plan = draw_etcd(bug.seed) if bug.etcd else draw(bug.seed)

    assert run_hasty(plan).violation is None


@pytest.mark.rest
def test_no_order_of_messages_and_a_fault_decides_two_configurations_of_one_number() -> None:
    """With two faults: `make sim-soak`."""
    search = Search(most=100_000)

    search.run(faults=1, candidates=(1,))

    assert search.complete
    assert search.states > 20_000


@pytest.mark.rest
def test_nor_does_any_where_one_of_three_voters_is_a_witness() -> None:
    search = Search(most=100_000, first=PAIR)

    search.run(faults=1, candidates=(1,))

    assert search.complete
    assert search.states > 10_000


@pytest.mark.parametrize("name", ["forgetful", "pliant"])
def test_the_search_finds_a_witness_that_answers_twice(name: str) -> None:
    bug = next(bug for bug in WITNESSED if bug.name.startswith(name))
    assert bug.code is not None, "planted as code"

    with planted(bug.code), pytest.raises(Exception, match="I1"):
        Search(most=50_000, first=PAIR).run(faults=0, candidates=(1,))


@pytest.mark.parametrize(
    ("target", "proved", "most_s"),
    [(4, False, 6.5), (4, True, 1.0), (-1, False, 9.5), (-1, True, 2.0)],
)
def test_a_loss_costs_no_more_than_its_goal(target: int, proved: bool, most_s: float) -> None:
    steps_s = measure(target, proved, trials=30)

    print(f"p50 {at(steps_s, 0.5):.2f} s, p99 {at(steps_s, 0.99):.2f} s")
    assert at(steps_s, 0.99) <= most_s


@pytest.mark.parametrize("name", ["standby", "noread"])
def test_the_search_finds_a_bug_that_is_there(name: str) -> None:
    bug = next(bug for bug in BUGS if bug.name.startswith(name))
    assert bug.code is not None, "planted as code"

    with planted(bug.code), pytest.raises(Exception, match="I1"):
        Search(most=50_000).run(faults=0, candidates=(1,))
