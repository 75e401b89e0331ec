"""Lost replicas come back, and are lost again at any moment of it."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from rendezvous.protocol.arrival_messages import StartAgain
from tests.sim.history import History, Outcome
from tests.sim.mutants import ARRIVALS, Mutant, planted
from tests.sim.place_mutants import OF_PLACES
from tests.sim.plan import Fault, Plan, draw_arrivals, draw_places, draw_takeover
from tests.sim.sweep import swept
from tests.sim.takeover import Line

SEEDS = range(200)
RARE = (
    "replica.start", "replica.ready", "replica.invite", "replica.return", "invited again",
    "a replica comes back twice", "view told to a newcomer that missed it",
    "newcomer leaves: a view has it as a member, and it missed the one by which it joined",
    "newcomer leaves: its donor has ended", "newcomer leaves: a view is without its donor",
    "death of a newcomer: starting",
    "death of a newcomer: ready", "death of a newcomer: joining", "death of a newcomer: first step",
    "lost Ready", "lost Arrival", "lost Held", "lost StartAgain", "fault node", "fault pause",
)  # fmt: skip

PLACES = (
    "place taken", "replica.return", "a replica comes back twice", "lost StartAgain",
    "fault leader",
)  # fmt: skip


def test_200_histories_with_returns_break_nothing_and_reach_every_rare_path() -> None:
    coverage: Counter[str] = Counter()
    ends: Counter[int] = Counter()
    wrong = []
    for seed in SEEDS:
        outcome = History(draw_arrivals(seed)).run()
        coverage += outcome.coverage
        ends[outcome.stop.exit_code if outcome.stop is not None else -1] += 1
        if outcome.violation is not None:
            wrong.append(f"seed {seed}: {outcome.violation}")

    assert not wrong, "\n".join(wrong)
    assert not [path for path in RARE if not coverage[path]]
    assert ends[0] > 0.6 * len(SEEDS)


def test_coordinators_that_are_lost_during_a_return_break_nothing() -> None:
    coverage = swept(
        "seed ", lambda seed: History(draw_takeover(seed)).run(), range(3, 4 * len(SEEDS), 4)
    )

    assert coverage["replica.return"] and coverage["fault leader"] and coverage["fault depose"]


def test_other_launchers_take_the_places_of_lost_nodes() -> None:
    coverage = swept("seed ", lambda seed: History(draw_places(seed)).run(), SEEDS[:120])

    assert not [path for path in PLACES if not coverage[path]]


@pytest.mark.parametrize("mutant", OF_PLACES, ids=lambda mutant: mutant.name)
def test_a_planted_bug_of_places_is_caught(mutant: Mutant) -> None:
    found: dict[str, int] = {}
    with planted(mutant):
        for seed in (mutant.seed, *SEEDS):
            violation = History(draw_places(seed)).run().violation
            if violation is not None:
                found.setdefault(violation.checker, seed)
            if mutant.checker in found:
                break

    assert mutant.checker in found, f"{mutant.name}: {mutant.checker} is silent, {found}"


@pytest.mark.parametrize("mutant", OF_PLACES, ids=lambda mutant: mutant.name)
def test_the_history_that_catches_a_bug_of_places_is_clean_without_it(mutant: Mutant) -> None:
    assert History(draw_places(mutant.seed)).run().violation is None


@pytest.mark.parametrize("mutant", ARRIVALS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_caught(mutant: Mutant) -> None:
    found: dict[str, int] = {}
    with planted(mutant):
        for seed in (mutant.seed, *SEEDS):
            violation = History(draw_arrivals(seed)).run().violation
            if violation is not None:
                found.setdefault(violation.checker, seed)
            if mutant.checker in found:
                break

    assert mutant.checker in found, f"{mutant.name}: {mutant.checker} is silent, {found}"


@pytest.mark.parametrize("mutant", ARRIVALS, ids=lambda mutant: mutant.name)
def test_the_history_that_catches_a_bug_is_clean_without_it(mutant: Mutant) -> None:
    assert History(draw_arrivals(mutant.seed)).run().violation is None


def told(outcome: Outcome, event: str) -> int:
    assert outcome.violation is None, outcome.violation
    assert outcome.stop is not None and outcome.stop.exit_code == 0
    return outcome.coverage[event]


def plan(*faults: Fault, replicas: int = 3, shards: int = 1) -> Plan:
    """A quiet network, and enough steps for anybody to come back."""
    return Plan(
        seed=1, replicas=replicas, shards=shards, counts=(2,) * 40, ends=(40,) * replicas,
        split=0.0, faults=faults, returns=True, heal_at=60.0,
    )  # fmt: skip


def kill(*ranks: int, step: int = -1, point: str = "vote", by: int = -1, nth: int = 1) -> Fault:
    trigger = ranks[0] if by < 0 else by
    return Fault(kind="kill", ranks=ranks, trigger=trigger, step=step, point=point, nth=nth)


@pytest.mark.parametrize("shards", [1, 2])
def test_a_lost_replica_comes_back_and_finishes_with_the_others(shards: int) -> None:
    outcome = History(plan(kill(1, step=2), shards=shards)).run()

    assert told(outcome, "replica.return") == 1
    assert outcome.coverage["standing extras"] > 0


def test_two_replicas_come_back_and_one_of_them_twice() -> None:
    faults = (kill(1, step=2), kill(2, step=5), kill(1, step=12))

    assert told(History(plan(*faults)).run(), "replica.return") == 3


@pytest.mark.parametrize(
    ("point", "nth"),
    [("started", 1), ("ready", 1), ("joined", 1), ("received", 1), ("forward", 8), ("vote", 4)],
)
def test_a_newcomer_that_dies_on_its_way_comes_once_more(point: str, nth: int) -> None:
    outcome = History(plan(kill(1, step=1), kill(1, point=point, nth=nth))).run()

    assert told(outcome, "replica.return") >= 1 and outcome.coverage["replica.start"] == 2


def test_a_donor_that_dies_while_it_sends_is_made_up_for_and_both_come_back() -> None:
    faults = (kill(1, step=2), kill(0, 2, point="joined", by=1))
    slow = plan(*faults, replicas=4)
    outcome = History(slow).run()

    assert told(outcome, "replica.return") >= 3


def test_a_donor_that_dies_before_its_state_is_packed_keeps_nobody_waiting() -> None:
    """It has said that it stands there, so the view begins; its address is never told."""
    faults = (kill(1, step=2), kill(2, point="joined", by=1))
    outcome = History(replace(plan(*faults), packing_s=0.5)).run()

    assert outcome.coverage["newcomer leaves: a view is without its donor"] == 1
    assert told(outcome, "replica.return") >= 2


def test_only_who_is_to_have_it_waits_for_packed_state() -> None:
    long = replace(plan(kill(1, step=2)), packing_s=2.0)
    outcome = History(long, verbose=True).run()

    assert told(outcome, "replica.return") == 1
    lines = [json.loads(line) for line in outcome.lines]
    comes = next(n for n, line in enumerate(lines) if line["ev"] == "replica.return")
    places = next(n for n, line in enumerate(lines) if line["ev"] == "sim.receive")
    said = [line["reason"] for line in lines[comes:places]]
    step = lines[comes]["step"]
    assert f"rank 0 step {step} reduce" in said
    assert lines[places]["ts"] - lines[comes]["ts"] > 1.0
    assert lines[comes]["hold_ms"] < 100.0


def test_a_newcomer_that_hangs_is_lost_once_it_has_had_its_time() -> None:
    hangs = Fault(kind="pause", ranks=(1,), trigger=1, point="joined", for_s=50.0)
    outcome = History(plan(kill(1, step=2), hangs)).run()

    assert told(outcome, "a newcomer that hangs is lost") == 1


@pytest.mark.parametrize(("shards", "lost"), [(1, (1,)), (2, (2,)), (2, (2, 3)), (2, (1, 2))])
def test_replicas_of_a_lost_node_come_back_with_another_launcher(
    shards: int, lost: tuple[int, ...]
) -> None:
    """Also where a replica has other ranks elsewhere, which live, and where it is two replicas."""
    node = Fault(kind="node", ranks=lost, trigger=lost[0], step=2, point="vote")
    outcome = History(replace(plan(node, shards=shards), place_s=0.5)).run()

    slots = {rank // shards for rank in lost}
    assert told(outcome, "replica.return") == len(slots)
    assert outcome.coverage["place taken"] == len(lost)


def test_a_start_that_reaches_half_of_a_replica_costs_seconds() -> None:
    """It is ordered again, by the same birth, and mates meet."""
    job = History(plan(kill(2, step=2), shards=2))
    reached = job.life._ordered

    def half(rank: int, start: StartAgain, line: Line) -> None:
        if rank != 3 or job.engine.now > 3.0:
            reached(rank, start, line)

    job.life._ordered = half  # type: ignore[method-assign]
    outcome = job.run()

    assert told(outcome, "replica.return") == 1
    assert outcome.coverage["replica.start"] == 1
