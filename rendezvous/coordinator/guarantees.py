"""The promise of the run about a loss: the weakest of what its ranks can promise.

It is said once all have spoken, and again where a later step shows that it was too much.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from rendezvous.protocol.messages import Promise, Verdict
from rendezvous.protocol.records import Json, Record

WEAKEST_FIRST: tuple[Promise, ...] = (
    "unprotected",
    "rollback",
    "equal-count",
    "exact-samples",
)

WITHOUT_SURVIVORS = frozenset[Promise]({"unprotected", "rollback"})
"""No step outlives a loss."""


@dataclass(slots=True)
class Promises:
    verdicts: dict[int, Verdict] = field(default_factory=dict)  # by rank
    stated: Promise | None = None
    refused: bool = False  # one rank is enough: nobody could finish a step without it

    def hear(self, verdict: Verdict) -> None:
        before = self.verdicts.get(verdict.rank)
        self.verdicts[verdict.rank] = verdict
        said = {verdict.promise, before.promise if before is not None else verdict.promise}
        if said & WITHOUT_SURVIVORS:
            self.refused = any(one.promise in WITHOUT_SURVIVORS for one in self.verdicts.values())

    def statement(self, live_ranks: Collection[int]) -> Record | None:
        """The journal's line, once every live rank has spoken; None if there is nothing to say."""
        if self.stated == WEAKEST_FIRST[0] or len(self.verdicts) < len(live_ranks):
            return None
        live = sorted(live_ranks)
        if not live or any(rank not in self.verdicts for rank in live):
            return None
        worst = min(
            (self.verdicts[rank] for rank in live),
            key=lambda one: (WEAKEST_FIRST.index(one.promise), not one.reason, one.rank),
        )
        known = self.stated
        if known is not None and WEAKEST_FIRST.index(worst.promise) >= WEAKEST_FIRST.index(known):
            return None
        self.stated = worst.promise
        fields: dict[str, Json] = {"promise": worst.promise, "microbatches": worst.microbatches}
        if known is None and worst.script_steps > 0:
            # Of a later step than the first, what is said would be that step's.
            fields |= {"script_step": worst.script_step, "script_steps": worst.script_steps}
        return Record("promise.state", worst.reason, fields)
