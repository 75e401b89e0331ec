"""A node of a simulated job: the production code of its launcher and its keeper for a directory,
over a real one, and what its keeper has in memory.
"""

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

from recoverrun.config.snapshot_options import Resume, SnapshotOptions
from recoverrun.launcher.node.snapshot_dir import SnapshotDir
from rendezvous.bays import memory, part_files
from rendezvous.protocol.formation_messages import Join, Start
from rendezvous.protocol.keeper_messages import WriteOut, WrittenOut
from rendezvous.protocol.snapshot_messages import Held, Persist, Persisted
from rendezvous.snapshots import bay_header
from rendezvous.snapshots.bay_header import PAGE, BayHeader
from rendezvous.snapshots.identity import SnapshotId
from tests.sim.engine import Engine
from tests.sim.violation import demand
from tests.sim.written.book import State

_STATE = struct.Struct("<q")

GONE = "the snapshot is not in the memory of this node any more"


class Node:
    """`tell` takes what its launcher says to the coordinator."""

    def __init__(
        self, name: str, nproc: int, directory: Path, engine: Engine,
        tell: Callable[[str, Persisted], None],
    ) -> None:  # fmt: skip
        self.name, self.nproc, self.directory = name, nproc, directory
        self._engine, self._tell = engine, tell
        self.memory: dict[SnapshotId, State] = {}
        self.full = False  # the disk
        self._opened: SnapshotDir | None = None
        self._world = 0
        self._ranks = range(0)
        self._life = 0  # of the keeper

    # --------------------------------------------------------------------------- the launcher

    def look(self, resume: Resume) -> None:
        """A launcher begins; its keeper has nothing."""
        self.memory.clear()
        self.end_keeper()
        self._opened = SnapshotDir(SnapshotOptions(self.directory, resume), "x.py", "a")

    @property
    def _dir(self) -> SnapshotDir:
        assert self._opened is not None, "its launcher looks first"
        return self._opened

    def join(self, attempt: int) -> Join:
        ranks = range(len(self.memory) and self._ranks.start, self._ranks.stop)
        held: tuple[Held, ...] = tuple(
            (*found, self._world, rank, 1) for found in self.memory for rank in ranks
        )
        return Join(
            run_id="job", node=self.name, incarnation=self.name, node_rank=-1, nproc=self.nproc,
            version="1", attempt=attempt, holding=(*held, *self._dir.held),
            starts=self._dir.starts,
        )  # fmt: skip

    def begin(self, start: Start) -> dict[int, State]:
        """Begin; what its ranks have read from the directory."""
        self._world = start.world_size
        self._ranks = range(start.first_rank, start.first_rank + start.nproc)
        self._dir.begin(start)
        states = {}
        for load in self._dir.loads(start.restore, self._ranks):
            found = SnapshotId(load.attempt, load.step)
            demand(Path(load.path).exists(), "DISK-2", f"{load.path} is not there")
            states[load.rank] = self.memory[found] = _read(load.path, found)
        return states

    # --------------------------------------------------------------------------- the keeper

    def end_keeper(self) -> None:
        """End it: what it was writing stays half done; the next one has the same memory."""
        self._life += 1

    def persist(self, order: Persist) -> None:
        """The coordinator's."""
        found = SnapshotId(order.attempt, order.step)
        state = self.memory.get(found)
        if state is None:
            self._answer(order, GONE)
            return
        parts = dict.fromkeys(self._ranks, 1)
        self._write(self._dir.order(order, self._world, parts), order, state, 0, self._life)

    def _write(self, told: WriteOut, order: Persist, state: State, place: int, life: int) -> None:
        """One rank's part after the other, each takes its time; then what is older goes."""
        if life != self._life:
            return
        if self.full and self._engine.chance(0.5):
            self._answer(order, "No space left on device")
            return
        if place == len(self._ranks):
            part_files.drop_before(told.directory, told.keep, self._ranks)
            self._answer(order, "")
            return
        fd = _bay(self._ranks[place], self._world, SnapshotId(order.attempt, order.step), state)
        folder = part_files.folder_of(told.directory, told.start, told.step)
        part_files.write(folder, {self._ranks[place]: fd}, told.manifest)
        os.close(fd)
        delay_s = self._engine.jitter(3.0)
        self._engine.after(delay_s, self._write, told, order, state, place + 1, life)

    def _answer(self, order: Persist, failed: str) -> None:
        told = {"attempt": order.attempt, "step": order.step, "start": order.start, "nbytes": 1}
        self._dir.hear(WrittenOut(**told, failed=failed))
        self._tell(self.name, Persisted(**told, failed=failed))

    def unfit(self, found: SnapshotId) -> None:
        """Nobody is to have this snapshot; nothing else is in memory."""
        self.end_keeper()
        self.memory.clear()
        for path in self._dir.without([found], self._ranks):
            Path(path).unlink(missing_ok=True)

    def lose_disk(self) -> None:
        """Another machine is in its place from now on."""
        shutil.rmtree(self.directory)
        self.directory.mkdir(mode=0o700)


def _bay(rank: int, world: int, found: SnapshotId, state: State) -> int:
    content = _STATE.pack(state)
    header = BayHeader(
        rank=rank, world=world, id=found, pieces=len(content), table=0, image=0,
        notes_sum=crc32(b""),
    )  # fmt: skip
    fd = memory.make(bay_header.bay_bytes(len(content)))
    os.pwrite(fd, content, bay_header.content_begin(os.fstat(fd).st_size))
    os.pwrite(fd, bay_header.pack_sums([crc32(content)], found), PAGE)
    os.pwrite(fd, header.pack(), 0)
    return fd


def _read(path: str, found: SnapshotId) -> State:
    fd = part_files.load(path, found)
    try:
        begin = bay_header.content_begin(os.fstat(fd).st_size)
        state: State = _STATE.unpack(os.pread(fd, _STATE.size, begin))[0]
        return state
    finally:
        os.close(fd)
