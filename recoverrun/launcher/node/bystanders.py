"""Processes of this launcher that are no workers, and outlive an attempt: guardian and keeper."""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from recoverrun.config.run_config import RunConfig
from recoverrun.errors import RecoverrunError
from recoverrun.launcher.node.process import Guardian, children
from rendezvous.protocol.messages import Message
from rendezvous.protocol.records import Record, notice
from rendezvous.protocol.snapshot_messages import Held, Share
from rendezvous.transport.keys import JobKey
from rendezvous.transport.station import Station

if TYPE_CHECKING:
    from recoverrun.launcher.node.node_snapshots import NodeSnapshots  # what only snapshots need

KEEPER = "k"
"""The name of the keeper's socket beside that of the workers."""


class Bystanders:
    def __init__(self, mark: str, key: JobKey | None = None) -> None:
        """Made before there is any thread or socket: the guardian is a fork of this process."""
        others = children()  # of the program that we run in: none of our business
        self._mark = mark
        self._key = key
        self._guardian = Guardian(mark)
        self._pids = others | self._guardian.pids
        self.keeper: NodeSnapshots | None = None

    @property
    def pids(self) -> frozenset[int]:
        """Whom nobody may sweep away."""
        return self._pids if self.keeper is None else self._pids | self.keeper.pids

    @property
    def held(self) -> tuple[Held, ...]:
        """The parts of snapshots that are on this node."""
        return () if self.keeper is None else self.keeper.held

    @property
    def shares(self) -> tuple[Share, ...]:
        """The parity that is on this node."""
        return () if self.keeper is None else self.keeper.shares

    def read(self, ready: Collection[object]) -> list[Message]:
        """What the keeper has to tell, of what is `ready`; also while there are no workers."""
        return [] if self.keeper is None else self.keeper.read(ready)

    def begin(
        self, config: RunConfig, station: Station, record: Callable[[Record], None]
    ) -> "NodeSnapshots | None":
        """The keeper, for an attempt that begins; None where no snapshots are wanted."""
        if self.keeper is not None or config.recovery_policy.snapshot_every == "0":
            return self.keeper
        from recoverrun.launcher.node.node_snapshots import NodeSnapshots

        path = f"{self._mark.rpartition('/')[0]}/{KEEPER}"
        try:
            self.keeper = NodeSnapshots(path, config, self._key, station, record)
        except (OSError, RecoverrunError) as error:
            record(notice(f"snapshots are off: no keeper can be started: {error}"))
        return self.keeper

    def end(self) -> None:
        """The launcher ends as it should."""
        if self.keeper is not None:
            self.keeper.end()
        self._guardian.dismiss()
