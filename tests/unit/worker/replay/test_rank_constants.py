"""What modules of the project know of a rank is told, and put in place for whoever acts as it."""

from collections import ChainMap, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from threading import Barrier
from types import ModuleType, SimpleNamespace
from typing import Any

import msgpack
import numpy
import pytest
import torch
from torch import nn

from recoverrun.worker.context.attached_state import Attached
from recoverrun.worker.context.object_graph import holdings
from recoverrun.worker.context.values import same
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.replay import rank_constants as constants_module
from recoverrun.worker.replay.rank_constants import Constants, seen_by_contexts

NAME = "common_of_test_constants"


class Settings:
    """An object of the project's own."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def exchange(constants: Constants, tell: Any, names: dict[str, Any] | None = None) -> None:
    """As before the first proof, where `names` are those of the frame around the loop."""
    own = frozenset({NAME})
    constants.exchange(holdings([names or {}], own), own, (), tell)


class _Said(Exception):
    """The other rank has said its word; nobody answers it."""


class Two:
    """This rank, and another one on which that module knows something else."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.module = ModuleType(NAME)
        monkeypatch.setitem(constants_module.sys.modules, NAME, self.module)
        monkeypatch.setattr(Settings, "__module__", NAME)
        self.theirs: dict[str, Any] = {}
        self.asked: list[dict[str, Any]] = []
        self.constants = Constants()

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
            exchange(Constants(), tell)
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


# ------------------------------------------------------------------------------- in any place


class Meeting:
    """Two ranks of one process, each in a thread, whose frames hold what they were given."""

    def __init__(self, given: Callable[[int], Any]) -> None:
        self._met, self._said = Barrier(2, timeout=20), list[Any]([None, None])
        self.heard: list[Any] = []
        self.names = [{"here": given(rank)} for rank in (0, 1)]
        self.constants = [Constants(), Constants()]
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(self._exchange, (0, 1)))

    def _exchange(self, rank: int) -> None:
        own = frozenset({__name__})
        there = holdings([self.names[rank]], own)
        self.constants[rank].exchange(there, own, (), partial(self._tell, rank))

    def _tell(self, rank: int, words: dict[str, Any]) -> dict[int, Any]:
        self._said[rank] = msgpack.packb(words)
        self._met.wait()
        found = {one: msgpack.unpackb(self._said[one]) for one in (0, 1)}
        self._met.wait()
        if not rank:
            self.heard.append(found)
        return found

    @property
    def here(self) -> Any:
        return self.names[0]["here"]


class Layer(nn.Module):
    def __init__(self, rank: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.tensor([1.0, rank]))
        self.register_buffer("same", torch.ones(2))
        self.inner, self.note = nn.SmoothL1Loss(beta=1.0 + rank), {"no": "state"}


class Nested(dict[str, Any]):
    __slots__ = ()


def in_slots(rank: int) -> Any:
    class Slotted:
        __slots__ = ("weight",)

    made: Any = Slotted()
    made.weight = rank
    return made


def told(*, by: int) -> int:
    return by


def in_a_cell(rank: int) -> Callable[[], int]:
    return lambda: rank


PLACES: dict[str, tuple[Callable[[int], Any], Callable[[Any], Any]]] = {
    "keyword of a partial": (lambda rank: partial(told, by=rank), lambda here: here()),
    "argument of a partial": (lambda rank: partial(max, rank, -1), lambda here: here()),
    "default": (lambda rank: lambda rank=rank: rank, lambda here: here()),
    "default by name": (lambda rank: lambda *, a=5, rank=rank: rank, lambda here: here()),
    "second of two defaults": (lambda rank: lambda a, b=5, rank=rank: rank, lambda here: here(0)),
    "cell": (in_a_cell, lambda here: here()),
    "slot": (in_slots, lambda here: here.weight),
    "mixed list": (lambda rank: [told, rank], lambda here: here[1]),
    "mixed deque": (lambda rank: deque([told, rank]), lambda here: here[1]),
    "dict of a class": (lambda rank: Nested(a={"b": (rank,)}), lambda here: here["a"]["b"][0]),
    "chain": (lambda rank: ChainMap({}, {"a": rank}), lambda here: here["a"]),
    "tensor": (
        lambda rank: {"a": (told, {"b": torch.tensor(rank)})},
        lambda here: here["a"][1]["b"],
    ),
    "set": (lambda rank: {"a": {5, rank}}, lambda here: len(here["a"] - {5, 1})),
}


@pytest.mark.parametrize("place", PLACES)
def test_wherever_a_rank_keeps_a_value_it_is_found_and_put_back(place: str) -> None:
    given, read = PLACES[place]
    meeting = Meeting(given)
    mine, theirs = read(given(0)), read(given(1))

    with meeting.constants[0].of(1):
        assert read(meeting.here) == theirs
    assert read(meeting.here) == mine != theirs


def test_what_moves_in_a_place_that_code_may_not_need_is_left_alone() -> None:
    meeting = Meeting(lambda rank: [told, rank])
    meeting.here[1] = 7

    with meeting.constants[0].of(1):
        assert meeting.here[1] == 7


def test_what_a_context_has_is_left_to_it() -> None:
    names = {"here": SimpleNamespace(rank=0, deep={"own": 1})}
    seen = seen_by_contexts([("here", "rank"), ("here", "deep", "['own']")], names)

    assert seen == {(id(vars(names["here"])), "rank"), (id(names["here"].deep), "['own']")}
    found = holdings([names], frozenset({__name__}))
    leaves = constants_module._found(found, frozenset({__name__}), seen)
    assert not [leaf.name for leaf in leaves if leaf.name.startswith("here")]


def test_what_a_module_was_made_with_belongs_to_a_rank_until_the_script_writes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attached = Attached()
    monkeypatch.setattr(constants_module, "ATTACHED", attached)
    meeting = Meeting(Layer)
    layer, constants = meeting.here, meeting.constants[0]

    with constants.of(1):
        assert layer.weight.tolist() == [1.0, 1.0] and layer.inner.beta == 2.0
    assert layer.weight.tolist() == [1.0, 0.0] and layer.inner.beta == 1.0

    attached.write(layer.inner, "beta")
    with constants.of(1):
        assert layer.inner.beta == 1.0, "it is in contexts from here on"


def test_what_cannot_travel_from_one_rank_is_left_alone() -> None:
    """No message holds a number of 71 bits."""

    def given(rank: int) -> nn.Module:
        made: Any = nn.Identity()
        made.seed, made.scale = 1 << 70 * rank, rank
        return made  # type: ignore[no-any-return]

    meeting = Meeting(given)

    with meeting.constants[0].of(1):
        assert (meeting.here.seed, meeting.here.scale) == (1, 1)


def test_buffers_of_what_trains_follow_what_it_sees() -> None:
    def given(rank: int) -> nn.Module:
        model: Any = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1, affine=False))
        model.scale = 1.0 + rank
        model[1].running_mean.fill_(rank)
        return model  # type: ignore[no-any-return]

    meeting = Meeting(given)

    with meeting.constants[0].of(1):
        assert meeting.here.scale == 2.0
        assert meeting.here[1].running_mean.item() == 0


@pytest.mark.parametrize("proved", [True, False])
def test_an_iterator_that_differs_may_not_begin_to_move_after_the_proofs(proved: bool) -> None:
    meeting = Meeting(lambda rank: accumulate([rank, 1, 2]))
    constants = meeting.constants[0]
    with constants.of(1):
        pass
    next(meeting.here)

    if proved:  # with it
        constants.settle()
        with constants.of(1):
            pass
    else:
        with pytest.raises(NotReplayable, match="here gives each rank other values"):
            constants.of(1).__enter__()


def test_iterators_that_are_alike_may_move() -> None:
    meeting = Meeting(lambda rank: zip([1, 2], accumulate([3, 4]), strict=True))
    next(meeting.here)

    with meeting.constants[0].of(1):
        pass
    assert list(meeting.heard[0]) == [0, 1] and len(meeting.heard) == 1


def test_what_the_script_put_into_the_environment_belongs_to_a_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WEIGHT_OF_TEST", "0")
    found = constants_module._found(holdings([], frozenset()), frozenset(), ())
    names = {leaf.name for leaf in found}

    assert "os.environ.WEIGHT_OF_TEST" in names
    assert not {"os.environ.PATH", "os.environ.RANK"} & names
