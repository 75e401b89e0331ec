"""The points of this rank: one as each iteration begins, and one as each backward ends."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recoverrun.worker.context.slot_context import Context
from recoverrun.worker.data.iterator_origin import Origin
from recoverrun.worker.replay import captures as captures_module
from recoverrun.worker.replay.captures import KEPT_STEPS, Captures
from recoverrun.worker.rng.registry import Registry
from recoverrun.worker.tracking.microbatches import Top
from tests.unit.contexts import at
from tests.unit.worker.tracking.test_loop_tracker import Play

pytestmark = pytest.mark.usefixtures("streams_put_back")


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    own = Registry()
    monkeypatch.setattr(captures_module, "REGISTRY", own)
    yield own


class Rank(Play):
    """A script that is captured as the session has it: one microbatch is one transaction."""

    def __init__(self) -> None:
        super().__init__()
        self.captures = Captures(self.runtime)
        self.runtime.on_top = self._top
        self.step = self.attempt = 0

    def _top(self, top: Top) -> None:
        self.captures.keep(self.captures.top(self.step, 0, self.attempt, top))
        self.attempt += 1

    def backward(self, item: Any) -> None:
        torch.rand(1)
        microbatch = self.runtime.note_backward()
        assert microbatch is not None
        self.captures.after(self.step, microbatch)
        self.runtime.begin_step()
        self.step, self.attempt = self.step + 1, 0

    @property
    def points(self) -> list[tuple[int, str, int]]:
        return [(one.step, one.kind, one.attempt) for one in self.captures.points]


def test_a_point_as_an_iteration_begins_and_one_as_its_backward_has_ended() -> None:
    rank = Rank()

    rank.run("flat", "ab")

    assert rank.points == [(0, "top", 0), (0, "after", 0), (1, "top", 0), (1, "after", 0)]
    assert all(one.loop == "s.py:3" for one in rank.captures.points)


def test_iterations_that_train_nothing_are_told_apart() -> None:
    rank = Rank()

    rank.script.flat("abc", lambda item: rank.backward(item) if item == "c" else None)

    assert rank.points == [(0, "top", 0), (0, "top", 1), (0, "top", 2), (0, "after", 0)]


def test_streams_are_those_of_the_moment() -> None:
    rank = Rank()
    torch.manual_seed(3)

    rank.run("flat", "ab")

    first, backward, second, _ = rank.captures.points
    assert first.streams != backward.streams == second.streams


def test_variables_are_those_that_the_body_reads_as_they_are_then() -> None:
    rank = Rank()

    rank.run("endless")

    points = [(one.kind, one.names.get("count")) for one in rank.captures.points[:4]]
    assert points == [("top", 0), ("after", 1), ("top", 1), ("after", 2)]


@pytest.mark.parametrize("look_again", [True, False])
def test_attributes_are_as_they_are_then_whether_or_not_objects_are_looked_for(
    look_again: bool,
) -> None:
    rank, book = Rank(), SimpleNamespace(read=0)
    rank.runtime.own_modules = frozenset({"s"})
    read = rank.script.flat.__globals__
    read["book"] = book

    def backward(item: Any) -> None:
        book.read += 1
        read["other"] = SimpleNamespace(read=item)
        microbatch = rank.runtime.note_backward()
        assert microbatch is not None
        rank.captures.after(0, microbatch, look_again=look_again)

    rank.script.flat("a", backward)

    top, after = rank.captures.points
    assert (top.attributes["book", "read"], after.attributes["book", "read"]) == (0, 1)
    assert (("other", "read") in after.attributes) == look_again


def test_a_top_knows_its_context() -> None:
    rank, tops = Rank(), list[Top]()
    rank.runtime.on_top = lambda top: (tops.append(top), rank._top(top))[0]

    rank.run("flat", "a")

    assert tops[0].context is rank.captures.points[0]


def test_points_of_transactions_that_are_long_over_are_forgotten() -> None:
    rank = Rank()

    rank.run("flat", range(6))

    assert {one.step for one in rank.captures.points} == set(range(5 - KEPT_STEPS, 6))


def test_a_transaction_that_begins_anew_has_its_points_once() -> None:
    """A script drops gradients of a loss that is not finite, and goes on with the next batch."""
    captures = Captures(SimpleNamespace(sources=[]))  # type: ignore[arg-type]
    course = [at(3), at(3, 0, "after"), at(3, 1), at(3, 1, "after"), at(3, names={"x": 1})]
    for one in course:
        captures.keep(one)

    assert captures.points == [course[-1]]


def test_points_are_found_by_when_they_were() -> None:
    captures = Captures(SimpleNamespace(sources=[]))  # type: ignore[arg-type]
    points = [captures.keep(one) for one in (at(3), at(3, 0, "after"))]

    assert captures.at((3, 0, 1, 0)) is points[1]
    assert captures.at((3, 1, 0, 0)) is None
    assert captures.by_point == {(3, 0, 0, 0): points[0], (3, 0, 1, 0): points[1]}


def test_a_point_is_one_of_ours_once_it_is_kept() -> None:
    rank, tops = Rank(), list[Context]()
    rank.runtime.on_top = lambda top: tops.append(rank.captures.top(0, 0, 0, top))

    rank.script.flat("a", lambda item: None)

    assert len(tops) == 1 and rank.points == []


def test_a_point_that_was_noted_is_included_at_its_place_and_once() -> None:
    captures = Captures(SimpleNamespace(sources=[]))  # type: ignore[arg-type]
    first, last = captures.keep(at(3)), captures.keep(at(3, 0, "after"))
    noted = at(3, 0, "top", 1)

    captures.include(noted)
    captures.include(noted)

    assert captures.points == [first, noted, last]
    assert captures.at((3, 0, 0, 1)) is noted


def test_generators_and_iterators_are_captured_with_it(registry: Registry) -> None:
    rank, generator = Rank(), torch.Generator().manual_seed(5)
    made = Origin(streams=None)
    registry._known["train.py:3#0"] = lambda: generator
    rank.runtime.sources = [
        SimpleNamespace(number=4, origin=made, count=0),
        SimpleNamespace(number=5, origin=made, count=0, gone=True),
        SimpleNamespace(number=6, count=0),
    ]  # type: ignore[assignment]

    rank.script.flat("a", lambda item: None)

    (top,) = rank.captures.points
    assert top.loaders == {4: made}
    assert torch.equal(torch.as_tensor(top.generators["train.py:3#0"]), generator.get_state())


def test_what_is_captured_does_not_move_with_the_script() -> None:
    rank = Rank()
    seen: list[Context] = []

    def backward(item: Any) -> None:
        seen.append(Context.unpack(rank.captures.points[0].pack()))
        rank.backward(item)

    rank.script.endless(backward)

    assert len(seen) == 3 and all(one == seen[0] for one in seen)
    assert seen[0].names["count"] == 0


def test_a_list_that_has_grown_too_long_leaves_a_mark() -> None:
    rank, read = Rank(), [0.5] * 64
    rank.script.flat.__globals__["history"] = read

    rank.run("flat", "a")
    read.append(0.5)
    rank.run("flat", "b")

    tops = [one.names for one in rank.captures.points if one.kind == "top"]
    assert ["history" in names for names in tops] == [True, False]
    assert ["history#" in names for names in tops] == [False, True]


def test_what_an_iterator_has_given_is_data_and_no_state() -> None:
    rank, kept = Rank(), dict[str, Any]()
    batch = {"x": 1.0}
    read = rank.script.flat.__globals__
    read["kept"] = kept

    def backward(item: Any) -> None:
        kept["batch"], kept["count"] = item, 1
        rank.backward(item)

    rank.runtime.drawn(SimpleNamespace(count=1), 0, batch)  # type: ignore[arg-type]
    rank.script.flat([batch, batch], backward)

    seen = {path for one in rank.captures.points for path in one.attributes}
    assert ("kept", "['count']") in seen
    assert not any("['x']" in path for path in seen)
