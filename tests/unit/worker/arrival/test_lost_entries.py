"""Entries that dicts and objects have lost are lost in a process that goes back, too."""

from typing import Any

from recoverrun.worker.arrival import lost_entries
from recoverrun.worker.context.object_graph import Holdings, holdings


class Schedule:
    """As a class of the script's."""

    def __init__(self) -> None:
        self.pool, self.warm = dict.fromkeys(range(4), 0.1), True


def there(schedule: Any) -> Holdings:
    return holdings([{"schedule": schedule}], frozenset({__name__}))


def gone_back(lose: Any) -> tuple[Schedule, list[Any]]:
    first, second = Schedule(), Schedule()
    before = lost_entries.keys_of(there(first))
    lose(first)
    told = lost_entries.told(there(first), before)
    lost_entries.take_away(told, there(second))
    return second, told


def test_an_entry_that_was_taken_out_is_not_there_again() -> None:
    second, _ = gone_back(lambda one: one.pool.popitem())

    assert list(second.pool) == [0, 1, 2]


def test_an_attribute_that_was_deleted_is_not_there_again() -> None:
    second, _ = gone_back(lambda one: delattr(one, "warm"))

    assert not hasattr(second, "warm")


def test_what_was_changed_or_added_is_not_lost() -> None:
    _, told = gone_back(lambda one: one.pool.update({0: 5.0, 9: 1.0}))

    assert not told
