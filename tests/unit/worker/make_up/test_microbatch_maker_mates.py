"""Shard mates that make up a microbatch: each pass through the model needs all of them."""

import threading
from types import SimpleNamespace

import pytest

from recoverrun.worker.context.evidence import Mark
from rendezvous.protocol.layout import Layout
from tests.unit.contexts import at
from tests.unit.survivors import LOST, STEP, Exchange, Survivor, left_at_top

pytestmark = pytest.mark.usefixtures("streams_put_back", "exchanging")

IDENTITY, BEFORE, NOTED = (1, 0), STEP - 1, {0: (10, 12)}
LAYOUT = Layout(((0, 1), (LOST, LOST + 1)))
WITHIN_S = 10.0


def replica() -> list[Survivor]:
    """The ranks of one that survives. Rank 0's counterpart is LOST, rank 1's the one after it."""
    shared = Exchange(2)
    mates = [Survivor(rank, Exchange(1), lambda x: x, 1) for rank in (0, 1)]
    for one in mates:
        one.layout = LAYOUT
        one.mates = SimpleNamespace(exchange=shared, env=one.env)
        went_before(one)
    return mates


def went_before(one: Survivor) -> None:
    """It has its own microbatch of the transaction before still."""
    own = one.runtime.microbatches[0]
    place = own.places[0]
    top = at(BEFORE, names={"x": 4})
    one.executor.captures.include(top)
    after = at(BEFORE, 0, "after", names={"x": 4})
    one.executor.captures.include(after)
    evidence = SimpleNamespace(entered=[own.mark[0]])
    one.runtime.previous = SimpleNamespace(
        index=0, mark=own.mark, places=(place,), top=SimpleNamespace(context=None, evidence=None)
    )
    one.runtime.previous.top = SimpleNamespace(context=top, evidence=evidence, loop=place.top.loop)


def left(one: Survivor, *, noted: dict[int, Mark] | None = None) -> None:
    one.inherit(at(BEFORE, names={"x": 4}), left_at_top(), before=NOTED, marks=noted)


def rename(one: Survivor) -> None:
    """Let what came of LOST be of the rank that holds the same part as `one`."""
    for held in (one.left.contexts, one.left.marks):
        held[LOST + one.env.rank] = held.pop(LOST)  # type: ignore[attr-defined]


def compute(mates: list[Survivor]) -> None:
    threads = [
        threading.Thread(target=one.make_up.compute, args=(IDENTITY,), daemon=True) for one in mates
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WITHIN_S)
    assert not any(thread.is_alive() for thread in threads)


def passes(one: Survivor) -> int:
    fresh = one.make_up.maker.made[IDENTITY].fresh
    return len(one.recalled) + len(one.looked_back) + len(one.executions) + fresh


def test_all_execute_it_if_all_can() -> None:
    mates = replica()
    for one in mates:
        left(one)
        rename(one)

    compute(mates)

    assert [one.executions for one in mates] == [[(0, 5)]] * 2
    assert [len(one.looked_back) for one in mates] == [1, 1]


def test_none_executes_it_if_nothing_usable_came_of_one() -> None:
    mates = replica()
    left(mates[0])

    compute(mates)

    assert [passes(one) for one in mates] == [1, 1]
    assert [one.executions for one in mates] == [[], []]
    failed = {one.make_up.maker.made[IDENTITY].failed for one in mates}
    assert failed == {f"rank {LOST + 1} left no context that can be used in step {STEP}"}


def test_none_executes_it_if_one_has_found_that_samples_are_not_exact_any_more() -> None:
    mates = replica()
    for one in mates:
        left(one)
        rename(one)
    mates[1].guarantee.weaken("it left nothing")

    compute(mates)

    assert [passes(one) for one in mates] == [1, 1]
    assert mates[0].make_up.maker.made[IDENTITY].failed == "it left nothing"


@pytest.mark.parametrize("first", [None, {0: (11, 12)}])
def test_what_was_committed_is_executed_by_all_if_one_wants_that(
    first: dict[int, Mark] | None,
) -> None:
    mates = replica()
    left(mates[0], noted=first)
    left(mates[1])
    for one in mates:
        rename(one)

    compute(mates)

    assert [len(one.looked_back) for one in mates] == [1, 1]
    assert passes(mates[0]) == passes(mates[1])


def test_it_is_executed_by_none_that_one_cannot_execute() -> None:
    mates = replica()
    for one in mates:
        left(one)
        rename(one)
    mates[1].runtime.previous = None

    compute(mates)

    assert [len(one.looked_back) for one in mates] == [0, 0]
    assert passes(mates[0]) == passes(mates[1])


def test_once_all_know_that_samples_are_not_exact_nobody_is_asked() -> None:
    mates = replica()
    for one in mates:
        one.guarantee.weaken("it left nothing")
        one.make_up.learn(False)
        one.mates = None  # type: ignore[assignment]

    compute(mates)

    assert [passes(one) for one in mates] == [1, 1]
