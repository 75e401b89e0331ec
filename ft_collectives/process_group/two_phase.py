"""Collectives that all surviving members complete with one and the same result, or do again.

Theory of operation. Members first tell each other what they are asked for (see `call_check`). Then
an operation has two phases: the data, on private staging copies, then a vote (an all-reduce of one
number). Who completes the vote knows that all members hold the result. When
the generation changes in between, members exchange totals while they connect anew: operations
completed, the operation held, and the generation that its result is of. If anybody completed number
n, or all hold it of one generation, everyone uses what it holds; otherwise all do it again. So no
result has to be sent again, and no two members return from operation n with different results.

The generation is part of it because a rooted operation may complete on one member of generation g+1
before another has looked up from generation g: both then hold number n, with different members.

A result belongs to the members among whom it was made: they stay with it until it is delivered.
"""

import ctypes
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import NamedTuple, TypeVar

import torch

from ft_collectives.communicators.c10d import Gloo, Work, options
from ft_collectives.communicators.channel import Communicator, Totals
from ft_collectives.communicators.errors import MembersChanged, PeerLost, Superseded
from ft_collectives.communicators.fabric import Fabric
from ft_collectives.process_group.call_check import ROW, CallSignature, disagreement
from ft_collectives.process_group.substitution_policy import FindLostInputs, LostInputs

T = TypeVar("T")

Launch = Callable[[Communicator, list[torch.Tensor]], Sequence[Work]]
"""Begins the data phase on staging memory."""

Deliver = Callable[[list[torch.Tensor], Communicator], None]
"""Takes the staged results to where the script wants them."""


Fold = Callable[[list[torch.Tensor], Sequence[torch.Tensor]], None]
"""Adds the inputs of one more member to those of this one."""

SAMPLE = 1 << 16
"""Bytes of an input that are compared with those of other members."""

ATTEMPTS = 3
"""Failures among the same members before the failure is the script's: sizes that differ, say."""


class Contribution(NamedTuple):
    """What one member says before the data phase, where members are lost."""

    lost: int  # for so many lost members
    crc: int  # of its own inputs
    certain: int  # see `LostInputs`


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """The result of operation `number`, not known to be held by all."""

    number: int
    staged: list[torch.Tensor]
    among: Communicator


class TwoPhaseOperations:
    """The operations of one group of `ranks`; `group`, if any, is its communicator of the first
    generation, where it exists before it is protected.
    """

    def __init__(
        self,
        fabric: Fabric,
        name: str,
        ranks: Sequence[int],
        group: Gloo | None,
        limit: Callable[[], timedelta] | None = None,
    ) -> None:
        self.fabric = fabric
        self.ranks = tuple(ranks)
        self.completed = 0
        self._held: Held | None = None
        self._how = options("AllToAllOptions")
        self._turn = threading.Lock()  # operations have numbers: a script's threads take turns
        self._work = threading.local()  # what a thread does among the same members
        self._among: set[tuple[int, ...]] | None = None  # whom a `call` was among so far
        if group is None:
            self.channel = fabric.open(name, ranks, self._totals, limit=limit)
        else:
            self.channel = fabric.adopt(name, ranks, group, self._totals, limit=limit)

    def run(
        self,
        signature: CallSignature,
        inputs: Sequence[torch.Tensor],
        launch: Launch,
        deliver: Deliver,
        find_lost: FindLostInputs | None = None,
        fold: Fold | None = None,
    ) -> Communicator:
        """Stage `inputs`, run `launch` on the members, vote, then `deliver` the staged result.

        Where members are lost, `fold` adds what `find_lost` gives for all of them. Returns
        among whom the operation was, and whether it is whole.

        Raises RuntimeError if the members' signatures differ, what gloo says of the
        arguments, or if the members fail again and again.
        """
        with self._turn:
            self.channel.what = f"dist.{signature.call}"
            lending = find_lost if fold is not None else None
            held = self._hold(signature, inputs, launch, lending, fold)
            self.completed, self._held = held.number, None
            if self._among is not None:
                self._among.add(held.among.members)
        self._require_same(held.among.members)
        deliver(held.staged, held.among)
        return held.among

    def call(self, whole: Callable[[], T]) -> T:
        """Make a call of several operations that must all be among the same members.

        Where a loss comes between two of them, all is done again: every survivor knows among whom
        an operation was, so they agree on that. Raises what `whole` raises among the same members.
        """
        while True:
            self._among = among = set[tuple[int, ...]]()
            try:
                result = whole()
                if len(among) <= 1:
                    return result
            except Exception as error:  # anything may come of parts that do not fit together
                if len(among) <= 1 or isinstance(error, PeerLost):
                    raise
            finally:
                self._among = None

    @contextmanager
    def among_the_same(self) -> Iterator[None]:
        """In here this thread's operations must all be among the members of the first one.

        The first that is not raises MembersChanged, on all survivors: they know among whom it was.
        """
        self._work.members = ()
        try:
            yield
        finally:
            self._work.members = None

    def _require_same(self, members: tuple[int, ...]) -> None:
        before = getattr(self._work, "members", None)
        if before is None:
            return
        if before and members != before:
            raise MembersChanged(f"ranks {sorted({*before} - {*members})} are lost")
        self._work.members = members

    def _hold(
        self,
        signature: CallSignature,
        inputs: Sequence[torch.Tensor],
        launch: Launch,
        find_lost: FindLostInputs | None,
        fold: Fold | None,
    ) -> Held:
        """The result that all members hold."""
        number = self.completed + 1
        failures: Counter[tuple[int, ...]] = Counter()
        while True:
            now = self.fabric.meet(self.channel)
            if self._held is not None and self._settled(self._held, now):
                return self._held
            try:
                missing = len(self.ranks) - len(now.members)
                lost = find_lost(now.members) if missing and find_lost is not None else LostInputs()
                contributions = self._agree(signature, now, lost, digest(inputs) if missing else 0)
                alike = len(contributions) > 1 and len({one.crc for one in contributions}) == 1
                known = alike or all(one.certain for one in contributions)
                whole = known and sum(one.lost for one in contributions) == missing
                among = replace(now, whole=whole, alike=alike)
                folded = lost.inputs if whole else ()
                return self._attempt(number, among, inputs, launch, fold, folded)
            except Superseded as end:
                failures[now.members] += bool(end.reason)
                if failures[now.members] >= ATTEMPTS:
                    raise RuntimeError(f"collective failed: {end.reason}") from end

    def _agree(
        self, signature: CallSignature, now: Communicator, lost: LostInputs, crc: int
    ) -> list[Contribution]:
        """Exchange what members ask for and give, in their order.

        Raises RuntimeError if the members' calls differ: on all of them, and about the same.
        """
        own = Contribution(len(lost.inputs), crc, lost.certain)
        many, row = len(now.members), [*signature.row(), *own]
        mine = torch.tensor(row * many)
        rows = torch.empty_like(mine)
        self.fabric.hold([mine, rows])
        pending = self.fabric.launch(
            self.channel,
            now.generation,
            lambda group: group.alltoall_base(rows, mine, [], [], self._how),
        )
        self.fabric.finish([pending], now.generation)
        self.fabric.release([mine, rows])
        if now.group is None:
            return [own]
        said = rows.view(many, len(row)).tolist()
        words = disagreement([one[:ROW] for one in said], now.members)
        if words:
            raise RuntimeError(words)
        return [Contribution(*one[ROW:]) for one in said]

    def _attempt(
        self,
        number: int,
        now: Communicator,
        inputs: Sequence[torch.Tensor],
        launch: Launch,
        fold: Fold | None,
        lost: Sequence[Sequence[torch.Tensor]],
    ) -> Held:
        fabric, channel, generation = self.fabric, self.channel, now.generation
        staged = [_copy(tensor) for tensor in inputs]
        for one in lost:
            assert fold is not None, "who lends nothing folds nothing"
            fold(staged, one)
        fabric.hold(staged)  # gloo may write late into what is left behind
        begun = fabric.begin(channel, generation, lambda at: launch(at, staged))
        fabric.finish(begun, generation)
        fabric.release(staged)
        with fabric.changed:
            if fabric.view.generation != generation:
                raise Superseded
            self._held = held = Held(number, staged, now)
        vote = fabric.launch(channel, generation, lambda group: group.allreduce([torch.ones(1)]))
        fabric.finish([vote], generation)
        return held

    def _settled(self, held: Held, now: Communicator) -> bool:
        """Did the exchange at the last meeting show that what we hold is everybody's result?"""
        number = held.number
        if any(completed >= number for completed, _, _ in now.aligned):
            return True
        return bool(now.aligned) and {totals[1:] for totals in now.aligned} == {
            (number, held.among.generation)
        }

    def _totals(self) -> Totals:
        """Operations completed, the one held, and the generation of its result."""
        held = self._held
        if held is None:
            return (self.completed, self.completed, 0)
        return (self.completed, held.number, held.among.generation)


def digest(inputs: Sequence[torch.Tensor]) -> int:
    """Of what a member gives, or of the beginning of it where it is large."""
    crc = 0
    for tensor in inputs:
        plain = _copy(tensor)
        size = min(SAMPLE, plain.numel() * plain.element_size())
        if size:
            crc = zlib.crc32((ctypes.c_char * size).from_address(plain.data_ptr()), crc)
    return crc


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Private, contiguous and the host's: gloo takes memory as it lies."""
    if not tensor.is_cpu:
        return tensor.detach().to("cpu", memory_format=torch.contiguous_format)
    return tensor.detach().clone(memory_format=torch.contiguous_format)
