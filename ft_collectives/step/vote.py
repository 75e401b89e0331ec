"""The vote that ends a step: one small collective over all live ranks.

A rank enters it only if it holds every bucket, so a rank that completes it knows that all members
do. It is the voting phase of a two-phase commit (Gray, "Notes on Data Base Operating Systems",
1978) as an all-reduce, with no coordinator. A ballot counts identities, and the sum of all ballots
shows on the data plane what is in the step (INV-1). Each rank also tells how many microbatches it
has taken, so that ranks that differ are found (`Tally`), a digest of the inputs of the first one,
and a word about what it wants done next: what all ranks must enter together is agreed on here.

Small ballots are exchanged all to all: half the messages of a reduction, and no rank waits for what
a third one sends first. gloo ends the process where the sizes of an operation differ, and ranks
that disagree about the length of a step must still find out. So ballots have a length that all have
agreed on in this generation; where equally many microbatches need more, all vote again with more.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from ft_collectives.communicators.c10d import Gloo, ReduceOp, Work, options
from ft_collectives.communicators.channel import Communicator
from ft_collectives.communicators.errors import Superseded
from ft_collectives.communicators.fabric import Fabric
from ft_collectives.communicators.gather_objects import gather

ROOM = 64
"""The length of a ballot, in numbers, is a multiple of this."""

EXCHANGED = 1 << 14
"""Ballots of up to this many numbers together are exchanged all to all; larger ones all-reduced."""


HALF_BITS = 12
HALF = (1 << HALF_BITS) - 1
"""Half of a digest, whose square fits into a number of a ballot. n numbers are equal if and only if
the square of their sum is n times the sum of their squares (Cauchy and Schwarz).
"""

WORDS = 4
"""A word is one of range(WORDS)."""

INPUTS = 2 + WORDS + 1
HEAD = INPUTS + 1 + 4
"""Numbers before the counts: microbatches, their square, words, whether lost ranks are known to be
ready, `INPUTS`, and the halves of the digest."""

INPUTS_MASK = (1 << 31) - 1
"""The bits of a digest of inputs that are told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The outcome of a vote: `counts` for each identity, and how many ranks `said` each word.

    So many know that lost ranks are ready to take part again: `invited`. `inputs` are the digests
    of those members that have told one, where ballots were exchanged.

    `unequal`: they have taken unequally many microbatches (`VoteGroup.taken` names them); then
    `counts` is empty.
    """

    counts: tuple[int, ...]
    said: tuple[int, ...]
    unequal: bool = False
    alike: bool = True  # all digests were the same
    invited: int = 0
    inputs: Mapping[int, int] = field(default_factory=dict)


class _BallotMemory:
    """Memory for `members` ballots of `length` numbers, used for vote after vote."""

    def __init__(self, members: int, length: int) -> None:
        self.members = members
        self.length = length
        given, got = bytearray(4 * length * members), bytearray(4 * length * members)
        self._given, self._got = memoryview(given).cast("i"), memoryview(got).cast("i")
        self.mine = torch.frombuffer(given, dtype=torch.int32)  # once for every member
        self.all = torch.frombuffer(got, dtype=torch.int32)

    def fill(self, ballot: Sequence[int]) -> None:
        padded = array("i", [*ballot, *[0] * (self.length - len(ballot))])
        self._given[:] = padded * self.members

    def rows(self, width: int) -> list[list[int]]:
        """Return the first `width` numbers of every member's ballot."""
        starts = range(0, self.length * self.members, self.length)
        return [self._got[start : start + width].tolist() for start in starts]


class VoteGroup:
    """The live ones of `ranks` (global), which vote together."""

    def __init__(self, fabric: Fabric, ranks: Sequence[int], name: str = "vote") -> None:
        """Open a channel of that name, which others may use between votes."""
        self._fabric = fabric
        self._concluded = 0
        self.channel = fabric.open(name, ranks, lambda: (self._concluded,))
        self._memory: _BallotMemory | None = None
        self._room = (0, ROOM)  # a generation, and the length of ballots that all know in it
        self._how = options("AllToAllOptions")

    def count(
        self, generation: int, ballot: Sequence[int], on_launch: Callable[[], None]
    ) -> tuple[int, ...]:
        """Return the sum of all members' ballots.

        `on_launch` is called once this rank's ballot is on its way. Raises Superseded if
        `generation` ends first, and TimedOut.
        """
        rows, _ = self._combined(generation, ballot, ReduceOp.SUM, on_launch)
        return tuple(map(sum, zip(*rows, strict=True)))

    def tally(
        self,
        generation: int,
        ballot: Sequence[int],
        on_launch: Callable[[], None],
        *,
        microbatches: int,
        word: int = 0,
        digest: int = 0,
        inputs: int = 0,
        invited: bool = False,
    ) -> Tally:
        """Count as `count`, among ranks that may have taken different numbers of `microbatches`.

        `word` is in range(WORDS); of `digest` the lower 2 * HALF_BITS bits are compared; members
        with `invited` are counted. `inputs` (up to INPUTS_MASK) are told, 0 if there are none.
        """
        room = self._room[1] if self._room[0] == generation else ROOM
        said = [int(word == one) for one in range(WORDS)]
        low, high = digest & HALF, digest >> HALF_BITS & HALF
        halves = (low, low**2, high, high**2)
        row = [microbatches, microbatches**2, *said, int(invited), inputs, *halves, *ballot]
        needed = _rounded(len(row))
        first = row if needed <= room else row[:HEAD]
        rows, whose = self._combined(generation, first, ReduceOp.SUM, on_launch, room)
        sums = tuple(map(sum, zip(*rows, strict=True)))
        words = sums[2 : 2 + WORDS]
        members = sum(words)
        if members * sums[1] != sums[0] ** 2:
            return Tally(counts=(), said=words, unequal=True)
        if needed > room:  # on all ranks, as they have taken equally many
            rows, whose = self._combined(generation, row, ReduceOp.SUM, lambda: None, needed)
            self._room = (generation, needed)
            sums = tuple(map(sum, zip(*rows, strict=True)))
        alike = all(members * sums[n + 1] == sums[n] ** 2 for n in (HEAD - 4, HEAD - 2))
        told = {rank: row[INPUTS] for rank, row in zip(whose, rows, strict=False) if row[INPUTS]}
        return Tally(
            counts=sums[HEAD:], said=words, alike=alike, invited=sums[2 + WORDS], inputs=told
        )

    def taken(self, generation: int, microbatches: int) -> tuple[dict[int, int], dict[int, int]]:
        """Return how many microbatches each member has taken, by rank, and since which generation
        it is there, 0 if it was never lost. Raises Superseded if `generation` ends first.
        """
        mine = {"taken": microbatches, "since": self._fabric.since()}
        said = gather(self._fabric, self.channel, generation, mine)
        taken = {rank: one["taken"] for rank, one in said.items()}
        return taken, {rank: one["since"] for rank, one in said.items()}

    def least(self, generation: int, value: int) -> int:
        """Return the least value of all members. Raises Superseded if `generation` ends first."""
        rows, _ = self._combined(generation, [value], ReduceOp.MIN, lambda: None)
        return min(row[0] for row in rows)

    def concluded(self, generation: int) -> int:
        """Return what members had concluded when `generation` began, 0 if none had.

        It is the same on all of them. Raises Superseded if `generation` is over.
        """
        now = self._fabric.meet(self.channel)
        if now.generation != generation:
            raise Superseded
        return max((found for (found,) in now.aligned), default=0)

    def conclude(self, generation: int, found: int) -> None:
        """Conclude `found` (> 0) in `generation`. Raises Superseded if that has ended.

        This holds the lock under which members exchange conclusions: no member hears otherwise.
        """
        with self._fabric.changed:
            if self._fabric.view.generation != generation:
                raise Superseded
            self._concluded = found

    def _combined(
        self,
        generation: int,
        ballot: Sequence[int],
        operation: object,
        on_launch: Callable[[], None],
        room: int = 0,
    ) -> tuple[list[list[int]], tuple[int, ...]]:
        """Return all members' ballots, and whose they are; or one that is their sum or minimum by
        `operation`, and nobody's.
        """
        now = self._fabric.meet(self.channel)
        if now.generation != generation:
            raise Superseded
        length = room or _rounded(len(ballot))
        if now.group is None:
            on_launch()
            return [list(ballot)], ()
        if len(now.members) * length <= EXCHANGED:
            return self._exchanged(now, ballot, length, on_launch), now.members
        mine = torch.zeros(length, dtype=torch.int64)
        mine[: len(ballot)] = torch.tensor(ballot, dtype=torch.int64)
        how = options("AllreduceOptions", reduceOp=operation)
        self._carry_out(generation, [mine], lambda group: group.allreduce([mine], how), on_launch)
        return [mine[: len(ballot)].tolist()], ()

    def _exchanged(
        self,
        now: Communicator,
        ballot: Sequence[int],
        length: int,
        on_launch: Callable[[], None],
    ) -> list[list[int]]:
        memory, self._memory = self._memory, None  # gloo has them while it may write late
        if memory is None or (memory.members, memory.length) != (len(now.members), length):
            memory = _BallotMemory(len(now.members), length)
        memory.fill(ballot)
        mine, theirs = memory.mine, memory.all
        self._carry_out(
            now.generation,
            [mine, theirs],
            lambda group: group.alltoall_base(theirs, mine, [], [], self._how),
            on_launch,
        )
        self._memory = memory
        return memory.rows(len(ballot))

    def _carry_out(
        self,
        generation: int,
        staged: list[torch.Tensor],
        launch: Callable[[Gloo], Work],
        on_launch: Callable[[], None],
    ) -> None:
        fabric = self._fabric
        fabric.memory.hold(staged)
        pending = fabric.launch(self.channel, generation, launch)
        on_launch()
        fabric.finish([pending], generation)
        fabric.memory.release(staged)


def _rounded(length: int) -> int:
    return max(1, -(-length // ROOM)) * ROOM
