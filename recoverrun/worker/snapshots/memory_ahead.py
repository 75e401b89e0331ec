"""Memory for snapshots is taken from the system before it is needed.

A thread does that beside training: the first use of memory takes longer than filling it, and what
is not there when the copier needs it is waited for at the fence.
"""

from contextlib import suppress

from recoverrun.worker.snapshots.copier import CopyThread
from rendezvous.bays.client import ANSWER_S, KeeperClient, SnapshotMissed


class MemoryAhead:
    """The bays of one worker, of which each is made ready once."""

    def __init__(self, client: KeeperClient, copier: CopyThread) -> None:
        self._client = client
        self._copier = copier
        self.ready = True  # no memory is being made for the first one
        self._begun = self._both = False

    @property
    def begun(self) -> bool:
        """True once memory was asked for."""
        return self._begun

    def begin(self, nbytes: int, *, within_s: float = ANSWER_S) -> None:
        """Make the first bay ready, for tensors of so many bytes. The keeper has `within_s` for its
        answer. What goes wrong is the copier's to tell.
        """
        self._begun, self.ready = True, False

        def touch() -> None:
            try:
                bay = self._client.reserve(nbytes + nbytes // 50, turn=None, within_s=within_s)
                bay.touch()
            finally:
                self.ready = True

        self._copier.ask(touch)

    def follow(self, nbytes: int) -> None:
        """The first snapshot is sealed: make the bay of the second one ready."""
        if self._both:
            return
        self._both = True

        def touch() -> None:
            with suppress(SnapshotMissed):  # whoever needs the memory asks again, and hears why
                self._client.reserve(nbytes, turn=None).touch()

        self._copier.ask(touch)
