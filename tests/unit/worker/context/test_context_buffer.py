"""The contexts that a rank leaves for those who would take over its microbatches."""

from pathlib import Path
from typing import Any

import msgpack
import pytest

from recoverrun.worker.context.context_buffer import ContextWriter, contexts_in
from recoverrun.worker.context.slot_context import Context
from rendezvous.protocol import shared_memory
from rendezvous.protocol.context_copies import packed
from tests.unit.contexts import at


def top(step: int, **names: Any) -> Context:
    return at(step, names={"step": step, **names})


def after(step: int) -> Context:
    return at(step, 1, "after", names={"step": step})


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "remains")


def left(path: str) -> list[tuple[int, str]]:
    """The content for a reader of the latest payload."""
    *_, payload = shared_memory.read(path)
    return [(one.step, one.kind) for one in contexts_in(payload)]


def test_a_rank_leaves_its_top_the_end_before_and_the_top_before_that(path: str) -> None:
    context_buffer = ContextWriter(path)
    course: list[list[tuple[int, str]]] = []
    for step in (1, 2):
        context_buffer.top(top(step))
        course.append(left(path))
        context_buffer.after(after(step))
        course.append(left(path))

    assert course == [
        [(1, "top")],
        [(1, "after"), (1, "top")],
        [(1, "top"), (1, "after"), (2, "top")],
        [(1, "top"), (2, "after"), (2, "top")],
    ]


def test_what_was_left_is_what_it_was(path: str) -> None:
    context_buffer, context = ContextWriter(path), top(3, rank=2)
    context_buffer.top(context)

    (payload,) = shared_memory.read(path)
    assert contexts_in(payload) == [context]
    assert contexts_in(packed(payload)) == [context], "as another node has kept it"


def test_killed_while_it_writes_a_rank_leaves_what_it_had_left_before(path: str) -> None:
    context_buffer = ContextWriter(path)
    context_buffer.top(top(1))
    context_buffer.after(after(1))

    older, newer = shared_memory.read(path)

    assert [one.kind for one in contexts_in(older)] == ["top"]
    assert [one.kind for one in contexts_in(newer)] == ["after", "top"]


def test_where_all_is_too_much_the_oldest_goes(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(top(1).pack())
    monkeypatch.setattr("recoverrun.worker.context.context_buffer.MOST_BYTES", 5 * size)
    context_buffer = ContextWriter(path)
    context_buffer.top(top(1))
    context_buffer.after(after(1))

    context_buffer.top(top(2))

    assert left(path) == [(1, "after"), (2, "top")]


# --------------------------------------------------------------------------- around


def begun(step: int, attempt: int) -> Context:
    """An iteration around, of another loop."""
    return at(step, 0, "top", attempt, names={"epoch": step})


def points(path: str) -> list[tuple[int, ...]]:
    *_, payload = shared_memory.read(path)
    return [one.point for one in contexts_in(payload)]


def test_iterations_around_are_left_between_the_top_before_and_the_end_before(path: str) -> None:
    context_buffer, outer, inner = ContextWriter(path), begun(1, 0), begun(1, 1)
    first = at(1, attempt=2)
    context_buffer.top(first, [outer, inner, first])
    assert points(path) == [outer.point, inner.point, first.point], "itself but once"
    context_buffer.after(after(1))

    context_buffer.top(top(2), [outer, inner])

    last, now = after(1).point, top(2).point
    assert points(path) == [first.point, outer.point, inner.point, last, now]


def test_an_iteration_around_is_left_for_as_long_as_it_is_under_way(path: str) -> None:
    context_buffer, outer = ContextWriter(path), begun(1, 0)
    context_buffer.top(at(1, attempt=2), [outer])

    context_buffer.top(top(2), [begun(2, 1)])

    assert outer.point not in points(path) and begun(2, 1).point in points(path)


def test_what_is_left_of_an_iteration_is_what_it_was_as_it_began(path: str) -> None:
    """It is packed once, however many transactions it has."""
    context_buffer, outer = ContextWriter(path), begun(1, 0)
    context_buffer.top(at(1, attempt=2), [outer])
    outer.names["epoch"] = 9

    context_buffer.top(top(2), [outer])

    *_, payload = shared_memory.read(path)
    assert [one.names["epoch"] for one in contexts_in(payload) if one.point == outer.point] == [1]


@pytest.mark.parametrize("room", range(2, 6))
def test_the_top_before_goes_first_then_iterations_around_the_outermost_first(
    path: str, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    outer, inner = begun(1, 0), begun(1, 1)
    course = [at(1, attempt=2), outer, inner, after(1), top(2)]
    size = max(len(one.pack()) for one in course)
    monkeypatch.setattr("recoverrun.worker.context.context_buffer.MOST_BYTES", 2 * room * size)
    context_buffer = ContextWriter(path)
    context_buffer.top(course[0], [outer, inner])
    context_buffer.after(course[3])

    context_buffer.top(course[4], [outer, inner])

    assert points(path) == [one.point for one in course][-room:]


# --------------------------------------------------------------------------- beside, and nothing


def test_marks_are_left_beside(path: str) -> None:
    context_buffer = ContextWriter(path)
    context_buffer.mark(4, 0, (11, 0))
    context_buffer.mark(4, 0, (11, 12))
    context_buffer.mark(4, 1, (13, 0))
    context_buffer.top(top(4))

    assert shared_memory.parse_marks(shared_memory.read_marks(path)) == {
        (4, 0): (11, 12),
        (4, 1): (13, 0),
    }


def test_where_nothing_is_to_be_left_nothing_is(tmp_path: Path) -> None:
    context_buffer = ContextWriter("")
    context_buffer.top(top(1))
    context_buffer.after(after(1))
    context_buffer.mark(1, 0, (1, 2))

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "payload", [b"", b"hello", msgpack.packb(7), msgpack.packb({"a": 1}), b"\x93\x01"]
)
def test_what_is_no_payload_holds_no_contexts(payload: bytes) -> None:
    assert contexts_in(payload) == []


def test_what_cannot_be_read_of_it_is_passed_over() -> None:
    good = top(1).pack()

    found = contexts_in(msgpack.packb([good[:-4], good, b"", b"x"]))

    assert [one.step for one in found] == [1]
