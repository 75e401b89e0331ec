"""What the run promises about a loss: the weakest of what its ranks can promise, said once."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from rendezvous.effects import Json, Record
from rendezvous.messages import Promise, Verdict

WEAKEST_FIRST: tuple[Promise, ...] = ("unprotected", "equal-count", "exact-samples")


@dataclass(slots=True)
class Promises:
    verdicts: dict[int, Verdict] = field(default_factory=dict)  # by rank
    stated: bool = False

    def hear(self, verdict: Verdict) -> None:
        self.verdicts[verdict.rank] = verdict

    @property
    def refused(self) -> bool:
        """One rank without protection is enough: nobody could finish a step without it."""
        return any(verdict.promise == "unprotected" for verdict in self.verdicts.values())

    def statement(self, live_ranks: Iterable[int]) -> Record | None:
        """The journal's line, once every live rank has spoken; None before and afterwards."""
        live = sorted(live_ranks)
        if self.stated or not live or any(rank not in self.verdicts for rank in live):
            return None
        self.stated = True
        worst = min(
            (self.verdicts[rank] for rank in live),
            key=lambda verdict: (WEAKEST_FIRST.index(verdict.promise), verdict.rank),
        )
        fields: dict[str, Json] = {"promise": worst.promise, "microbatches": worst.microbatches}
        return Record("promise.state", worst.reason, fields)
