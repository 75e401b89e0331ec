"""The process of a rank that an order means."""

import pytest

from rendezvous.membership.births import UNBORN, Births


def test_orders_are_for_the_present_process_or_come_late_or_early() -> None:
    births = Births((0, 1))
    births.use(1, 2)

    assert [births.judge(1, birth) for birth in (1, 2, 3)] == ["former", "present", "future"]
    assert births.judge(0, 0) == "present" and 7 not in births


def test_where_another_launcher_had_the_rank_nothing_has_begun() -> None:
    births = Births((0,), first=False)

    assert births.newest(0) == UNBORN
    assert births.judge(0, 0) == "future"


def test_no_birth_is_used_twice() -> None:
    births = Births((0,))

    with pytest.raises(AssertionError, match="INV-4"):
        births.use(0, 0)
