"""Processes of this launcher that are no workers, and outlive an attempt: guardian and keeper."""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from recoverrun.config.run_config import RunConfig
from recoverrun.errors import RecoverrunError
from recoverrun.launcher.node.process import Guardian, children
from rendezvous.protocol.formation_messages import Start
from rendezvous.protocol.messages import Message
from rendezvous.protocol.records import Record, notice
from rendezvous.protocol.snapshot_messages import Held, Share
from rendezvous.transport.keys import JobKey
from rendezvous.transport.station import Station

if TYPE_CHECKING:
    from recoverrun.launcher.node.node_snapshots import NodeSnapshots  # what only snapshots need
    from recoverrun.launcher.node.snapshot_dir import SnapshotDir

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
        self._directory: SnapshotDir | None = None
        self._refusal = ""  # why there is none though one was given
        self._drained = False

    @property
    def pids(self) -> frozenset[int]:
        """The processes that must not be swept away."""
        return self._pids if self.keeper is None else self._pids | self.keeper.pids

    @property
    def held(self) -> tuple[Held, ...]:
        """The parts of snapshots that are on this node."""
        if self.keeper is not None:
            return self.keeper.held
        return () if self._directory is None else self._directory.held

    @property
    def starts(self) -> int:
        """The highest number of an attempt that has written snapshots to the directory, or may."""
        return 0 if self._directory is None else self._directory.starts

    def look(self, config: RunConfig, script: str, arguments: str) -> list[str]:
        """The sentences for the user about snapshots on the disk, before the job forms. `script`
        and a digest of its `arguments` tell which job it is.

        Raises RecoverrunError where it cannot be what the user wants.
        """
        if config.snapshots.directory is None:
            return []
        from recoverrun.launcher.node.snapshot_dir import SnapshotDir

        found = SnapshotDir(config.snapshots, script, arguments)
        if found.refusal:
            self._refusal = found.refusal
            return [f"no snapshots are written: {found.refusal}"]
        self._directory = found
        return found.notes

    @property
    def shares(self) -> tuple[Share, ...]:
        """The parity that is on this node."""
        return () if self.keeper is None else self.keeper.shares

    def read(self, ready: Collection[object]) -> list[Message]:
        """The messages of the keeper, of what is `ready`; also while there are no workers."""
        return [] if self.keeper is None else self.keeper.read(ready)

    def begin(
        self,
        config: RunConfig,
        start: Start,
        station: Station,
        record: Callable[[Record], None],
    ) -> "NodeSnapshots | None":
        """The keeper, for an attempt that begins; None where no snapshots are wanted. Raises
        RecoverrunError if a snapshot on the disk does not fit the job.
        """
        if self._directory is not None:
            self._directory.begin(start)
        if self.keeper is not None or config.recovery_policy.snapshot_every == "0":
            return self.keeper
        from recoverrun.launcher.node.node_snapshots import NodeSnapshots

        path = f"{self._mark.rpartition('/')[0]}/{KEEPER}"
        try:
            self.keeper = NodeSnapshots(
                path,
                config,
                self._key,
                station=station,
                record=record,
                directory=self._directory,
                undirected=self._refusal,
            )
        except (OSError, RecoverrunError) as error:
            record(notice(f"snapshots are off: no keeper can be started: {error}"))
        return self.keeper

    def may_drain(self) -> bool:
        """True, once, if the job may go on from a directory when it is started again."""
        may = self._directory is not None and self.keeper is not None and self.keeper.is_used
        may, self._drained = may and not self._drained, self._drained or may
        return may

    def end(self) -> None:
        """The launcher ends as it should."""
        if self.keeper is not None:
            self.keeper.end()
        self._guardian.dismiss()
