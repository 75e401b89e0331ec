"""Values that differ between ranks are found wherever the script keeps them."""

from collections import ChainMap, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
import torch
from torch import nn

from recoverrun.worker.context.attached_state import Attached
from recoverrun.worker.context.object_graph import holdings
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.replay import constant_leaves
from recoverrun.worker.replay.constant_leaves import leaves_of
from recoverrun.worker.replay.rank_constants import RankConstants, seen_by_contexts
from tests.unit.worker.replay.test_rank_constants import Two


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Two:
    return Two(monkeypatch)


class Meeting:
    """Two ranks of one process, each in a thread, whose frames hold what they were given."""

    def __init__(self, given: Callable[[int], Any]) -> None:
        self._met, self._said = Barrier(2, timeout=20), list[Any]([None, None])
        self.heard: list[Any] = []
        self.names = [{"here": given(rank)} for rank in (0, 1)]
        self.constants = [RankConstants(), RankConstants()]
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
    leaves = leaves_of(found, frozenset({__name__}), seen)
    assert not [leaf.name for leaf in leaves if leaf.name.startswith("here")]


def test_what_a_module_was_made_with_belongs_to_a_rank_until_the_script_writes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attached = Attached()
    monkeypatch.setattr(constant_leaves, "ATTACHED", attached)
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
    found = leaves_of(holdings([], frozenset()), frozenset(), ())
    names = {leaf.name for leaf in found}

    assert "os.environ.WEIGHT_OF_TEST" in names
    assert not {"os.environ.PATH", "os.environ.RANK"} & names
