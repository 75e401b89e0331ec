"""Collectives that all surviving members complete with the same result, or repeat together.

Theory of operation. Members first exchange the signatures of their calls (see `call_check`). Then
an operation has two phases, as in two-phase commit: the data, on private staging copies, and a vote
(an all-reduce of one number). A member that completes the vote knows that all members hold the
result. When the generation changes in between, members exchange three totals while they connect
anew: the operations completed, the operation held, and the generation of the held result. If any
member completed operation n, or all hold it of the same generation, all use what they hold;
otherwise all repeat it. So no result is sent a second time, and no two members return from
operation n with different results.

The generation is compared because a rooted operation may complete on one member in generation g+1
while another still holds it from generation g: both hold operation n, over different members.

A result stays with the members among whom it was made until it is delivered.
"""

import ctypes
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import NamedTuple, NoReturn, TypeVar

import torch

from ft_collectives.communicators.c10d import Gloo, Work, options
from ft_collectives.communicators.channel import Communicator, Totals
from ft_collectives.communicators.errors import MembersChanged, PeerLost, Superseded
from ft_collectives.communicators.fabric import Fabric
from ft_collectives.process_group.call_check import ROW, CallSignature, disagreement
from ft_collectives.process_group.substitution_policy import FindLostInputs, LostInputs
from rendezvous.protocol.rank_differences import diverged

T = TypeVar("T")

Launch = Callable[[Communicator, list[torch.Tensor]], Sequence[Work]]
"""Begins the data phase on the staged tensors; returns gloo's works."""

Deliver = Callable[[list[torch.Tensor], Communicator], None]
"""Writes the staged results to the script's tensors."""


Fold = Callable[[list[torch.Tensor], Sequence[torch.Tensor]], None]
"""Adds the inputs of another member to the staged ones of this member, in place."""

SAMPLE = 1 << 16
"""Bytes of an input by which members compare their inputs."""

ATTEMPTS = 3
"""After so many failures among the same members the failure is an error of the script's call."""


class Contribution(NamedTuple):
    """The statement of one member before the data phase, where members are lost."""

    lost: int  # lost members whose inputs it knows
    crc: int  # of its own inputs
    certain: int  # see `LostInputs`
    flags: int


@dataclass(frozen=True, slots=True, eq=False)
class UnconfirmedResult:
    """The result of operation `number`, not known to be held by all."""

    number: int
    staged: list[torch.Tensor]
    among: Communicator


class TwoPhaseOperations:
    """The operations of one group of `ranks` (global), one at a time.

    `group` is its communicator of the first generation, if there is one already. `limit` returns
    how long the script waits in this group.
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
        self._held: UnconfirmedResult | None = None
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
        *,
        find_lost: FindLostInputs | None = None,
        fold: Fold | None = None,
    ) -> Communicator:
        """Stage `inputs`, run `launch` on the members, vote, then `deliver` the staged result.

        Where members are lost, `fold` adds what `find_lost` gives for all of them. Returns the
        communicator over which the operation was, which tells whether the result is whole.

        Raises RuntimeError if the members' signatures differ, if gloo refuses the arguments, or
        after `ATTEMPTS` failures; TimedOut; MembersChanged within `among_the_same`.
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

        The call is repeated where a loss comes between two of them: every survivor knows among
        whom each operation was, so all of them repeat it. Raises what `whole` raises while the
        members stay the same.
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
        """Keep all operations of this thread among the members of the first one.

        The first that is not raises MembersChanged, on all survivors.
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
    ) -> UnconfirmedResult:
        """Return the result that all members hold."""
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
                same_inputs = (
                    len(contributions) > 1 and len({one.crc for one in contributions}) == 1
                )
                known = same_inputs or all(one.certain for one in contributions)
                whole = known and sum(one.lost for one in contributions) == missing
                guessed = whole and any(one.flags for one in contributions)
                among = replace(now, whole=whole, guessed=guessed, same_inputs=same_inputs)
                folded = lost.inputs if whole else ()
                return self._attempt(number, among, inputs, launch, fold=fold, lost=folded)
            except Superseded as end:
                failures[now.members] += bool(end.reason)
                if failures[now.members] >= ATTEMPTS:
                    raise RuntimeError(f"collective failed: {end.reason}") from end

    def _agree(
        self, signature: CallSignature, now: Communicator, lost: LostInputs, crc: int
    ) -> list[Contribution]:
        """Exchange signatures and contributions; return the latter in the order of members.

        Raises RuntimeError if signatures differ, with the same sentence on all members.
        """
        own = Contribution(len(lost.inputs), crc, lost.certain, lost.flags)
        many, row = len(now.members), [*signature.row(), *own, self.fabric.since()]
        mine = torch.tensor(row * many)
        rows = torch.empty_like(mine)
        self.fabric.memory.hold([mine, rows])
        pending = self.fabric.launch(
            self.channel,
            now.generation,
            lambda group: group.alltoall_base(rows, mine, [], [], self._how),
        )
        self.fabric.finish([pending], now.generation)
        self.fabric.memory.release([mine, rows])
        if now.group is None:
            return [own]
        said = rows.view(many, len(row)).tolist()
        words = disagreement([one[:ROW] for one in said], now.members)
        if words:
            settle_disagreement(
                [(one[:ROW], one[-1]) for one in said], row[:ROW], self.fabric, words
            )
        return [Contribution(*one[ROW:-1]) for one in said]

    def _attempt(
        self,
        number: int,
        now: Communicator,
        inputs: Sequence[torch.Tensor],
        launch: Launch,
        *,
        fold: Fold | None,
        lost: Sequence[Sequence[torch.Tensor]],
    ) -> UnconfirmedResult:
        fabric, channel, generation = self.fabric, self.channel, now.generation
        staged = [_copy(tensor) for tensor in inputs]
        for one in lost:
            assert fold is not None, "who lends nothing folds nothing"
            fold(staged, one)
        fabric.memory.hold(staged)  # gloo may write late into what is left behind
        begun = fabric.begin(channel, generation, lambda at: launch(at, staged))
        fabric.finish(begun, generation)
        fabric.memory.release(staged)
        with fabric.changed:
            if fabric.view.generation != generation:
                raise Superseded
            self._held = held = UnconfirmedResult(number, staged, now)
        vote = fabric.launch(channel, generation, lambda group: group.allreduce([torch.ones(1)]))
        fabric.finish([vote], generation)
        return held

    def _settled(self, held: UnconfirmedResult, now: Communicator) -> bool:
        """True if the totals exchanged at the last meeting show that all use what they hold."""
        number = held.number
        if any(completed >= number for completed, _, _ in now.aligned):
            return True
        return bool(now.aligned) and {totals[1:] for totals in now.aligned} == {
            (number, held.among.generation)
        }

    def _totals(self) -> Totals:
        """Return the operations completed, the one held, and the generation of its result."""
        held = self._held
        if held is None:
            return (self.completed, self.completed, 0)
        return (self.completed, held.number, held.among.generation)


def settle_disagreement(
    said: Sequence[tuple[Sequence[int], int]], own: Sequence[int], fabric: Fabric, words: str
) -> NoReturn:
    """Members disagree: each has said so, and since which generation it is there.

    If those that are there longest agree, the others were not given all that they need: who says
    otherwise leaves, and what is under way is done again without it (Superseded). Else it is the
    script's (RuntimeError).
    """
    odd = diverged(
        {number: tuple(one) for number, (one, _) in enumerate(said)},
        {number: since for number, (_, since) in enumerate(said)},
    )
    if not odd:
        raise RuntimeError(words)
    if tuple(own) in {tuple(said[number][0]) for number in odd}:
        assert fabric.withdraw is not None, f"came back, and parted: {words}"
        fabric.withdraw(words)
    raise Superseded


def digest(inputs: Sequence[torch.Tensor]) -> int:
    """Return a CRC of `inputs`, of the first `SAMPLE` bytes of each."""
    crc = 0
    for tensor in inputs:
        plain = _copy(tensor)
        size = min(SAMPLE, plain.numel() * plain.element_size())
        if size:
            crc = zlib.crc32((ctypes.c_char * size).from_address(plain.data_ptr()), crc)
    return crc


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous copy in the memory of the host: gloo takes memory as it lies."""
    if not tensor.is_cpu:
        return tensor.detach().to("cpu", memory_format=torch.contiguous_format)
    return tensor.detach().clone(memory_format=torch.contiguous_format)
