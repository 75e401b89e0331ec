"""Ranks of one replica whose forked children meet anew, while their parents relay a store."""

import dataclasses
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
import torch
from torch._C._distributed_c10d import FakeProcessGroup
from torch.distributed import HashStore

from ft_collectives.communicators.c10d import ProcessGroup, connect
from ft_collectives.process_group.elastic import ElasticGroup
from recoverrun.worker.verification import replica_children
from recoverrun.worker.verification.forked_child import Ask, Plain, run_asking
from rendezvous.protocol.layout import Layout
from rendezvous.protocol.store_messages import StoreAnswer, StoreCall
from rendezvous.store.kv import Called, Store, Tick

pytestmark = [
    pytest.mark.usefixtures("streams_put_back", "_instances_put_back"),
    pytest.mark.skipif(sys.platform != "linux", reason="/proc is read"),
]

WITHIN_S, SOON_S = 20.0, 0.3
RANKS = (4, 5)
DEVICES = [torch.device("cpu"), torch.device("cuda")]
"""torch registers one gloo backend for all kinds that there may be."""


@pytest.fixture
def _instances_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ElasticGroup, "instances", [])


class Launcher:
    """The store that all ranks call, whoever of them waits in it."""

    def __init__(self) -> None:
        self.keys = set[str]()
        self._store, self._serials = Store(), itertools.count(1)
        self._answers: dict[int, StoreAnswer] = {}
        self._changed = threading.Condition()

    def call(self, call: StoreCall) -> StoreAnswer:
        with self._changed:
            self.keys.update(call.keys)
            serial = next(self._serials)
            self._take(Called(dataclasses.replace(call, serial=serial)))
            while serial not in self._answers:
                until = self._store.deadline()
                self._changed.wait(None if until is None else max(0.0, until - time.monotonic()))
                self._take(Tick())
            return self._answers.pop(serial)

    def _take(self, event: Called | Tick) -> None:
        for answer in self._store.step(event, time.monotonic()):
            self._answers[answer.serial] = answer
            self._changed.notify_all()


def of_backend(backend: Any, rank: int = 0, size: int = 1, name: str = "shards") -> Any:
    """A group as torch makes it."""
    group = ProcessGroup(rank, size)
    group._set_default_backend(ProcessGroup.BackendType.GLOO)
    for device in DEVICES:
        group._register_backend(device, ProcessGroup.BackendType.GLOO, backend)
    group._set_group_name(name)
    return group


def connected(store: HashStore, name: str, rank: int) -> ElasticGroup:
    place, limit = RANKS.index(rank), timedelta(seconds=WITHIN_S)
    made = connect(store, place, len(RANKS), timeout=limit, devices=())
    return ElasticGroup(of_backend(made, place, len(RANKS), name), RANKS)


def on_all(work: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(RANKS)) as pool:
        return list(pool.map(work, RANKS))


@pytest.fixture
def groups() -> Iterator[dict[int, list[ElasticGroup]]]:
    """Two groups of the same ranks, as each of these holds them."""
    made: dict[int, list[ElasticGroup]] = {rank: [] for rank in RANKS}
    for name in ("shards", "tensors"):
        store = HashStore()
        for rank, group in zip(RANKS, on_all(partial(connected, store, name)), strict=True):
            made[rank].append(group)
    yield made


def gathered(groups: list[ElasticGroup], rank: int) -> list[list[float]]:
    """The words of all members of each group, where this rank says its number and that of the
    group.
    """
    found = []
    for number, group in enumerate(groups):
        outs = [torch.zeros(1) for _ in RANKS]
        group.allgather([outs], [torch.tensor([rank + number / 10])]).wait()
        found.append([round(out.item(), 1) for out in outs])
    return found


def meeting(groups: list[ElasticGroup], rank: int, within_s: float, ask: Ask) -> Plain:
    """In a child."""
    replica_children.meet(groups, ask, rank=rank, generation=1, place="proof/7", within_s=within_s)
    return {"gathered": gathered(groups, rank)}


# --------------------------------------------------------------------------- meeting

ALL = [[4.0, 5.0], [4.1, 5.1]]


def test_children_hear_each_other_in_the_groups_that_their_parents_hold(
    groups: dict[int, list[ElasticGroup]],
) -> None:
    launcher = Launcher()

    def prove(rank: int) -> Plain:
        work = partial(meeting, groups[rank], rank, WITHIN_S)
        return run_asking(work, WITHIN_S, replica_children.relaying(launcher.call))

    assert on_all(prove) == [{"gathered": ALL}] * 2
    assert on_all(lambda rank: gathered(groups[rank], rank)) == [ALL] * 2, "as they were"
    places = {"/".join(key.split("/")[:4]) for key in launcher.keys}
    assert places == {"proof/7/shards/4", "proof/7/tensors/4"}, "of each group, and this replica"


def test_a_child_to_which_nobody_comes_gives_up(groups: dict[int, list[ElasticGroup]]) -> None:
    work = partial(meeting, groups[RANKS[0]], RANKS[0], SOON_S)

    found = run_asking(work, WITHIN_S, replica_children.relaying(Launcher().call))

    assert "timed out" in found["failed"]


CALLS = [
    StoreCall(
        rank=4, serial=0, generation=3, op="mset", keys=("a", "b"), values=(b"\x00\xff", b""),
        amount=0, timeout_s=2.5,
    ),
    StoreCall(
        rank=5, serial=0, generation=0, op="add", keys=("n",), values=(), amount=-7, timeout_s=0.0,
    ),
]  # fmt: skip
ANSWERS = [
    StoreAnswer(rank=4, serial=9, status="ok", values=(b"\xff", b""), number=0),
    StoreAnswer(rank=5, serial=8, status="superseded", values=(), number=-3),
]


@pytest.mark.parametrize(("wanted", "answer"), [*zip(CALLS, ANSWERS, strict=True)])
def test_calls_of_a_store_and_answers_are_on_the_other_side_what_they_were(
    wanted: StoreCall, answer: StoreAnswer
) -> None:
    asked: list[StoreCall] = []

    def call(one: StoreCall) -> StoreAnswer:
        asked.append(one)
        return answer

    def ask(said: Plain) -> Plain:
        return _travelled(replica_children.relaying(call)(_travelled(said)))

    assert replica_children.asking(ask)(wanted) == answer
    assert asked == [wanted]


def _travelled(said: Plain) -> Plain:
    travelled: Plain = msgpack.unpackb(msgpack.packb(said))
    return travelled


# --------------------------------------------------------------------------- who meets


def test_groups_of_one_replica_meet_in_the_order_in_which_they_were_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = [SimpleNamespace(ranks=ranks) for ranks in [(0, 1, 2, 3), (1, 0), (0,), (0, 2), (0, 1)]]
    monkeypatch.setattr(ElasticGroup, "instances", made)

    assert replica_children.inside(Layout(((0, 1), (2, 3)))) == [made[1], made[2], made[4]]
    assert replica_children.inside(Layout(((0,), (1,), (2,), (3,)))) == [made[2]]


def gloo() -> Any:
    return connect(HashStore(), 0, 1, timeout=timedelta(seconds=WITHIN_S), devices=())


@pytest.mark.parametrize("number", [0, 1, 2])
def test_those_whose_groups_are_all_of_gloo_can_meet(number: int) -> None:
    groups = [ElasticGroup(of_backend(gloo()), (0,)) for _ in range(number)]

    assert replica_children.can_meet(groups)


def test_one_group_of_another_backend_is_enough_that_they_cannot() -> None:
    other = FakeProcessGroup._create_internal(0, 1)
    groups = [ElasticGroup(of_backend(one), (0,)) for one in (gloo(), other)]

    assert not replica_children.can_meet(groups)


def test_no_child_meets_anybody_where_an_accelerator_is_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)

    assert not replica_children.can_meet([])


# --------------------------------------------------------------------------- alone


def test_a_child_that_is_alone_waits_for_nobody() -> None:
    [group] = alone = [ElasticGroup(of_backend(gloo()), (0,))]
    one, out = torch.ones(2), torch.zeros(2)
    replica_children.part(alone)

    for call in (
        lambda: group.allreduce([one]),
        lambda: group._allgather_base(out, one),
        lambda: group._reduce_scatter_base(out, one),
        lambda: group.broadcast([one], None),
        lambda: group.barrier(),
        lambda: group.send([one], 0, 0),
    ):
        with pytest.raises(
            replica_children.NeedsMates, match="talks to other ranks of its replica"
        ):
            call()
    assert group.getBackendName() == "gloo", "who it is"
