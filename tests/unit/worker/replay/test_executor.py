"""Notes of our own iterations, and where a re-execution leaves them alone."""

import queue
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recoverrun.worker.context.evidence import IterationEvidence
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.replay import captures as captures_module
from recoverrun.worker.replay import passing
from recoverrun.worker.replay.executed import NothingReached
from recoverrun.worker.replay.executor import Executor
from recoverrun.worker.rng.registry import Registry
from recoverrun.worker.step.forward_sync import ForwardSync
from recoverrun.worker.tracking.microbatches import Microbatch, Top
from tests.unit.worker.tracking.test_loop_tracker import Play

pytestmark = pytest.mark.usefixtures("streams_put_back", "signals_put_back")


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(captures_module, "REGISTRY", Registry())
    yield


class Rank(Play):
    """A script whose every item enters the model in a forward, and is a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.executor = Executor(self.runtime, pytest.fail)
        self.runtime.on_top = self._top
        self.tops: list[Top] = []
        self.step = 0
        self.wanted = True  # an iteration around what is executed again is noted, too
        self.executed: list[Any] = []  # backwards as another rank, or on fresh data
        strategy: Any = SimpleNamespace(
            clear=lambda: None,
            buffers=list,
            digest=lambda: 5,
            early=True,
            synced=True,
            asked_to_reduce=lambda: None,
            forward_sync=ForwardSync(),
        )
        self.executor.serve(strategy)
        self.strategy = strategy

    def _top(self, top: Top) -> None:
        self.tops.append(top)
        top.evidence = IterationEvidence()
        index = len(self.runtime.microbatches)
        self.executor.capture_top(self.step, index, len(self.tops), top, wanted=self.wanted)

    def backward(self, item: Any) -> None:
        """Of each part of the item, one."""
        for part in item if isinstance(item, list) else [item]:
            self._one(part)

    def _one(self, part: Any) -> None:
        self.executor.forward_begins([part])
        if self.executor.skips():
            return
        self.executor.ends(torch.tensor(1.0))
        if self.runtime.acting_rank is not None:
            self.executor.backward_begins()
            self.executed.append(part)
            self.executor.backward_done()
        microbatch = self.runtime.note_backward()
        assert microbatch is not None
        self.executor.ran(self.step, microbatch, self.strategy)

    def begin_step(self) -> None:
        self.runtime.begin_step()
        self.tops.clear()
        self.step += 1

    def shown(self) -> list[list[int]]:
        """Of each microbatch, what had entered, by place."""
        return [[mark[0] for mark, _ in one.shown] for one in self.runtime.microbatches]


# --------------------------------------------------------------------------- evidence


def test_evidence_is_of_each_iteration_around_a_microbatch() -> None:
    alone = Rank()
    alone.run("inner", [0], [0, 1])
    rank = Rank()

    rank.run("inner", [0, 0], [0, 1])

    first, second = alone.shown()
    assert first[0] == first[1] and second[0] not in (first[0], second[1])
    assert rank.shown() == [first, second, first, second], "anew in each outer iteration"


def test_the_door_of_an_iteration_is_its_first_forward() -> None:
    rank = Rank()

    rank.run("inner", [0], [0, 1])

    one, two = rank.runtime.microbatches
    assert two.shown[1][1] == one.shown[1][1] != two.shown[0][1]


def test_what_is_executed_as_another_rank_is_no_evidence_of_our_own_iterations() -> None:
    rank = Rank()
    rank.run("flat", "a")
    evidence = rank.tops[0].evidence
    assert evidence is not None
    before = evidence.mark

    rank.executor.execute_fresh(rank.runtime.microbatches[0])

    assert rank.executed == ["a"] and evidence.mark == before


def test_what_rank_0_does_alone_is_part_of_the_body() -> None:
    rank = Rank()
    rank.run("leading", "a", 0, [])

    rank.executor.execute_fresh(rank.runtime.microbatches[0])

    assert rank.executed == ["a"]


@pytest.mark.parametrize("proving", [True, False])
def test_gradients_of_first_microbatches_are_noted_as_long_as_they_are_compared(
    proving: bool,
) -> None:
    rank = Rank()
    rank.executor.proving = proving

    rank.run("flat", "ab")

    assert [one.gradient for one in rank.runtime.microbatches] == [5 * proving, 0]


# --------------------------------------------------------------------------- points


@pytest.mark.parametrize("wanted", [False, True])
def test_an_iteration_around_what_is_executed_again_is_noted_only_if_it_is_wanted(
    wanted: bool,
) -> None:
    rank = Rank()
    rank.run("inner", [0], [0])
    rank.begin_step()
    rank.wanted = wanted

    rank.run("inner", [0], [0])

    outer, inner = rank.tops
    points = rank.executor.captures.points
    assert inner.context in points
    assert (outer.context is not None) == wanted
    assert outer.context not in points


# --------------------------------------------------------------------------- fresh data


def last_of(rank: Rank, parts: list[int]) -> Microbatch:
    """The last of the backwards of one iteration, each of one part of its item."""
    rank.run("flat", [parts])
    microbatch = rank.runtime.microbatches[-1]
    assert microbatch.place.skip == len(parts) - 1
    return microbatch


@pytest.mark.parametrize(("left", "executed"), [(3, 3), (2, 2), (1, 1)])
def test_fresh_data_of_fewer_parts_give_an_earlier_backward(left: int, executed: int) -> None:
    """The last batch of an epoch may be cut into fewer."""
    rank, parts = Rank(), [1, 2, 3]
    microbatch = last_of(rank, parts)
    del parts[left:]

    rank.executor.execute_fresh(microbatch)

    assert rank.executed == [executed]
    assert rank.runtime.acting_rank is None


@pytest.mark.parametrize(("shards", "told"), [(1, True), (2, False)])
def test_too_many_that_are_passed_over_are_told_and_not_passed_over_again(
    shards: int, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless shard mates wait for this rank: they have clocks of their own."""
    monkeypatch.setattr(passing, "PASSING_S", -1.0)
    rank = Rank()
    rank.runtime.layout = SimpleNamespace(shards=shards)  # type: ignore[assignment]
    microbatch = last_of(rank, [1, 2, 3])

    with pytest.raises(NotReplayable, match="pass over the 2 before it") if told else nullcontext():
        rank.executor.execute_fresh(microbatch)

    assert (rank.executor.passing.within_limit(microbatch) is microbatch) is not told


def test_fresh_data_without_a_backward_are_told() -> None:
    rank, parts = Rank(), [1, 2]
    microbatch = last_of(rank, parts)
    parts.clear()

    with pytest.raises(NothingReached, match="reached no backward"):
        rank.executor.execute_fresh(microbatch)

    assert rank.runtime.acting_rank is None and not rank.executor.fresh


class Cursor:
    """An iterator of the script's, which begins anew with each loop over it."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> "Cursor":
        self.at = 0
        return self

    def __next__(self) -> int:
        self.at += 1
        if self.at > 4:
            raise StopIteration
        return self.at


def test_fresh_data_begin_no_loop_of_the_script_anew() -> None:
    """A survivor read the first items of its epoch again and again, without an end."""
    rank, cursor, ats = Rank(), Cursor(), list[int]()
    rank.runtime.own_modules = frozenset({__name__})

    def backward(item: Any) -> None:
        if rank.runtime.acting_rank is not None and cursor.at == 2:
            raise ValueError("the first backward left nothing")
        rank.backward(item)
        if rank.runtime.acting_rank is None and cursor.at == 3:
            microbatch = rank.runtime.microbatches[-1]
            microbatch.chosen = 1
            with pytest.raises(NotReplayable, match="left nothing"):
                rank.executor.execute_fresh(microbatch)
            ats.append(cursor.at)

    rank.script.inner([0], cursor, backward)

    assert ats == [3] and len(rank.runtime.microbatches) == 4


def test_fresh_data_are_the_next_ones_of_the_script() -> None:
    """A survivor that made up more than another came to the end of its data before that."""
    rank, cursor, given = Rank(), Cursor(), list[Any]()
    rank.runtime.own_modules = frozenset({__name__})

    def backward(item: Cursor) -> None:
        given.append(next(item))
        rank.backward(0)

    rank.script.flat([cursor], backward)
    rank.executor.execute_fresh(rank.runtime.microbatches[-1])
    rank.executor.execute_fresh(rank.runtime.microbatches[-1])

    assert given == [1, 2, 2] and next(cursor) == 2


class Waiting:
    """An object of the script's whose items are in a queue."""

    def __init__(self) -> None:
        self.items = queue.SimpleQueue[int]()


def test_fresh_data_are_not_taken_from_what_cannot_have_them_back() -> None:
    rank, waiting = Rank(), Waiting()
    rank.runtime.own_modules = frozenset({__name__})
    waiting.items.put(1)
    waiting.items.put(2)

    def backward(item: Waiting) -> None:
        item.items.get()
        rank.backward(0)

    rank.script.flat([waiting], backward)
    with pytest.raises(NotReplayable, match=r"item.items cannot be put back"):
        rank.executor.execute_fresh(rank.runtime.microbatches[-1])

    assert waiting.items.get_nowait() == 2


# --------------------------------------------------------------------------- sources


@pytest.mark.parametrize("again", [False, True])
def test_a_source_that_has_ended_is_known_while_an_iteration_is_executed_again_that_began_with_it(
    again: bool,
) -> None:
    """A loader's iterator, at the end of an epoch in the midst of an iteration: the executed code
    draws from it to find that out.
    """
    rank, known = Rank(), list[bool]()
    source: Any = SimpleNamespace(number=0, count=3, ended=True, begin_step=lambda floor: None)
    rank.runtime.sources.append(source)

    def backward(item: Any) -> None:
        rank.backward(item)
        outer = rank.runtime.microbatches[-1].places[-1].top.loop.id
        rank.runtime.regions = {outer} if again else set()
        rank.begin_step()
        known.append(source in rank.runtime.sources)

    rank.script.inner([0], range(3), backward)

    assert known == [True, again, again]
