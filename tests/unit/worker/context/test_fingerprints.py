"""Large data of another rank are found by their marks, if this process holds them, too."""

import gc
from collections import OrderedDict, deque
from typing import Any

import numpy
import pytest
import torch

from recoverrun.worker.context import fingerprints
from recoverrun.worker.context.fingerprints import (
    FEW,
    LONG_KINDS,
    NEVER_BULK,
    find,
    grown,
    mark_of,
)


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprints, "_known", {})


def counted(kind: Any) -> Any:
    return lambda keys: kind.fromkeys(keys, 1)


def shard(number: int) -> torch.Tensor:
    return torch.arange(number, number + 100)


def test_no_kind_that_may_be_bulk_is_passed_over() -> None:
    bulk: list[Any] = [torch.zeros(9), numpy.zeros(9), *(kind() for kind in LONG_KINDS)]

    assert NEVER_BULK.isdisjoint(map(type, bulk))


@pytest.mark.parametrize("kind", [list, tuple, lambda ones: dict(enumerate(ones))])
@pytest.mark.parametrize(
    "make",
    [shard, lambda number: shard(number).numpy(), lambda number: shard(number).tolist()],
    ids=["tensor", "array", "list"],
)
def test_one_is_found_among_those_of_a_container(kind: Any, make: Any) -> None:
    ones = [make(number) for number in range(3)]
    mark = mark_of(make(2))

    found = find(mark, {"n": 5, "shards": kind(ones), "text": "shards"})

    assert found is ones[2]


def test_one_that_was_marked_before_is_found_without_a_name() -> None:
    seen = shard(1)
    mark = mark_of(seen)

    assert find(mark, {"present": shard(2)}) is seen


def test_one_that_was_changed_in_place_is_another_one() -> None:
    seen = shard(1)
    mark = mark_of(seen)
    seen.add_(1)

    assert find(mark, {}) is None
    assert find(mark_of(seen), {}) is seen


def test_one_that_nobody_holds_any_more_is_gone() -> None:
    seen = shard(1)
    mark = mark_of(seen)

    del seen
    gc.collect()

    assert find(mark, {}) is None


def test_what_nobody_has_seen_is_not_found() -> None:
    held = {"shards": [shard(1), numpy.arange(3), 7, None, "x"], "many": [shard(2)] * (FEW + 1)}
    marks = [mark_of(numpy.arange(4)), mark_of(shard(2))]  # of what nobody holds

    assert find(marks[0], held) is None
    assert find(marks[1], held) is None, "it looks into short containers alone"


@pytest.mark.parametrize("kind", [list, deque, counted(dict), counted(OrderedDict)])
def test_what_a_script_has_added_too_much_to_is_marked_from_then_on(kind: Any) -> None:
    short, grew = kind(range(FEW)), kind(range(FEW + 1))

    assert grown({"short": short, "grew": grew, "data": range(1000)}) == {"grew": grew}
    assert mark_of(grew) == mark_of(kind(range(FEW + 1)))
    assert mark_of(grew) != mark_of(kind([*range(FEW), 5000]))
    assert mark_of(grew) != mark_of(kind(range(FEW + 2)))


class Silent:
    """Its text takes long."""

    def __repr__(self) -> str:
        raise AssertionError("nobody asks for it")


def test_long_containers_of_objects_have_no_mark_and_nobody_asks_for_their_text() -> None:
    many = [Silent() for _ in range(FEW + 1)]

    assert mark_of(many) == ""
    assert mark_of(dict(enumerate(many))) == ""


@pytest.mark.parametrize("dtype", ["U3", "S3", "datetime64[s]", [("a", "i4"), ("b", "f8")], "f8"])
def test_arrays_of_any_elements_have_marks(dtype: Any) -> None:
    array = numpy.zeros(600, dtype)
    before = mark_of(array)
    array[0] = numpy.ones(1, dtype)[0]

    assert mark_of(array) != before
