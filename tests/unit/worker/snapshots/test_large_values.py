"""A value that is too large for a plain one is held or told, and never passed over."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from recoverrun.worker.arrival import plain_values, rebound_variables
from recoverrun.worker.arrival.packing import Packing
from recoverrun.worker.context.object_graph import Holdings, holdings
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.snapshots import large_values


def there(one: Any) -> Holdings:
    return holdings([{"one": one}], frozenset())


def gone_back(change: Any, **values: Any) -> tuple[Any, Any]:
    """The values of another process once it has gone back, and those that were told."""
    first, second = (
        SimpleNamespace(**{name: make() for name, make in values.items()}) for _ in range(2)
    )
    before = large_values.marks(there(first), [])
    change(first)
    held, _ = large_values.told(there(first), [], before, (), Packing([]))
    plain_values.put(held, [], there(second))
    return second, held


def test_one_entry_of_thousands_is_as_it_was() -> None:
    second, _ = gone_back(
        lambda one: one.losses.update({7: 0.5}), losses=lambda: dict.fromkeys(range(2000), 1.0)
    )

    assert second.losses[7] == 0.5 and len(second.losses) == 2000


@pytest.mark.parametrize("kind", [str, bytes, tuple])
def test_a_long_text_is_as_it_was(kind: Any) -> None:
    old, new = ("a" * 300_000, "b" * 300_000) if kind is str else (bytes(300_000), b"1" * 300_000)
    if kind is tuple:
        old, new = tuple(range(2000)), tuple(range(1, 2001))
    second, _ = gone_back(lambda one: setattr(one, "text", new), text=lambda: old)

    assert second.text == new


def test_many_numbers_of_a_set_are_as_they_were() -> None:
    second, _ = gone_back(lambda one: one.seen.add(-1), seen=lambda: set(range(20_000)))

    assert len(second.seen) == 20_001 and -1 in second.seen


def test_nothing_is_told_of_what_rests() -> None:
    text = "a" * 300_000
    _, held = gone_back(
        lambda one: None, text=lambda: text, losses=lambda: dict.fromkeys(range(2000), 1.0)
    )

    assert not held


def test_what_cannot_be_packed_or_is_data_is_a_reason() -> None:
    with pytest.raises(NotReachable, match="losses has changed since the run began, and"):
        gone_back(
            lambda one: one.losses.update({7: threading.Lock()}),
            losses=lambda: dict.fromkeys(range(2000), 1.0),
        )
    with pytest.raises(NotReachable, match="is too large"):
        gone_back(
            lambda one: setattr(one, "text", bytes(large_values.MOST_TEXT + 1)), text=lambda: b""
        )


def test_a_long_variable_is_rebound() -> None:
    variables = {"corpus": "a" * 300_000, "found": "b" * 300_000}
    spaces = [("<train>", variables)]
    before = large_values.marks(there(None), spaces)
    variables.update(corpus="c" * 300_000, found="d" * 300_000)

    held, rebound = large_values.told(there(None), spaces, before, {"found"}, Packing([]))

    other: dict[str, Any] = {"corpus": ""}
    rebound_variables.put(rebound, [], [("<train>", other)], [])
    assert other == {"corpus": "c" * 300_000} and not held


def test_many_values_that_are_too_much_together_are_a_reason() -> None:
    one = SimpleNamespace(texts={})
    before = plain_values.digests(there(one))
    one.texts.update((number, "a" * 200_000) for number in range(100))

    assert len(list(plain_values.changed(there(one), before))) < 100
    with pytest.raises(NotReachable, match="more than 16 MiB"):
        list(plain_values.changed(there(one), before, every=True))
