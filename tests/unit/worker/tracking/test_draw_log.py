"""The script's draws that are kept."""

from typing import Any

from recoverrun.worker.data.source import Draw
from recoverrun.worker.tracking.draw_log import KEPT_DRAWS, DrawLog

SOURCE: Any = object()


def drawn(*items: int) -> DrawLog:
    draws = DrawLog(lambda: 2)
    take(draws, *items)
    return draws


def take(draws: DrawLog, *items: int) -> None:
    for item in items:
        draws.note(Draw(SOURCE, item, item))


def items(found: list[Draw] | None) -> list[Any]:
    assert found is not None
    return [one.item for one in found]


def test_a_whole_data_set_that_is_read_does_not_stay_in_memory() -> None:
    draws = drawn(*range(10 * KEPT_DRAWS))

    kept = draws.since(draws.count - KEPT_DRAWS)
    assert items(kept) == list(range(9 * KEPT_DRAWS, 10 * KEPT_DRAWS))
    assert draws.since(0) is None


def test_what_is_folded_into_nothing_is_no_draw() -> None:
    draws = drawn(1, 2)
    mark = draws.count
    take(draws, 3, 4)

    draws.fold(mark, None)

    assert draws.count == mark
    assert items(draws.present) == [1, 2]


def test_what_is_folded_is_one_draw() -> None:
    draws = drawn(1, 2)
    mark = draws.count
    take(draws, 3, 4)
    draws.fold(mark, Draw(SOURCE, 0, "both"))

    assert items(draws.since(0)) == [1, 2, "both"]
    assert draws.count == 3


def test_what_was_drawn_for_items_that_are_passed_may_be_held_back() -> None:
    draws = drawn(1, 2)
    mark = draws.count
    take(draws, 3, 4)
    draws.pass_by(mark)
    take(draws, 5)

    assert items(draws.since(0)) == [1, 2, 5]
    assert items(draws.fetched) == [3, 4]


def test_of_items_that_are_passed_no_more_are_kept_than_of_others() -> None:
    draws = drawn(*range(3))
    mark = draws.count
    draws.in_header = True
    take(draws, *range(10 * KEPT_DRAWS))
    draws.pass_by(mark)
    draws.note(Draw(SOURCE, 0, None))  # it was only counted
    draws.pass_by(mark)
    take(draws, 7)

    assert items(draws.since(mark)) == [7]
    assert items(draws.fetched) == list(range(9 * KEPT_DRAWS, 10 * KEPT_DRAWS))


def test_what_a_fresh_process_draws_on_its_way_is_for_the_step_at_whose_top_it_stands() -> None:
    draws = drawn(1, 2, 3)  # the loader looks one ahead: 3 is for the next step
    draws.begin_iteration(first=True)
    draws.begin_step()
    draws.arrive()
    draws.begin_step()
    take(draws, 4)

    assert items(draws.begin_iteration(first=True)[1]) == [1, 2, 3, 4]
    draws.begin_step()
    assert items(draws.fetched) == [4]


def test_an_item_may_be_what_was_drawn_an_iteration_before() -> None:
    draws = DrawLog(lambda: 1)
    draws.begin_iteration(first=True)
    take(draws, 1)

    present, ahead = draws.begin_iteration(first=False)
    take(draws, 2)

    assert (items(present), items(ahead)) == ([2], [1])


def test_items_of_a_loop_may_be_what_was_drawn_before_it_began() -> None:
    draws = drawn(1, 2, 3)  # the loader looks one ahead: 3 is for the next step
    aheads = [draws.begin_iteration(first=not at)[1] for at in range(2)]
    draws.begin_step()
    take(draws, 4, 5)
    aheads += [draws.begin_iteration(first=not at)[1] for at in range(2)]

    first, second = [1, 2, 3], [1, 2, 3, 4, 5]
    assert [items(one) for one in aheads] == [first, first, second, second]


def test_what_was_drawn_two_steps_ago_is_not_kept() -> None:
    draws = drawn(1)
    draws.begin_iteration(first=True)
    draws.begin_step()
    draws.begin_step()

    assert draws.begin_iteration(first=False)[1] == []
