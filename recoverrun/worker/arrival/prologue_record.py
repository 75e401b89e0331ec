"""The record of results of the script's collectives before it trained, for a fresh process that
runs it again.

A newcomer is alone in every group between replicas. What its first lines ask the other ranks (the
name of a run, the longest sentence, who is where) is answered by what they have told each other
then: for most calls that is the same on all members of a group. It is kept at the level of tensors,
of which torch makes calls with objects, so nothing is unpickled here.

The record is a way: it holds what a process meets that goes straight to the present position. In a
loop that is under way these are the calls of its present iteration; of a loop that has ended, all.
In the loop that trains nothing is kept: a newcomer comes in at its top. One that has trained and is
over it passes over (`passed_loops`). But what an iterator has
called as a `for` asked it for items is kept as long as that `for` goes on, as a newcomer has its
own iterator pass the same items.
"""

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import msgpack
import torch

from ft_collectives.communicators.c10d import GroupMember, Work
from ft_collectives.process_group.call_check import ROW, words_of
from ft_collectives.process_group.call_record import RecordedGroup, RequestedCall
from ft_collectives.process_group.elastic import ElasticGroup
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.rng.streams import bytes_tensor, tensor_bytes
from recoverrun.worker.tracking.script_runtime import ScriptRuntime
from rendezvous.protocol.layout import Layout

RESULT_BYTES = 1 << 20
"""A larger result is not kept: parameters, which a newcomer is given later."""

ALL_BYTES = 16 << 20

MOST_CALLS = 4096
"""Of iterators no more are kept: a newcomer whose iterators make more leaves."""

OTHERWISE = "this process calls {here} in the group of ranks {ranks}, where the others {there}"
NOTHING = "called nothing more before the loop that trains"

Way = tuple[tuple[int, int, str], ...]
"""The loops around a call, the outermost first: number, iteration, id."""

Plain = tuple[str, tuple[int, ...], bytes]
"""A tensor: type, shape, bytes."""


@dataclass(slots=True, eq=False)
class PrologueCall:
    """One call."""

    ranks: tuple[int, ...]  # of its group
    row: list[int]  # what was asked for (`CallSignature`)
    way: Way = ()
    results: list[Plain] | None = None  # None: not kept, or not the same on all members
    nbytes: int = 0

    def pack(self) -> list[Any]:
        """Plain values for msgpack."""
        return [list(self.ranks), self.row, self.results]

    @staticmethod
    def unpack(packed: list[Any]) -> "PrologueCall":
        """Raises ValueError if `packed` is not what `pack` makes."""
        ranks, row, results = packed
        if len(row) != ROW or any(type(one) is not int for one in [*ranks, *row]):
            raise ValueError("not a call of a collective")
        kept = None if results is None else [_plain(*one) for one in results]
        return PrologueCall(tuple(ranks), row, results=kept)


def _plain(kind: Any, shape: Any, content: Any) -> Plain:
    if type(content) is not bytes or not isinstance(getattr(torch, kind, None), torch.dtype):
        raise ValueError("not the result of a collective")
    return kind, tuple(map(int, shape)), content


class PrologueRecord:
    """The record of one process. Implements `call_record.CallRecord`."""

    def __init__(self, runtime: ScriptRuntime) -> None:
        self._runtime = runtime
        self._thread = threading.get_ident()  # others call in no order
        self._trains = ""  # the loop within which nothing is kept
        self._entries: list[PrologueCall] = []
        self._told: dict[tuple[int, ...], list[PrologueCall]] | None = None  # in a newcomer
        self._layout: Layout | None = None  # there
        self._answered: dict[tuple[int, ...], int] = {}  # so many of each group
        self._root: int | None = None  # whom a call is from that is made as one who hears it

    # --------------------------------------------------------------------------- CallRecord

    @property
    def open(self) -> bool:
        runtime = self._runtime
        if threading.get_ident() != self._thread:
            return False
        if not runtime.active or runtime.gate.lone or runtime.acting_rank is not None:
            return False
        if self._told is not None:
            return True
        self._look(sys._getframe(1))
        around = runtime.loop_stack.around_fetches()
        if len(around) < len(runtime.stack) and len(self._entries) >= MOST_CALLS:
            return False
        return not any(one.loop.id == self._trains for one in around)

    def note(self, group: RecordedGroup, asked: RequestedCall, work: Work) -> None:
        entry = self._add(group, asked)
        outputs = asked.outputs
        if (
            entry is None
            or not outputs
            or self._told is not None
            or not all(map(_is_plain, outputs))
        ):
            return
        entry.nbytes = sum(one.numel() * one.element_size() for one in outputs)
        if entry.nbytes > RESULT_BYTES or sum(one.nbytes for one in self._entries) > ALL_BYTES:
            entry.nbytes = 0
        elif not group.protected and all(one.is_cpu for one in outputs):
            # Before the script can go on, and change what it was given.
            work.get_future().then(lambda done: _keep(entry, outputs))
        else:
            work.wait()
            _keep(entry, outputs)

    def answers(self, group: RecordedGroup, asked: RequestedCall) -> bool:
        told = None if self._told is None else self._told.get(group.ranks)
        if told is None or not self._spans(group.ranks):
            return False
        signature = asked.signature
        if self._root is not None:
            signature = replace(signature, root=self._root)
        at, row = self._answered.get(group.ranks, 0), signature.row()
        there = told[at] if at < len(told) else None
        if there is None or there.row != row:
            words = NOTHING if there is None else f"called {words_of(there.row)}"
            ranks = ", ".join(map(str, group.ranks))
            raise NotReachable(OTHERWISE.format(here=words_of(row), ranks=ranks, there=words))
        self._answered[group.ranks] = at + 1
        if there.results is None:
            return False
        for target, (kind, shape, content) in zip(asked.outputs, there.results, strict=True):
            target.detach().copy_(_tensor(kind, shape, content))
        entry = self._add(group, asked)
        assert entry is not None, "of a group between replicas"
        entry.row, entry.results, entry.nbytes = row, there.results, there.nbytes
        return True

    # --------------------------------------------------------------------------- in a survivor

    def close_in(self, loop_id: str) -> None:
        """The loop trains: nothing in it is kept from now on, nor what was."""
        self._trains = loop_id
        self._entries = [
            entry for entry in self._entries if not any(one[2] == loop_id for one in entry.way)
        ]

    def pack(self, layout: Layout) -> bytes:
        """The record for another rank of this rank's shard, as it comes to where we are."""
        self._look(sys._getframe(1))
        self._layout = layout
        levels = self._runtime.loop_stack.trained_before()
        passed = {number for level in levels for number in level}
        self._entries = [one for one in self._entries if not passed.intersection(_loops(one.way))]
        groups = {group.ranks for group in ElasticGroup.instances if self._spans(group.ranks)}
        entries = [entry.pack() for entry in self._entries if self._spans(entry.ranks)]
        body = [sorted(map(list, groups)), entries]
        return bytes(msgpack.packb(body, use_bin_type=True))

    # --------------------------------------------------------------------------- in a newcomer

    def answer_from(self, packed: bytes, layout: Layout) -> None:
        """Answer calls from now on, those that were answered already apart. A survivor may tell
        more later: the calls of iterations that have begun since.

        Raises ValueError if `packed` is not what `pack` makes.
        """
        groups, entries = msgpack.unpackb(packed, raw=False)
        told: dict[tuple[int, ...], list[PrologueCall]] = {tuple(ranks): [] for ranks in groups}
        for one in map(PrologueCall.unpack, entries):
            told.setdefault(one.ranks, []).append(one)
        self._told, self._layout = told, layout

    def arrived(self) -> None:
        """This process takes part: its calls are those of all."""
        self._told = None

    def objects(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `broadcast_object_list`: a root never reads what it sends. Where the answer is what
        the root of that time had sent, this one is to take it like any other member.
        """
        signature = inspect.signature(original)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if self._told is None:
                return original(*args, **kwargs)
            given = signature.bind(*args, **kwargs).arguments
            group = given.get("group") or GroupMember.WORLD
            root = _root_of(group, given)
            if root != group.rank() or not self._has_kept(group):
                return original(*args, **kwargs)
            other = next(place for place in range(group.size()) if place != root)
            given = {name: value for name, value in given.items() if name != "src"}
            with self._heard_from(root):
                return original(**{**given, "group_src": other})

        return wrapper

    def _has_kept(self, group: Any) -> bool:
        told = (self._told or {}).get(getattr(group, "ranks", ()), [])
        at = self._answered.get(getattr(group, "ranks", ()), 0)
        return at < len(told) and told[at].results is not None

    @contextmanager
    def _heard_from(self, root: int) -> Iterator[None]:
        self._root = root
        try:
            yield
        finally:
            self._root = None

    # --------------------------------------------------------------------------- the way

    def _add(self, group: RecordedGroup, asked: RequestedCall) -> PrologueCall | None:
        if not self._spans(group.ranks):
            return None
        self._look(sys._getframe(1))
        around = self._runtime.loop_stack.around_fetches()
        way = tuple((one.number, one.iteration, one.loop.id) for one in around)
        entry = PrologueCall(group.ranks, asked.signature.row(), way)
        self._entries.append(entry)
        return entry

    def _spans(self, ranks: tuple[int, ...]) -> bool:
        """True if it is, or may be, a group between replicas."""
        layout = self._layout or self._runtime.layout
        return layout is None or len({layout.slot(rank) for rank in ranks}) > 1

    def _look(self, frame: FrameType) -> None:
        """Drop what lies in iterations that are over: it is at the end."""
        self._runtime.loop_stack.drop_stale(frame)
        while self._entries and self._is_over(self._entries[-1].way):
            self._entries.pop()

    def _is_over(self, way: Way) -> bool:
        present = {one.number: one.iteration for one in self._runtime.stack}
        return any(present.get(number, at) != at for number, at, _ in way)


def _loops(way: Way) -> set[int]:
    return {number for number, *_ in way}


def _root_of(group: Any, given: dict[str, Any]) -> int:
    place, source = given.get("group_src"), given.get("src")
    if place is not None:
        return int(place)
    return group.ranks.index(source or 0) if isinstance(group, ElasticGroup) else int(source or 0)


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_quantized


def _keep(entry: PrologueCall, outputs: tuple[torch.Tensor, ...]) -> None:
    entry.results = [
        (str(one.dtype).removeprefix("torch."), tuple(one.shape), tensor_bytes(one.detach()))
        for one in outputs
    ]


def _tensor(kind: str, shape: tuple[int, ...], content: bytes) -> torch.Tensor:
    if not content:
        return torch.empty(shape, dtype=getattr(torch, kind))
    return bytes_tensor(content).view(getattr(torch, kind)).reshape(shape)
