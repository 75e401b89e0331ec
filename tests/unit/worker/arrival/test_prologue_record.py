"""Answers that two processes gave each other are given to a third that runs the same script."""

import multiprocessing
import os
import tempfile
import threading
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import msgpack
import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ft_collectives.communicators.fabric import Fabric
from ft_collectives.communicators.limits import TimeLimits
from ft_collectives.process_group import call_record
from ft_collectives.process_group.elastic import ElasticGroup
from ft_collectives.process_group.results import completed
from recoverrun.worker.arrival import prologue_record
from recoverrun.worker.arrival.prologue_record import PrologueRecord
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.groups import process_groups
from recoverrun.worker.tracking.script_runtime import ScriptRuntime
from rendezvous.protocol.layout import Layout
from rendezvous.protocol.views import View
from tests.unit.arrivals import Process

LAYOUT = Layout(((0,), (1,)))
WITHIN_S = 60.0
Script = Callable[["Rank"], Any]


class Rank:
    """One process of a script: its default group, and what is kept of its calls."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.runtime = ScriptRuntime(rank)
        self.record = PrologueRecord(self.runtime)
        kind: Any = ElasticGroup
        kind.record = self.record

    def join(self, store: Any, size: int, timeout: timedelta) -> None:
        """`size` is 1 for a newcomer, which is alone in the group of two."""
        place, native_rank = self.rank, self.rank if size > 1 else 0
        dist.init_process_group(
            "gloo", store=store, rank=native_rank, world_size=size, timeout=timeout
        )
        native = dist.group.WORLD
        self.group = ElasticGroup(native, (0, 1), place)
        process_groups._replace(native, self.group)
        table: Any = c10d._world.pg_group_ranks
        table[self.group] = {0: 0, 1: 1}

    def protect(self, *, alone: bool = False) -> None:
        members = (self.rank,) if alone else (0, 1)
        view = View(generation=1, live=(), live_ranks=members, losses=())
        limits = TimeLimits(lambda: timedelta(seconds=WITHIN_S))
        fabric = Fabric(
            rank=self.rank, view=view, store=lambda generation: None,
            changed=threading.Condition(), limits=limits, on_hint=lambda generation, reason: None,
        )  # fmt: skip
        self.group.protect(fabric, connected=not alone)


def run(work: Callable[..., Any], *given: Any) -> Connection:
    """In a process of its own."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    context.Process(target=_process, args=(work, theirs, *given), daemon=True).start()
    return ours


def _process(work: Callable[..., Any], end: Connection, *given: Any) -> None:
    torch.set_num_threads(1)  # those of the process that it was forked from are not here
    try:
        end.send(work(*given))
    except (NotReachable, RuntimeError) as error:
        end.send(error)
    end.close()
    os._exit(0)


def result(end: Connection) -> Any:
    assert end.poll(WITHIN_S), "a process did not end"
    found = end.recv()
    if isinstance(found, BaseException):
        raise found
    return found


def survivors(script: Script) -> list[tuple[Any, bytes]]:
    """Run `script` in two processes; return what each returned, and what it would tell."""
    with tempfile.TemporaryDirectory() as folder:
        ends = [run(_survivor, script, rank, os.path.join(folder, "store")) for rank in (0, 1)]
        return [result(end) for end in ends]


def _survivor(script: Script, rank: int, path: str) -> Any:
    member = Rank(rank)
    member.join(dist.FileStore(path, 2), 2, timedelta(seconds=WITHIN_S))
    returned = script(member)
    dist.barrier()  # nobody ends before the other has its results
    return returned, member.record.pack(LAYOUT)


def newcomer(script: Script, packed: bytes, rank: int) -> Any:
    """The result of `script` in a process that takes the place of `rank`."""
    return result(run(_newcomer, script, packed, rank))


def _newcomer(script: Script, packed: bytes, rank: int) -> Any:
    member = Rank(rank)
    member.join(dist.HashStore(), 1, timedelta(seconds=WITHIN_S))
    member.protect(alone=True)
    member.record.answer_from(packed, LAYOUT)
    original = dist.broadcast_object_list
    setattr(dist, "broadcast_object_list", member.record.objects(original))  # noqa: B010
    return script(member)


def prologue(member: Rank) -> list[Any]:
    """A prologue whose results only these processes could tell: they depend on who they are."""
    mine = torch.tensor([10 + os.getpid() % 7, member.rank])
    dist.all_reduce(mine, op=dist.ReduceOp.MAX)
    names: list[Any] = [f"run-{os.getpid()}" if member.rank == 0 else None, None]
    dist.broadcast_object_list(names, src=0)
    who: list[Any] = [None, None]
    dist.all_gather_object(who, ("host", os.getpid()))
    parts = torch.zeros(2, dtype=torch.bfloat16)
    dist.all_gather_into_tensor(parts, torch.tensor([os.getpid() % 5], dtype=torch.bfloat16))
    weights = torch.full((3, 2), float(os.getpid()))
    dist.broadcast(weights, src=1)
    return [mine.tolist(), names, who, parts.tolist(), weights.tolist()]


def protected_prologue(member: Rank) -> list[Any]:
    first = prologue(member)
    if not member.group.protected:
        member.protect()
    return first + prologue(member)


# --------------------------------------------------------------------------- answers


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("script", [prologue, protected_prologue])
def test_a_newcomer_is_told_what_the_others_told_each_other(script: Script, rank: int) -> None:
    (first, told), (second, same) = survivors(script)

    assert first == second
    assert newcomer(script, told, rank) == first
    assert newcomer(script, same, rank) == first


def in_place(member: Rank) -> list[list[float]]:
    found = []
    for number in range(50):
        total = torch.full((500,), float(number))
        dist.all_reduce(total)
        total += 1  # right away
        found.append([total.min().item(), total.max().item()])
    return found


def test_what_is_kept_is_the_result_and_not_what_the_script_makes_of_it() -> None:
    (first, told), _ = survivors(in_place)

    assert newcomer(in_place, told, 1) == first


def asynchronous(member: Rank) -> list[Any]:
    total = torch.tensor([float(os.getpid())])
    work = dist.all_reduce(total, async_op=True)
    work.wait()
    return total.tolist()


def test_an_asynchronous_call_is_kept_once_it_is_complete() -> None:
    (first, told), _ = survivors(asynchronous)

    assert newcomer(asynchronous, told, 0) == first


def another(member: Rank) -> None:
    value = torch.zeros(4)
    if dist.get_world_size() == 2 and member.group.protected:
        dist.broadcast(value, src=1)
    else:
        dist.all_reduce(value)


def test_another_call_than_theirs_ends_a_newcomer_with_both_named() -> None:
    (_, told), _ = survivors(another)

    with pytest.raises(NotReachable) as reason:
        newcomer(another, told, 0)

    assert str(reason.value) == (
        "this process calls dist.broadcast of 4 elements of torch.float32 with root 1 in the group "
        "of ranks 0, 1, where the others called dist.all_reduce of 4 elements of torch.float32 "
        "by SUM"
    )


def test_a_call_that_the_others_never_made_ends_a_newcomer() -> None:
    _, told = survivors(lambda member: None)[0]

    with pytest.raises(NotReachable, match=r"calls dist.all_reduce .* called nothing more before"):
        newcomer(another_reduction, told, 0)


def another_reduction(member: Rank) -> None:
    dist.all_reduce(torch.zeros(1))


def large_mean(member: Rank) -> list[float]:
    values = torch.full((1 + prologue_record.RESULT_BYTES // 4,), float(member.rank))
    dist.all_reduce(values)
    small = torch.tensor([member.rank + 1.0])
    dist.all_reduce(small)
    return [values[0].item() / 2, small.item()]


def test_a_large_result_is_not_kept_and_the_newcomer_has_its_own_mean() -> None:
    (first, told), _ = survivors(large_mean)

    assert first == [0.5, 3.0]
    assert newcomer(large_mean, told, 1) == [1.0, 3.0]
    assert len(told) < 1000


def shares(member: Rank) -> list[Any]:
    """Of calls that give each member something else, and of one after them."""
    out = torch.zeros(1)
    dist.reduce_scatter_tensor(out, torch.tensor([1.0, 2.0]))
    total = torch.tensor([member.rank + 1.0])
    dist.all_reduce(total)
    return [out.item(), total.item()]


def test_what_each_rank_has_of_its_own_is_not_taken_from_another() -> None:
    (first, told), (second, _) = survivors(shares)

    assert (first, second) == ([2.0, 3.0], [4.0, 3.0])
    assert newcomer(shares, told, 1) == [4.0, 3.0], "twice its own: it is alone, and a mean stays"


# --------------------------------------------------------------------------- the way

LOOPS = """
ask("before")
for warm in range(2):
    ask("warm", warm)
    if train:
        pass
for epoch in range(4):
    ask("epoch", epoch)
    for step in range(3):
        ask("step", epoch, step)
        train(step)
        told(epoch, step)
    ask("after", epoch)
"""


class Group:
    """Of two replicas; each call is complete as it returns."""

    protected = True

    def __init__(self, record: PrologueRecord) -> None:
        self.ranks: tuple[int, ...] = (0, 1)
        self.record = record
        self.names: list[str] = []

    def ask(self, *what: Any) -> None:
        """One call, whose number of elements says which."""
        self.names.append(" ".join(map(str, what)))
        tensor = torch.zeros(len(self.names))
        if self.record.open:
            self.record.note(self, call_record.all_reduce([tensor]), completed([tensor]))

    def kept(self) -> list[str]:
        return [self.names[entry.row[2] - 1] for entry in self.record._entries]


@pytest.mark.parametrize("closed", [False, True])
def test_the_record_is_the_straight_way_to_where_the_script_is(closed: bool) -> None:
    found: dict[tuple[int, int], list[str]] = {}

    def told(epoch: int, step: int) -> None:
        record.pack(LAYOUT)
        found[epoch, step] = group.kept()
        if closed:
            record.close_in("s.py:9")

    process = Process(LOOPS, 0, 0, ask=lambda *what: group.ask(*what), told=told)
    record = PrologueRecord(process.runtime)
    group = Group(record)
    process.run()

    start = ["before", "warm 0", "warm 1"]
    steps = [] if closed else ["step 2 1"]
    assert found[0, 0] == [*start, "epoch 0", "step 0 0"]
    assert found[2, 1] == [*start, "epoch 2", *steps]


class Asks(Group):
    """Is answered, and notes what it was given."""

    def asked(self, elements: int) -> list[float] | None:
        tensor = torch.zeros(elements)
        asked = call_record.all_reduce([tensor])
        return tensor.tolist() if self.record.answers(self, asked) else None


def told_of(*values: float, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A survivor's record of one call for each value, on as many elements as came before it."""
    record = PrologueRecord(ScriptRuntime(0))
    group = Group(record)
    monkeypatch.setattr(ElasticGroup, "instances", [group])
    for number, value in enumerate(values, 1):
        tensor = torch.full((number,), value)
        record.note(group, call_record.all_reduce([tensor]), completed([tensor]))
    return record.pack(LAYOUT)


def test_with_its_place_a_newcomer_is_told_what_has_been_called_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = PrologueRecord(ScriptRuntime(1))
    group = Asks(record)
    record.answer_from(told_of(5.0, 6.0, monkeypatch=monkeypatch), LAYOUT)
    assert group.asked(1) == [5.0]

    record.answer_from(told_of(5.0, 8.0, 9.0, monkeypatch=monkeypatch), LAYOUT)

    assert group.asked(2) == [8.0, 8.0]
    assert group.asked(3) == [9.0] * 3
    assert [entry.results is not None for entry in record._entries] == [True] * 3, "for the next"
    record.arrived()
    assert group.asked(4) is None


def test_a_group_of_which_the_teller_is_no_member_is_not_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = PrologueRecord(ScriptRuntime(1))
    group = Asks(record)
    group.ranks = (1, 2)
    record.answer_from(told_of(5.0, monkeypatch=monkeypatch), Layout(((0,), (1,), (2,))))

    assert group.asked(1) is None


def test_calls_within_one_replica_are_not_told() -> None:
    record = PrologueRecord(ScriptRuntime(0))
    group = Group(record)
    group.ask("inside")

    inside, between = Layout(((0, 1), (2, 3))), Layout(((0,), (1,)))

    assert len(record.pack(inside)) < len(record.pack(between))


def test_all_results_together_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prologue_record, "ALL_BYTES", 24)
    record = PrologueRecord(ScriptRuntime(0))
    group = Group(record)

    for number in range(5):  # of 4, 8, 12 bytes and so on
        group.ask(number)

    assert [entry.results is not None for entry in record._entries] == [True] * 3 + [False] * 2


@pytest.mark.parametrize(
    "packed",
    [[1, 2], [[[0, 1]], [[[0, 1], [1], None]]], [[], [[[0, 1], [0] * 5, [["ones", [], b""]]]]]],
)
def test_what_is_no_record_is_refused(packed: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        PrologueRecord(ScriptRuntime(0)).answer_from(msgpack.packb(packed), LAYOUT)
