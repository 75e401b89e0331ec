"""A straggler is named by how little it waits; noise names nobody."""

import random
from dataclasses import replace

import pytest

from rendezvous.coordinator.stragglers import KINDS, WINDOW, Stragglers
from rendezvous.protocol.messages import Committed
from rendezvous.protocol.records import Record

STEP_MS = 100.0


def committed(rank: int, number: int, **phases: float) -> Committed:
    return Committed(
        rank=rank, generation=1, step=number, done=((rank, 0),), redone=(), total=1, digest="",
        phases=tuple(phases.items()),
    )  # fmt: skip


def a_step(
    step: int, many: int, rng: random.Random, slow: dict[int, float], part: str = ""
) -> dict[int, Committed]:
    """Ranks compute with 5 % of noise, `slow` ones longer by a share of a step; then all meet."""
    took = {
        rank: STEP_MS * (1 + rng.gauss(0, 0.05)) + STEP_MS * slow.get(rank, 0.0)
        for rank in range(many)
    }
    last = max(took.values())
    said = {}
    for rank, ms in took.items():
        more = {part: STEP_MS * slow[rank]} if part and rank in slow else {}
        said[rank] = committed(rank, step, step=last + 1, reduce=last - ms, vote=0.5, **more)
    return said


def told(
    many: int, steps: int, slow: dict[int, float], seed: int = 0, part: str = ""
) -> list[Record]:
    rng, machine = random.Random(seed), Stragglers()
    return [
        record
        for step in range(steps)
        for record in machine.step(step, a_step(step, many, rng, slow, part))
    ]


@pytest.mark.parametrize("many", [2, 3, 8, 64])
@pytest.mark.parametrize("seed", range(5))
def test_a_rank_that_is_slower_by_a_tenth_is_named_and_nobody_else(many: int, seed: int) -> None:
    found = told(many, 3 * WINDOW, {1: 0.12}, seed)

    assert [(record.event, record.fields["rank"]) for record in found] == [("straggler.find", 1)]


def with_two(said: dict[int, Committed], *ranks: int) -> dict[int, Committed]:
    """These have taken over one more microbatch each."""
    more = {r: replace(said[r], done=(*said[r].done, (r + 100, 0))) for r in ranks}
    return said | more


def test_who_has_taken_over_more_microbatches_is_no_straggler() -> None:
    rng, machine = random.Random(0), Stragglers()
    for step in range(3 * WINDOW):
        assert not machine.step(step, with_two(a_step(step, 4, rng, {0: 1.0}), 0))


def test_of_those_who_have_more_microbatches_the_slower_one_is_named() -> None:
    rng, machine = random.Random(0), Stragglers()
    steps = (a_step(step, 8, rng, {0: 1.0, 1: 1.0, 2: 1.3}) for step in range(3 * WINDOW))
    found = [
        record
        for n, said in enumerate(steps)
        for record in machine.step(n, with_two(said, 0, 1, 2))
    ]

    assert [(record.event, record.fields["rank"]) for record in found] == [("straggler.find", 2)]


@pytest.mark.parametrize("seed", range(20))
def test_noise_names_nobody(seed: int) -> None:
    assert not told(64, 3 * WINDOW, {}, seed)


def test_it_is_said_what_it_is_slow_at() -> None:
    [data] = told(8, WINDOW, {3: 0.2}, part="data")
    [alone] = told(8, WINDOW, {3: 0.2}, part="alone")
    [compute] = told(8, WINDOW, {3: 0.2})

    kinds = [record.fields["kind"] for record in (data, alone, compute)]
    assert kinds == ["data", "alone", "compute"]
    assert data.reason.startswith("rank 3 slows each step by ")
    assert data.reason.endswith(": fetching data")


@pytest.mark.parametrize("kind", ["cpu", "throttled"])
def test_where_it_has_no_cpu_that_is_said_and_not_what_it_was_at(kind: str) -> None:
    rng, machine = random.Random(3), Stragglers()
    found: list[Record] = []
    for step in range(WINDOW):
        said = a_step(step, 8, rng, {3: 0.2}, "data")
        without = ((kind, 0.15 * STEP_MS),)
        said[3] = replace(said[3], phases=(*said[3].phases, *without))
        found += machine.step(step, said)

    [record] = found
    assert record.fields["kind"] == kind and KINDS[kind] in record.reason


def test_where_all_wait_for_a_cpu_alike_it_is_no_cause() -> None:
    rng, machine = random.Random(3), Stragglers()
    found: list[Record] = []
    for step in range(WINDOW):
        said = a_step(step, 8, rng, {3: 0.2})
        all_wait = {r: replace(s, phases=(*s.phases, ("cpu", 30.0))) for r, s in said.items()}
        found += machine.step(step, all_wait)

    assert [record.fields["kind"] for record in found] == ["compute"]


def test_one_that_is_fast_again_is_cleared_once() -> None:
    rng, machine = random.Random(4), Stragglers()
    events = []
    for step in range(4 * WINDOW):
        slow = {2: 0.3} if step < WINDOW else {}
        events += [r.event for r in machine.step(step, a_step(step, 8, rng, slow))]

    assert events == ["straggler.find", "straggler.clear"]


def test_a_rank_that_is_very_late_now_and_then_is_no_straggler() -> None:
    rng, machine = random.Random(5), Stragglers()
    for step in range(6 * WINDOW):
        slow = {2: 4.0} if step % 16 == 0 else {}
        assert not machine.step(step, a_step(step, 8, rng, slow))


def test_a_rank_that_waits_longer_than_others_on_the_whole_is_no_straggler() -> None:
    rng, machine = random.Random(8), Stragglers()
    for step in range(6 * WINDOW):
        said = a_step(step, 4, rng, {2: 0.3})
        if step % 8 == 0:  # a long step, in which it is the others that are late
            phases = {"step": 40 * STEP_MS, "vote": 0.5}
            said = {
                rank: committed(rank, step, reduce=(20 if rank == 2 else 1) * STEP_MS, **phases)
                for rank in said
            }
        assert not machine.step(step, said)


def test_a_loss_begins_anew() -> None:
    rng, machine = random.Random(6), Stragglers()
    for step in range(WINDOW - 1):
        machine.step(step, a_step(step, 4, rng, {1: 0.3}))
    less = {rank: one for rank, one in a_step(40, 4, rng, {1: 0.3}).items() if rank != 3}

    assert not machine.step(40, less)


@pytest.mark.parametrize(
    ("left", "said"), [([1], ["rank 1 slows nobody: the others are lost"]), ([0, 2], []), ([0], [])]
)
def test_nothing_is_left_of_a_straggler_that_is_lost_or_alone(
    left: list[int], said: list[str]
) -> None:
    rng, machine = random.Random(0), Stragglers()
    found = [
        record
        for step in range(2 * WINDOW)
        for record in machine.step(step, a_step(step, 3, rng, {1: 0.2}))
    ]
    assert [record.event for record in found] == ["straggler.find"]

    later = []
    for step in range(2 * WINDOW, 5 * WINDOW):
        whole = a_step(step, 3, rng, {})
        later += machine.step(step, {rank: whole[rank] for rank in left})

    assert [record.reason for record in later] == said
