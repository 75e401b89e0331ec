"""The moment from which recovery can help: every rank has said what it can promise.

Until then a rank that is lost leaves others waiting for it, in torch's own reduction or in the
agreement after it. What is lost between the first word of replicas and that moment (`starting`) is
mended by starting all ranks again. A rank that has promised needs nobody who is lost: so the last
one that has not may be lost like any other.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from rendezvous.coordinator.guarantees import Promises
from rendezvous.protocol.effects import Effect
from rendezvous.protocol.layout import Layout
from rendezvous.protocol.messages import Hello, PeerFault, Verdict
from rendezvous.protocol.records import Json, Record

DEATH_WAIT_S = 2.0
"""How long a collective that failed before recovery could begin waits for the death behind it."""


@dataclass(slots=True)
class Beginning:
    promises: Promises = field(default_factory=Promises)
    greeted: set[tuple[int, int]] = field(default_factory=set)  # (rank, incarnation)
    voted: bool = False  # a step after step 0 was committed: all ranks vote in those
    _hinted_in: int = 0  # the generation in which a collective was last said to have failed
    _hinted_at: float = 0.0  # when that was said first

    def greet(self, hello: Hello) -> list[Effect]:
        """The journal's line of a worker's first word."""
        if (hello.rank, hello.incarnation) in self.greeted:
            return []
        self.greeted.add((hello.rank, hello.incarnation))
        fields: dict[str, Json] = {"rank": hello.rank, "torch": hello.torch}
        return [Record("worker.hello", f"rank {hello.rank} has its hooks", fields)]

    def serves(self, layout: Layout | None, ranks: Collection[int]) -> bool:
        """True if `ranks` could go on alone."""
        spoken = self.voted or all(rank in self.promises.verdicts for rank in ranks)
        return self._several(layout) and spoken

    def awaited(self, layout: Layout | None, ranks: Collection[int]) -> bool:
        """True if there are replicas, and not all of `ranks` have said what they can promise."""
        return self._several(layout) and not self.serves(layout, ranks)

    def _several(self, layout: Layout | None) -> bool:
        return layout is not None and len(layout.replicas) > 1 and not self.promises.refused

    def hear(self, verdict: Verdict, live_ranks: Collection[int]) -> list[Effect]:
        self.promises.hear(verdict)
        return self.stated(live_ranks)

    def stated(self, live_ranks: Collection[int]) -> list[Effect]:
        """The journal's line of what the run promises, if there is something new to say."""
        record = self.promises.statement(live_ranks)
        return [] if record is None else [record]

    def hint(self, fault: PeerFault, generation: int, now: float) -> list[Effect]:
        """A collective failed; the journal's line of the first word of that in a generation."""
        if self._hinted_in == generation:
            return []
        self._hinted_in, self._hinted_at = generation, now
        return [Record("fault.hint", fault.reason, {"rank": fault.rank})]

    def overdue(self, now: float) -> bool:
        """True if no death has shown itself for as long as one may take."""
        return now >= self._hinted_at + DEATH_WAIT_S


def introduction(strategy: str, layout: Layout) -> Record:
    """The journal's line of what replicas there are."""
    replicas: list[Json] = [list(replica) for replica in layout.replicas]
    many = f"{len(layout.replicas)} replicas of {layout.shards} ranks"
    words = many if len(layout.replicas) > 1 else "one replica, nothing to survive on"
    fields: dict[str, Json] = {"strategy": strategy, "replicas": replicas}
    return Record("topology.learn", f"{strategy}: {words}", fields)
