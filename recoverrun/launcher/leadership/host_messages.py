"""The messages of the coordinator's host to launchers: that it lives, and that the job is over.

Workers may commit steps after that, while they are being ended: these belong in the journal, too.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from recoverrun.launcher.leadership.launchers import AttemptMembers
from recoverrun.launcher.leadership.newcomers import Newcomers
from recoverrun.launcher.network.frames import NOBODY, Envelope
from rendezvous.coordinator.coordinator import Closing, Coordinator, Event, Received, Stopping
from rendezvous.protocol.formation_messages import Beat, Refusal
from rendezvous.protocol.messages import Committed, Message, Stop
from rendezvous.protocol.records import Record


class HostMessages:
    """The messages of the launcher `own` to its `members` and to those who wait for a place."""

    def __init__(
        self,
        *,
        own: str,
        members: AttemptMembers,
        newcomers: Newcomers,
        record: Callable[[Record], None],
    ) -> None:
        self._own = own
        self._record = record
        self._members = members
        self._newcomers = newcomers
        self._coordinator: Coordinator | None = None
        self.stopped: Stop | None = None

    def beat(self, beat: Beat, *, members: bool) -> list[Envelope]:
        """Tell those who wait for a place that this launcher lives, and perhaps the members too.

        Members ask the register how it is, and need no other sign.
        """
        peers = self._newcomers.others if members else self._newcomers.names
        return [Envelope(peer, NOBODY, beat) for peer in peers]

    def stop(self, stop: Stop) -> list[Envelope]:
        """End the job, or its forming; only the first reason counts."""
        if self.stopped is not None:
            return []
        self.stopped = stop
        if stop.root_rank >= 0 and (root := self._members.host(stop.root_rank, evicted=True)):
            self.stopped = stop = replace(stop, node=root.name)
        refusal = Refusal(reason=stop.reason, exit_code=stop.exit_code)
        spares = self._newcomers.refuse(refusal)
        if self._coordinator is None:
            return spares + [Envelope(peer, NOBODY, refusal) for peer in self._newcomers.others]
        self._account(Stopping(stop), self._coordinator.now)
        others = self._newcomers.others
        self._members.uninformed = set(others)
        return spares + [Envelope(peer, NOBODY, stop) for peer in [*others, self._own]]

    def close(self, now: float) -> None:
        """Our workers have ended: write what is known of steps that not all ranks have told of."""
        if self.stopped is not None:
            self._account(Closing(), now)

    def _after_stop(self, sender: str, message: Message, stop: Stop, now: float) -> list[Envelope]:
        """A message of `sender`, in a job that is over."""
        member = self._members.known.get(sender)  # None of one that waits
        if isinstance(message, Committed) and member is not None and message.rank in member.ranks:
            self._account(Received(message=message), now)
        return self._members.remind(sender, message, stop)

    def _account(self, event: Event, now: float) -> None:
        """Tell the coordinator of a job that is over; all that comes of it is records."""
        if self._coordinator is None:
            return
        for effect in self._coordinator.step(event, now):
            assert isinstance(effect, Record), f"{effect} of a job that is over"
            self._record(effect)

    @property
    def refuses(self) -> bool:
        """True if others have asked for a place, and none will be given."""
        return self._newcomers.refusal is not None and bool(self._newcomers.waiting - {self._own})

    @property
    def misses_nodes(self) -> bool:
        """True if the job has begun, and nobody is there for one of its places."""
        begun = self._members.start is not None and self.stopped is None
        return begun and self._newcomers.free > 0

    @property
    def is_alone(self) -> bool:
        """True if no other launcher could go on without this one."""
        return not self._members.present - {self._own}

    @property
    def settled(self) -> bool:
        """True if every launcher that lives knows that the job is over."""
        return not self._members.uninformed

    def settles_without(self, ended: Iterable[str]) -> bool:
        """True if every launcher knows that the job is over but those that have `ended`: they need
        not be told any more.
        """
        self._members.uninformed.difference_update(ended)
        return self.settled
