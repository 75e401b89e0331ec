"""The messages of a worker to the coordinator by itself; those of the in-step machine are its own.

Each of these is said without waiting for an answer.
"""

from collections.abc import Callable
from typing import Protocol

from recoverrun.worker.tracking.loop_extent import UNSEEN, Extent
from rendezvous.protocol.layout import Layout
from rendezvous.protocol.messages import (
    Broken,
    Discord,
    Farewell,
    Message,
    Notice,
    Overdue,
    PeerFault,
    Promise,
    Topology,
    Verdict,
)


class Sends(Protocol):
    """The way to the launcher (`transport.worker_link`)."""

    def send(self, message: Message) -> bool:
        """Send from any thread, without a wait. False if the launcher does not read."""


class Reporter:
    """`generation` tells in which generation this rank is."""

    def __init__(
        self, link: Sends, rank: int, generation: Callable[[], int], *, exact: bool
    ) -> None:
        """`exact`: the user asked for sums that no loss changes."""
        self._exact = exact
        self._link = link
        self._rank = rank
        self._generation = generation

    def topology(self, strategy: str, layout: Layout) -> None:
        self._link.send(
            Topology(
                rank=self._rank,
                generation=self._generation(),
                strategy=strategy,
                replicas=layout.replicas,
            )
        )

    def promise(
        self, promise: Promise, microbatches: int, reason: str, extent: Extent = UNSEEN
    ) -> None:
        self._link.send(
            Verdict(
                rank=self._rank,
                generation=self._generation(),
                promise=promise,
                microbatches=microbatches,
                reason=reason,
                script_step=extent.step,
                script_steps=extent.steps,
            )
        )

    def downgraded(self, reason: str) -> None:
        words = f"from here on {'not exact, ' * self._exact}equal-count: {reason}"
        self.notice(words, "promise.weaken")

    def steered(self, reason: str) -> None:
        self.notice(reason, "promise.steer")

    def notice(self, reason: str, event: str = "notice.give") -> None:
        self._link.send(
            Notice(
                rank=self._rank,
                generation=self._generation(),
                event=event,
                reason=reason,
            )
        )

    def peer_fault(self, generation: int, reason: str) -> None:
        self._link.send(PeerFault(rank=self._rank, generation=generation, reason=reason))

    def broken(self, invariant: str, reason: str) -> None:
        self._link.send(
            Broken(
                rank=self._rank,
                generation=self._generation(),
                invariant=invariant,
                reason=reason,
            )
        )

    def discord(self, reason: str) -> None:
        self._link.send(Discord(rank=self._rank, generation=self._generation(), reason=reason))

    def overdue(self, generation: int, reason: str) -> None:
        self._link.send(Overdue(rank=self._rank, generation=generation, reason=reason))

    def farewell(self, step: int, generation: int, *, passed_by: str, failed: str) -> None:
        self._link.send(
            Farewell(
                rank=self._rank,
                generation=generation,
                step=step,
                passed_by=passed_by,
                failed=failed,
            )
        )
