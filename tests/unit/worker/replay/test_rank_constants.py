"""Rank constants in modules of the project are told, and put in place for whoever acts as that
rank.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import msgpack
import numpy
import pytest
import torch

from recoverrun.worker.context.object_graph import holdings
from recoverrun.worker.context.values import pack, same
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.replay import rank_constants as constants_module
from recoverrun.worker.replay.constant_leaves import Leaf
from recoverrun.worker.replay.rank_constants import RankConstants

NAME = "common_of_test_constants"
OWN = frozenset({NAME})


class Settings:
    """An object of the project's own."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def exchange(constants: RankConstants, tell: Any, names: dict[str, Any] | None = None) -> None:
    """As before the first proof, where `names` are those of the frame around the loop."""
    own = frozenset({NAME})
    constants.exchange(holdings([names or {}], own), own, (), tell)


class _Said(Exception):
    """The other rank has said its word; nobody answers it."""


class Two:
    """This rank, and another one on which that module knows something else."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.module = ModuleType(NAME)
        monkeypatch.setitem(sys.modules, NAME, self.module)
        monkeypatch.setattr(Settings, "__module__", NAME)
        self.theirs: dict[str, Any] = {}
        self.asked: list[dict[str, Any]] = []
        self.constants = RankConstants()

    def tell(self, mine: dict[str, Any]) -> dict[int, Any]:
        self.asked.append(mine)
        said: dict[int, Any] = {0: mine, 1: self._other()}
        found: dict[int, Any] = msgpack.unpackb(msgpack.packb(said), strict_map_key=False)
        return found

    def _other(self) -> dict[str, Any]:
        said: list[dict[str, Any]] = []

        def tell(words: dict[str, Any]) -> dict[int, Any]:
            said.append(words)
            if len(said) == len(self.asked):
                raise _Said
            return {0: self.asked[len(said) - 1], 1: words}

        with self._theirs(), pytest.raises(_Said):
            exchange(RankConstants(), tell)
        return said[-1]

    @contextmanager
    def _theirs(self) -> Iterator[None]:
        names, own = vars(self.module), dict(vars(self.module))
        names.update(self.theirs)
        yield
        names.clear()
        names.update(own)

    def exchange(self, mine: dict[str, Any], theirs: dict[str, Any]) -> None:
        vars(self.module).update(mine)
        self.theirs = theirs
        exchange(self.constants, self.tell)


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Two:
    return Two(monkeypatch)


DATA = [list(range(100)), list(range(100, 200))]


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (0, 1),
        ("cats", "dogs"),
        (None, 0.5),
        (float("nan"), -1.0),
        ([0, 2], [1, 3]),
        ((0, (2, [4])), (1, (3, [5, (6,)]))),
        (DATA[0], DATA[1]),
        (torch.arange(3), torch.arange(4)),
        (torch.zeros(2, 2, dtype=torch.bfloat16), torch.ones(2, 2, dtype=torch.bfloat16)),
        (torch.tensor(1), torch.tensor(2)),
        (torch.arange(3), torch.empty(0)),
    ],
    ids=str,
)
def test_what_differs_is_put_in_place_for_the_other_rank_and_put_back(
    mine: Any, theirs: Any, two: Two
) -> None:
    two.exchange({"x": mine, "same": 5}, {"x": theirs, "same": 5})

    with two.constants.of(1):
        there = vars(two.module)["x"], vars(two.module)["same"]

    assert same(there[0], theirs) and there[1] == 5
    assert vars(two.module)["x"] is mine


def test_arrays_are_put_in_place_with_their_types_and_shapes(two: Two) -> None:
    mine, theirs = numpy.arange(6, dtype="int16").reshape(2, 3), numpy.arange(4) / 2
    two.exchange({"x": mine}, {"x": theirs})

    with two.constants.of(1):
        there = vars(two.module)["x"]

    assert there.dtype == theirs.dtype and numpy.array_equal(there, theirs)
    assert vars(two.module)["x"] is mine


def test_attributes_of_own_objects_are_put_in_place_and_the_objects_stay(two: Two) -> None:
    mine = Settings(rank=0, inner=Settings(shard=(0, 2)), world=2)
    two.exchange({"s": mine}, {"s": Settings(rank=1, inner=Settings(shard=(1, 2)), world=2)})

    with two.constants.of(1):
        assert vars(two.module)["s"] is mine
        there: Any = mine
        assert (there.rank, there.inner.shard, there.world) == (1, (1, 2), 2)

    assert (mine.rank, mine.inner.shard) == (0, (0, 2))  # type: ignore[attr-defined]


def test_data_of_a_loop_hold_what_ranks_told_each_other_until_they_are_made_anew(two: Two) -> None:
    windows = [[["a cat"], ["b"]], [["c"], ["d"]]]
    two.exchange({"windows": windows}, {"windows": [[["a dog"], ["b"]], [["e"], ["d"]]]})

    assert all(two.constants.holds(window) for window in windows)
    assert two.constants.holds((3, {"batch": windows[1]}))
    assert not two.constants.holds([["a cat"], ["b"]])
    assert not two.constants.holds("a cat")


def test_where_nothing_differs_ranks_tell_each_other_once(two: Two) -> None:
    two.exchange({"x": 1, "s": Settings(lr=0.1)}, {"x": 1, "s": Settings(lr=0.1)})

    with two.constants.of(1):
        assert vars(two.module)["x"] == 1

    assert [list(words) for words in two.asked] == [["sums"]]


@pytest.mark.parametrize("name", ["local_rank", "device", "__file__"])
def test_what_belongs_to_the_process_is_not_told(name: str, two: Two) -> None:
    two.exchange({name: 0}, {name: 1})

    assert len(two.asked) == 1


def test_what_only_one_rank_has_and_what_is_no_value_is_left_alone(two: Two) -> None:
    two.exchange(
        {"x": 1, "f": len, "d": {(): 2}, "g": torch.ones(1, requires_grad=True)},
        {"y": 2, "f": max, "d": {(): 3}, "g": torch.zeros(1, requires_grad=True)},
    )

    assert "values" not in two.asked[-1]


def test_what_is_told_once_more_stands_for_what_was_told_before(two: Two) -> None:
    two.exchange({"x": 0}, {"x": 1})
    two.asked.clear()
    two.exchange({"x": 2}, {"x": 3})

    with two.constants.of(1):
        assert vars(two.module)["x"] == 3


def test_in_place_of_oneself_and_of_ranks_that_did_not_tell_all_is_as_it_is(two: Two) -> None:
    two.exchange({"x": 0}, {"x": 1})

    for rank in (0, 7):
        with two.constants.of(rank):
            assert vars(two.module)["x"] == 0


@pytest.mark.parametrize("gone", [False, True])
def test_what_moved_since_is_not_known_and_nothing_is_changed(gone: bool, two: Two) -> None:
    two.exchange({"a": 0, "x": 0}, {"a": 1, "x": 1})
    if gone:
        del vars(two.module)["x"]
    else:
        vars(two.module)["x"] = 2
    before = dict(vars(two.module))

    with pytest.raises(NotReplayable, match=rf"{NAME}\.x differs"), two.constants.of(1):
        pass

    assert vars(two.module) == before


def test_the_time_of_day_is_no_rank_s_constant_once_it_was_read_again(two: Two) -> None:
    two.exchange({"a": 0, "began": time.time()}, {"a": 1, "began": time.time() - 1})
    vars(two.module)["began"] = again = time.time()

    with two.constants.of(1):
        assert vars(two.module)["a"] == 1 and vars(two.module)["began"] == again


def test_what_a_context_has_put_in_place_is_the_other_ranks_already(two: Two) -> None:
    two.exchange({"x": 0}, {"x": 1})
    vars(two.module)["x"] = 1

    with two.constants.of(1):
        assert vars(two.module)["x"] == 1
    assert vars(two.module)["x"] == 1


def test_of_a_long_list_the_list_is_named() -> None:
    rows = {number: [number] for number in range(96)}
    leaf = Leaf("__main__.rows[88]", rows, 88, place="__main__.rows")

    assert leaf.moved == (
        "rows differs between ranks, and has changed since they told each other: with more than 64 "
        "entries it is not followed (rows[88])"
    )


def test_data_that_were_changed_in_place_have_moved(two: Two) -> None:
    mine = torch.arange(3)
    two.exchange({"x": mine}, {"x": torch.arange(4)})
    mine.add_(1)

    with pytest.raises(NotReplayable), two.constants.of(1):
        pass


def test_what_ends_in_an_error_is_put_back(two: Two) -> None:
    two.exchange({"x": 0}, {"x": 1})

    with pytest.raises(ValueError), two.constants.of(1):
        raise ValueError

    assert vars(two.module)["x"] == 0


def test_what_is_too_much_is_told_by_nobody(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants_module, "MOST_BYTES", 900)

    two.exchange({"x": DATA[0], "y": DATA[0]}, {"x": DATA[1], "y": DATA[1]})

    assert sorted(map(len, two.asked[2]["values"])) == [0, 1], "the first one, and no more"
    with two.constants.of(1):
        assert (vars(two.module)["x"] is DATA[0]) != (vars(two.module)["y"] is DATA[0])


def test_what_has_moved_since_is_not_told_to_a_newcomer_where_it_is_passed_over() -> None:
    holder = {"still": 1, "moving": 2, "of a module": 3}
    leaves = [Leaf(name, holder, name, strict="module" in name) for name in holder]
    constants = RankConstants()
    constants._own = [(leaf, leaf.digest) for leaf in leaves]
    constants._theirs = {1: [4, 5, 6]}

    holder.update({"moving": 8, "of a module": 9})

    assert constants.told() == [["still", "of a module"], [[1, [4, 6]]], []]


@pytest.mark.parametrize(
    ("calls", "missing"),
    [
        ({"generator_batches_0": partial(iter, 7)}, ""),
        ({"generator_batches_0": partial(iter, 8)}, "generator_batches_0[0]"),
        ({}, "generator_batches_0[0]"),
    ],
    ids=["the same", "another", "not yet"],
)
def test_a_process_that_comes_later_has_called_its_generators_with_what_its_slot_was_given(
    calls: dict[str, Any], missing: str
) -> None:
    told = [["generator_batches_0[0]"], [[0, [pack(5)]], [1, [pack(7)]]], []]

    assert RankConstants().learn(told, holdings([calls], OWN), OWN, rank=1) == missing
