"""The mark of a long container is another one once an entry is, wherever it stands."""

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recoverrun.worker.arrival import content_marks, loose_values
from recoverrun.worker.arrival.content_marks import mark_of
from recoverrun.worker.arrival.packing import Packing, unpack
from recoverrun.worker.context.object_graph import holdings

MANY = 3000


def rows(make: Callable[[int], Any]) -> list[Any]:
    return [make(number) for number in range(MANY)]


def replaced(make: Callable[[int], Any]) -> Callable[[list[Any]], None]:
    def change(entries: list[Any]) -> None:
        entries[1500] = make(-1)

    return change


CHANGES: dict[str, tuple[Callable[[int], Any], Callable[[list[Any]], Any]]] = {
    "number": (float, replaced(float)),
    "minus two in place of minus one": (lambda number: -1, replaced(lambda _: -2)),
    "text": (str, replaced(str)),
    "large text": (lambda number: "a" * 200, replaced(lambda _: "a" * 199 + "b")),
    "half of a character": (lambda number: "\udc80" if number else 1, replaced(str)),
    "tensor": (lambda number: torch.zeros(2), replaced(lambda _: torch.zeros(2))),
    "label beside a tensor": (
        lambda number: (torch.zeros(2), number),
        lambda entries: replaced(lambda _: (entries[1500][0], -1))(entries),
    ),
    "entry of a dict": (lambda number: {"label": number}, lambda entries: entries[9].clear()),
    "attribute": (
        lambda number: SimpleNamespace(label=number),
        lambda entries: setattr(entries[1500], "label", -1),
    ),
    "object": (lambda number: object(), replaced(lambda _: object())),
    "more than 64 bits": (lambda number: 1 << 70, replaced(lambda _: 1 << 71)),
}


@pytest.mark.parametrize("kind", [list, deque])
@pytest.mark.parametrize(("make", "change"), CHANGES.values(), ids=CHANGES)
def test_an_entry_in_the_middle_has_changed(
    make: Callable[[int], Any], change: Callable[[Any], Any], kind: Any
) -> None:
    entries = kind(rows(make))
    before = mark_of(entries)
    assert mark_of(entries) == before and hash(mark_of(entries)) == hash(before)

    change(entries)

    assert mark_of(entries) != before


def test_an_object_that_lies_where_another_one_lay_is_not_that_one() -> None:
    entries = rows(lambda number: (torch.zeros(2), number))
    before = mark_of(entries)

    for _ in range(4):
        entries[1500] = (torch.zeros(2), 1500)

        assert mark_of(entries) != before


def test_beyond_what_is_read_entries_count_as_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_marks, "MOST_BYTES", 1000)
    entries = rows(lambda number: [float(number)])
    before = mark_of(entries)
    entries[2900][0] = -1.0
    assert mark_of(entries) == before

    entries[2900] = [-1.0]

    assert mark_of(entries) != before


@pytest.mark.parametrize("entry", [0, 2999])
def test_an_entry_of_a_dict_has_changed(entry: int) -> None:
    entries = dict(enumerate(rows(str)))
    before = mark_of(entries)

    entries[entry] += "x"

    assert mark_of(entries) != before


@pytest.mark.parametrize("count", [500, 3000, 20_000])
@pytest.mark.parametrize(
    "new", [lambda one: (one[0], -1), lambda one: (one[0] + 1, one[1])], ids=["label", "tensor"]
)
def test_a_long_list_is_told_whose_middle_has_changed(
    count: int, new: Callable[[Any], Any]
) -> None:
    rows = [(torch.zeros(40), number) for number in range(count)]
    there = holdings([{"rows": rows}], frozenset())
    before, middle, packing = loose_values.marks(there, []), count // 2, Packing([])
    rows[middle] = new(rows[middle])
    there = holdings([{"rows": rows}], frozenset())

    told = loose_values.told(there, [], before, frozenset(), packing)

    whole = [plain for path, name, plain in told if (path, name) == ("rows", None)]
    found = unpack(whole[0], packing.tensors)[middle]
    assert found[1] == rows[middle][1] and torch.equal(found[0], rows[middle][0])
