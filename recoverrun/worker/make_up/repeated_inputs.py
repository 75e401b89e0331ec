"""The expectation that a rank goes on in its data from step to step, as all have in this run.

A rank's place in its data may be kept outside of the process, in a file or a database, and be moved
on behind the backward, which nobody runs for a lost rank. Then each of its microbatches is the same
as the one before, and nothing in the execution shows it. But survivors' are not. So each rank tells
a digest of its inputs in every vote. Where no rank ever had the same twice in a row, a lost rank's
microbatch with the inputs of the one before is not believed, unless a survivor's has them, too.

It says nothing where inputs stayed before (a whole data set in each step, a closure that is called
again), and nothing in the first steps.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ft_collectives.step.vote import INPUTS_MASK
from recoverrun.worker.make_up.distinct_inputs import LEAST, Kind, kind_of
from recoverrun.worker.tracking.microbatches import Microbatch

STAYED = (
    "rank {rank}'s microbatch {index} of step {step}, executed again here, has the same inputs as "
    "the one before, though until now no rank had the same twice in a row: its place in its data "
    "is unknown"
)


class ToldInputs(NamedTuple):
    """The inputs of one rank's microbatch of that index and kind, and of the one before."""

    step: int
    inputs: int
    before: int  # 0: not known, as of inputs

    @property
    def stays(self) -> bool:
        return self.inputs == self.before != 0

    @property
    def goes_on(self) -> bool:
        return 0 not in (self.inputs, self.before) and not self.stays


class RepeatedInputs:
    """The knowledge of one rank about the inputs of all, from step to step."""

    def __init__(self) -> None:
        self._told: dict[tuple[Kind, int, int], ToldInputs] = {}  # of rank and index
        self._went_on: Counter[Kind] = Counter()  # votes
        self._stayed: set[Kind] = set()

    def note(self, step: int, first: Microbatch, digests: Mapping[int, int]) -> None:
        """Ranks had inputs with these `digests` in their first microbatches. Nothing is lost."""
        kind = kind_of(first)
        told = [self._hear(step, kind, rank, 0, one) for rank, one in digests.items()]
        if any(one.stays for one in told):
            self._stayed.add(kind)
        elif told and all(one.goes_on for one in told):
            self._went_on[kind] += 1

    def stays(
        self,
        step: int,
        microbatch: Microbatch,
        rank: int,
        digest: int,
        others: Mapping[int, Sequence[int]],
    ) -> bool:
        """True if lost `rank` has the same inputs as in its microbatch before, though no rank ever
        had, and no survivor has. `microbatch` is our own one of the same index, `others` are the
        digests of survivors' own.
        """
        kind, at = kind_of(microbatch), microbatch.index
        theirs = self._hear(step, kind, rank, at, digest)
        own = [
            self._hear(step, kind, one, at, digests[at])
            for one, digests in others.items()
            if at < len(digests)
        ]
        expected = kind not in self._stayed and self._went_on[kind] >= LEAST
        return expected and theirs.stays and bool(own) and all(one.goes_on for one in own)

    def _hear(self, step: int, kind: Kind, rank: int, index: int, digest: int) -> ToldInputs:
        known = self._told.get((kind, rank, index), ToldInputs(step, 0, 0))
        before = known.inputs if known.step < step else known.before
        told = self._told[kind, rank, index] = ToldInputs(step, digest & INPUTS_MASK, before)
        return told
