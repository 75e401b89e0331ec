"""Copies of data sets and samplers: whatever moves in the copy stays where it is here."""

import collections
import functools
import io
import itertools
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from recoverrun.worker.data.object_copy import (
    ARRAY_BYTES,
    MAX_ITEMS,
    NotCopyable,
    ObjectCopier,
    copied,
    position_digest,
)


class Holder:
    """Any attributes."""

    def __init__(self, **held: Any) -> None:
        vars(self).update(held)


class Reader:
    def __init__(self) -> None:
        self.line = 0

    def next(self) -> int:
        self.line += 1
        return self.line


class Ending:
    """An object whose end must happen once."""

    def __del__(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Slotted:
    lines: list[int]


def twice(reader: Reader) -> int:
    return reader.next() + reader.next()


def draw(held: Any) -> Any:
    return held.random()


MOVING: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "list": (lambda: [1, 2], lambda held: held.pop()),
    "list of lists": (lambda: [[1], [2]], lambda held: held[0].pop()),
    "dict": (lambda: {"at": [1]}, lambda held: held["at"].pop()),
    "defaultdict": (lambda: collections.defaultdict(list, a=[1]), lambda held: held["a"].pop()),
    "deque": (lambda: collections.deque([[1], [2]], 3), lambda held: held[0].pop()),
    "set": (lambda: {1, 2}, lambda held: held.pop()),
    "tuple": (lambda: ([1], 2), lambda held: held[0].pop()),
    "object": (Reader, lambda held: held.next()),
    "slots": (lambda: Slotted([1]), lambda held: held.lines.pop()),
    "method": (lambda: Reader().next, lambda held: held()),
    "partial": (lambda: functools.partial(twice, Reader()), lambda held: held()),
    "count": (lambda: itertools.count(), next),
    "tensor": (lambda: torch.zeros(3), lambda held: held.add_(1)[0].item()),
    "array": (lambda: numpy.zeros(3), lambda held: held.__iadd__(1)[0]),
    "random.Random": (lambda: random.Random(1), draw),
    "numpy's": (lambda: numpy.random.default_rng(1), draw),
    "torch's": (
        lambda: torch.Generator().manual_seed(1),
        lambda held: torch.rand((), generator=held).item(),
    ),
}


@pytest.mark.parametrize("kind", MOVING)
def test_what_moves_in_a_copy_stays_where_it_is(kind: str) -> None:
    make, move = MOVING[kind]
    owner, untouched = Holder(inner=Holder(held=make())), make()
    clone = copied(owner)

    moved = [move(clone.inner.held) for _ in range(1)]

    assert moved == [move(owner.inner.held)] == [move(untouched)]


def test_what_is_shared_within_is_shared_within_the_copy() -> None:
    reader = Reader()
    owner = Holder(reader=reader, also=[reader])
    vars(owner)["self"] = owner
    clone = copied(owner)

    assert clone.also[0] is clone.reader is not reader
    assert vars(clone)["self"] is clone


@pytest.mark.parametrize(
    "held",
    [
        pytest.param(Ending(), id="an end of its own"),
        pytest.param(threading.Lock(), id="a lock"),
        pytest.param(Path("a"), id="of Python's library"),
        pytest.param(torch.nn.Linear(1, 1), id="a model"),
        pytest.param(torch.zeros(ARRAY_BYTES // 4 + 1), id="a large tensor"),
        pytest.param(Reader, id="a class"),
        pytest.param(twice, id="a function"),
    ],
)
def test_what_is_no_place_is_shared(held: Any) -> None:
    assert copied(Holder(held=held)).held is held


def test_rows_are_shared_and_their_list_is_not() -> None:
    owner = Holder(rows=[[number] for number in range(MAX_ITEMS + 1)])
    clone = copied(owner)
    clone.rows.pop()

    assert len(owner.rows) == MAX_ITEMS + 1
    assert clone.rows[0] is owner.rows[0]


def test_those_that_others_put_back_are_shared() -> None:
    owner = Holder(reader=Reader())
    clone = ObjectCopier(strict=False, seen={id(owner.reader)}).of(owner)

    assert clone is not owner
    assert clone.reader is owner.reader


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: (one for one in range(3)), id="a generator"),
        pytest.param(lambda: zip([1], [2], strict=True), id="zip"),
        pytest.param(lambda: io.StringIO("a"), id="a file without a name"),
    ],
)
def test_what_cannot_be_copied_is_said_or_shared(make: Callable[[], Any]) -> None:
    owner = Holder(held=make())

    with pytest.raises(NotCopyable):
        copied(owner)
    assert ObjectCopier(strict=False).of(owner).held is owner.held


@pytest.mark.parametrize("mode", ["r", "rb"])
def test_a_file_is_opened_again_where_it_stands(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "lines"
    path.write_text("one\ntwo\nthree\n")
    with open(path, mode) as file:
        owner = Holder(file=file)
        file.readline()
        with copied(owner).file as clone:
            assert clone.readline().strip() in ("two", b"two")
            assert clone.readline().strip() in ("three", b"three")
        assert file.readline().strip() in ("two", b"two")


def test_a_file_that_is_gone_cannot_be_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("one\n")
    with open(path) as file:
        path.unlink()
        with pytest.raises(NotCopyable, match="No such file"):
            copied(Holder(file=file))


def test_what_is_too_deep_is_said() -> None:
    deep = Holder()
    for _ in range(5000):
        deep = Holder(inner=deep)

    with pytest.raises(NotCopyable, match="too deep"):
        copied(deep)


@pytest.mark.parametrize(
    ("move", "elsewhere"),
    [
        pytest.param(lambda owner: owner.reader.next(), True, id="a reader"),
        pytest.param(lambda owner: owner.held.append(1), True, id="a list"),
        pytest.param(lambda owner: owner.chance.random(), True, id="a generator"),
        pytest.param(lambda owner: owner.tensor.add_(1), True, id="a tensor"),
        pytest.param(lambda owner: setattr(owner, "epoch", 5), False, id="the number of a pass"),
        pytest.param(lambda owner: None, False, id="nothing"),
    ],
)
def test_where_it_stands(move: Callable[[Any], Any], elsewhere: bool) -> None:
    owner = Holder(
        reader=Reader(), held=[], chance=random.Random(1), tensor=torch.zeros(2), epoch=0
    )
    before = position_digest(owner)
    move(owner)

    assert (position_digest(owner) != before) == elsewhere
    assert position_digest(copied(owner)) == position_digest(owner)
