"""The first optimizer that steps after a backward, told from further ones."""

from recoverrun.worker.step.first_updates import FirstUpdates


def test_the_first_one_after_each_backward_is_told_from_further_ones() -> None:
    updates = FirstUpdates()
    found = []
    for _ in range(2):
        updates.backward_begins()
        found += [updates.is_first() for _ in range(3)]

    assert found == [True, False, False] * 2


def test_where_no_backward_is_heard_of_each_one_is_the_first() -> None:
    updates = FirstUpdates()

    assert [updates.is_first() for _ in range(3)] == [True] * 3
