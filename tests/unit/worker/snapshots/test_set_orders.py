"""A set that gives its numbers in another order than before is named."""

from typing import Any

from recoverrun.worker.context.object_graph import Holdings, holdings
from recoverrun.worker.snapshots import set_orders


def there(**sets: set[Any]) -> Holdings:
    return holdings([{"one": sets}], frozenset())


def few_of_many() -> set[int]:
    """In a table with room for many the numbers stand in their own order."""
    rows = set(range(50))
    for row in set(range(50)) - {3, 8, 17, 40, 41}:
        rows.discard(row)
    return rows


def test_a_set_that_has_held_more_is_named() -> None:
    told = set_orders.told(there(rows=few_of_many(), seen={1, 2}))

    assert "another order than before: one.rows" in set_orders.changed(
        told, there(rows={3, 8, 17, 40, 41}, seen={1, 2})
    )
    assert set_orders.changed(told, there(rows=few_of_many(), seen={1, 2})) == ""


def test_of_other_values_nothing_is_told() -> None:
    assert set_orders.told(there(names={"a", "b"}, one={1}, pairs={(1, 2), (3, 4)})) == []
