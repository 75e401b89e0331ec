"""The account of one step: which replica has computed which identity, and if the step is whole.

INV-1: a committed step contains exactly its B identities, each once. The coordinator keeps one
ledger per step in flight; it believes what survivors report, never what it had heard before.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from rendezvous.protocol.quota import identities
from rendezvous.protocol.views import Identity


@dataclass(slots=True)
class Ledger:
    slots: tuple[int, ...]
    microbatches: int
    credits: dict[int, frozenset[Identity]] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """B, the microbatches of this step over all replicas, also those that are lost."""
        return len(self.slots) * self.microbatches

    def credit(self, replica: int, done: Iterable[Identity]) -> None:
        """Set what `replica` holds now, as a total: replaces what it was said to hold before."""
        self.credits[replica] = frozenset(done)

    def missing(self) -> tuple[Identity, ...]:
        held = frozenset().union(*self.credits.values())
        return tuple(
            identity
            for identity in identities(self.slots, self.microbatches)
            if identity not in held
        )

    def fault(self) -> str:
        """The reason why the credits can never make a whole step, or "" if they can."""
        home = frozenset(identities(self.slots, self.microbatches))
        seen: dict[Identity, int] = {}
        for replica in sorted(self.credits):
            for identity in sorted(self.credits[replica]):
                if identity not in home:
                    return f"replica {replica} computed {identity}, which is not of this step"
                if identity in seen:
                    return f"replicas {seen[identity]} and {replica} both computed {identity}"
                seen[identity] = replica
        return ""

    def whole(self) -> bool:
        return not self.fault() and not self.missing()
