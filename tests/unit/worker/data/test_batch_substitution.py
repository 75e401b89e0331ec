"""The item that a loop will be given, and which draws it is made of."""

from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from recoverrun.worker.context.observer import TorchObserver
from recoverrun.worker.data.batch_substitution import (
    draws_in,
    holds_part,
    items_in_memory,
    parts_of,
)
from recoverrun.worker.data.source import Draw

SOURCE: Any = object()
BATCHES = [torch.tensor([float(n)]) for n in range(3)]


def draws(*items: Any) -> list[Draw]:
    return [Draw(SOURCE, index, item) for index, item in enumerate(items)]


def same(found: list[Any], expected: list[Any]) -> bool:
    return len(found) == len(expected) and all(map(lambda one, two: one is two, found, expected))


# --------------------------------------------------------------------------- what lies in memory


def test_a_list_holds_what_a_loop_over_it_will_be_given() -> None:
    assert same(items_in_memory(BATCHES), BATCHES)
    assert same(items_in_memory(tuple(BATCHES)), BATCHES)


@pytest.mark.parametrize(
    "around",
    [
        iter,
        enumerate,
        reversed,
        lambda items: zip(items, "abc", strict=True),
        lambda items: map(id, items),
    ],
)
def test_so_do_python_s_own_iterators_around_one(around: Any) -> None:
    assert same(items_in_memory(around(BATCHES)), BATCHES)


def test_lists_of_a_zip_are_all_held() -> None:
    more = [torch.tensor([9.0])]

    assert same(items_in_memory(zip(BATCHES, more, strict=False)), [*BATCHES, *more])


def test_looking_takes_nothing_from_an_iterator() -> None:
    loop = enumerate(BATCHES)
    first = next(loop)

    items_in_memory(loop)

    assert first[0] == 0
    assert [number for number, _ in loop] == [1, 2]


def _generator() -> Iterator[torch.Tensor]:
    yield from BATCHES


@pytest.mark.parametrize(
    "iterable",
    [
        range(3),
        enumerate(range(3)),
        _generator(),
        enumerate(_generator()),
        {"a": BATCHES[0]},
        "abc",
        type("Loader", (), {"__iter__": lambda self: iter(BATCHES)})(),
        iter(lambda: BATCHES[0], None),
    ],
    ids=["range", "enumerated", "generator", "enumerated generator", "dict", "str", "own", "call"],
)
def test_what_is_made_as_the_loop_goes_is_not_there_yet(iterable: Any) -> None:
    assert items_in_memory(iterable) == []


# --------------------------------------------------------------------------- what it was drawn as


def test_a_draw_is_found_by_the_very_thing_that_was_drawn() -> None:
    drawn = draws(*BATCHES)

    assert draws_in([BATCHES[2], BATCHES[0]], drawn) == [drawn[0], drawn[2]]


@pytest.mark.parametrize(
    "item", [(7, BATCHES[1]), {"x": BATCHES[1]}, [BATCHES[1]], ("a", [{"x": BATCHES[1]}])]
)
def test_or_by_a_part_of_what_holds_it(item: Any) -> None:
    drawn = draws(*BATCHES)

    assert draws_in([item], drawn) == [drawn[1]]


def test_parts_of_what_was_drawn_count_too() -> None:
    drawn = draws({"x": BATCHES[0], "n": 1}, {"x": BATCHES[1], "n": 1})

    assert draws_in([BATCHES[1]], drawn) == [drawn[1]]


def test_where_there_are_copies_the_latest_may_be_in_them() -> None:
    """As many as there are, and one more: a loader may be read one ahead."""
    drawn = draws(*BATCHES, *(one + 5 for one in BATCHES))

    assert draws_in([one.clone() for one in BATCHES[:2]], drawn) == drawn[-3:]
    assert draws_in([{"x": [BATCHES[0].clone()]}], drawn) == drawn[-2:]


def test_what_holds_no_tensor_is_no_copy_of_a_draw() -> None:
    assert draws_in([3, "a"], draws(*BATCHES)) == []
    assert draws_in([], draws(*BATCHES)) == []


def test_numbers_and_names_are_shared_and_tell_nothing() -> None:
    assert draws_in([(1, "a")], draws((1, "b"), (2, "a"))) == []


@pytest.mark.parametrize(
    ("loop", "found"), [(enumerate(BATCHES[:1]), [0]), (range(3), []), (_generator(), [])]
)
def test_a_loop_holds_the_draws_of_what_it_goes_over(loop: Any, found: list[int]) -> None:
    drawn = TorchObserver().drawn_for(loop, draws(*BATCHES))

    assert [one.index for one in drawn] == found


@pytest.mark.parametrize(
    ("value", "holds"),
    [
        (BATCHES[1], True),
        ([{"x": BATCHES[1]}], True),
        (deque([(0, BATCHES[0])]), True),
        ([BATCHES[2]], False),
        ([torch.tensor([1.0])], False),
        ({"number": 1}, False),
        ([BATCHES[1]] * 2_000, False),
    ],
)
def test_what_holds_a_part_of_data(value: Any, holds: bool) -> None:
    """By identity, and not in what is too long to hold batches."""
    parts = parts_of([{"x": BATCHES[1], "number": 1}, BATCHES[0]])

    assert holds_part(value, parts) is holds
