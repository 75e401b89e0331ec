"""Variables that functions of the script share with a body that is executed again."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from recoverrun.worker.replay.shared_cells import FilledCell, cells_of, fill, shared
from tests.unit.contexts import loop

OWN = frozenset({__name__})


def top_in(frame: Any, *, module_level: bool = False, **names: Any) -> Any:
    """An iteration of a loop in `frame`, which began with these variables."""
    return SimpleNamespace(
        loop=loop(module_level=module_level), frame_id=id(frame), globals={}, names=names
    )


def put_back(cells: list[FilledCell]) -> None:
    for cell in cells:
        cell.put_back()


def test_a_function_reads_what_the_body_has_bound_and_then_what_was_there() -> None:
    share: Any = 1
    top = top_in(sys._getframe(), share=share, peek=lambda: share)
    names = {**top.names, "share": 5}

    cells = fill(top, names, OWN)
    with shared(top, names, OWN) as local:
        assert top.names["peek"]() == 5  # as the rank had it whose body it is
        exec("share = share + 1; inside = peek()", names, local)
    assert top.names["peek"]() == 6
    put_back(cells)

    assert (names["share"], names["inside"]) == (6, 6)
    assert top.names["peek"]() == share == 1


def test_the_body_reads_what_a_function_has_bound() -> None:
    calls = 0

    def count() -> None:
        nonlocal calls
        calls += 1

    top = top_in(sys._getframe(), calls=0, count=count)
    names = dict(top.names)

    cells = fill(top, names, OWN)
    with shared(top, names, OWN) as local:
        exec("count(); count(); seen = calls", names, local)
    put_back(cells)

    assert (names["seen"], names["calls"], calls) == (2, 2, 0)


def test_what_a_rank_is_known_to_hold_in_a_cell_is_what_the_body_reads() -> None:
    rank = 0
    top = top_in(sys._getframe(), rank=rank, peek=lambda: rank)
    names = dict(top.names)

    cells = fill(top, names, OWN)
    cells_of(top, OWN)["rank"].cell_contents = 3  # what the function holds on that rank
    for cell in cells:
        cell.follow(names)
    with shared(top, names, OWN) as local:
        exec("seen = rank, peek()", names, local)
    put_back(cells)

    assert (names["seen"], rank) == ((3, 3), 0)


def test_a_variable_that_is_given_the_value_of_a_rank_is_seen_by_functions() -> None:
    share = 1
    top = top_in(sys._getframe(), share=share, peek=lambda: share)
    names = dict(top.names)

    cells = fill(top, names, OWN)
    names["share"] = 7
    for cell in cells:
        cell.follow(names)

    assert top.names["peek"]() == 7
    put_back(cells)
    assert share == 1


def test_the_item_of_the_loop_is_put_into_its_cell() -> None:
    x = 1
    top = top_in(sys._getframe(), peek=lambda: x)
    top.loop = loop(targets=frozenset({"x"}))
    names = dict(top.names)

    cells = fill(top, names, OWN)
    names["x"] = 2  # read for the rank after that
    with shared(top, names, OWN) as local:
        exec("seen = x, peek()", names, local)
    put_back(cells)

    assert (names["seen"], x) == ((2, 2), 1)


def test_a_variable_that_had_no_value_has_none_again() -> None:
    if "late" in OWN:
        late = 0
    top = top_in(sys._getframe(), peek=lambda: late)
    names = dict(top.names)

    cells = fill(top, names, OWN)
    with shared(top, names, OWN) as local:
        with pytest.raises(NameError):
            exec("late", names, local)
        exec("late = 3", names, local)
        assert top.names["peek"]() == 3
        exec("del late", names, local)
    put_back(cells)

    assert "late" not in names
    with pytest.raises(NameError):
        top.names["peek"]()


def test_a_variable_of_the_same_name_in_another_function_is_another_one() -> None:
    share = 1

    def weigh(share: int) -> Callable[[], int]:
        return lambda: share

    top = top_in(sys._getframe(), other=weigh(7), peek=lambda: share)

    assert [cell.cell_contents for cell in cells_of(top, OWN).values()] == [1]
    assert set(cells_of(top_in(sys._getframe(), other=weigh(7)), OWN)) == set()


def test_where_nothing_is_shared_names_are_all_there_is() -> None:
    top, names = top_in(sys._getframe(), module_level=True), {"x": 1}

    assert not fill(top, names, OWN)
    with shared(top, names, OWN) as local:
        assert local is names
