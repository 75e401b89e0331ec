"""The directory of `--snapshot-dir`, as the launcher of a node sees it.

What is there is offered as the node joins, and older than all that is in memory. What all ranks
begin from is decided as after a loss, and kept as a snapshot of the attempt that begins with it:
steps go on from it, so those that are taken then are newer. This process looks into the directory
once, before the job; all else its keeper does, and tells.

No clock tells which snapshot is newer. All attempts that write to a directory, of whatever run,
have a number, which is above all that any launcher has seen in its directory or has heard before.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from recoverrun.config.snapshot_options import SnapshotOptions
from recoverrun.errors import RecoverrunError
from rendezvous.bays import part_files
from rendezvous.bays.part_files import Name, StoredSnapshot
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.formation_messages import Start
from rendezvous.protocol.keeper_messages import Load, WriteOut, WrittenOut
from rendezvous.protocol.snapshot_messages import Held, Persist
from rendezvous.snapshots.identity import SnapshotId, on_disk, start_of
from rendezvous.snapshots.restore_plan import read, start_in

NOT_THERE = "--snapshot-resume=must: there is no snapshot in {directory}"
OTHER_SCRIPT = "the snapshots in {directory} are of {theirs}, and this job runs {mine}"
OTHER_ARGUMENTS = (
    "the script's arguments are not those of the snapshot in {directory}: what the script has read "
    "of them into variables is as it was then"
)
UNWRITABLE = "--snapshot-dir: {directory} cannot be written to: {why}"
OTHER_WORLD = (
    "the snapshot of step {step:,} in {directory} is for {there} ranks, {here} came: "
    "start as many, or give --snapshot-resume=never to begin from line 1"
)


class SnapshotDir:
    def __init__(self, wanted: SnapshotOptions, script: str, arguments: str) -> None:
        """For a job with this `script` and a digest of its `arguments`. Raises RecoverrunError
        where nothing can be written, or what must be there is not.
        """
        assert wanted.directory is not None, "only made where there is one"
        directory = self.path = wanted.directory
        self._script, self._arguments = script, arguments
        self.refusal = ""  # why nothing is read or written there
        self.notes: list[str] = []  # for the user
        self._found: list[StoredSnapshot] = []
        self._names: dict[tuple[int, int], set[Name]] = {}  # there, by (attempt, step)
        self._unfit: set[Name] = set()
        self._orders: dict[
            Name, tuple[Name, StoredSnapshot]
        ] = {}  # being written: what goes then, and it
        _try_out(directory)
        self.starts = part_files.starts(directory)  # the highest number of an attempt
        there = part_files.found(directory)
        if strange := next((one for one in there if one.script != self._script), None):
            self.refusal = OTHER_SCRIPT.format(
                directory=directory, theirs=strange.script, mine=self._script
            )
            if wanted.resume == "must":
                raise RecoverrunError(self.refusal, ExitCode.USAGE)
        elif wanted.resume != "never":
            self._found = there
        if self._found and self._found[0].arguments != self._arguments:
            self.notes.append(OTHER_ARGUMENTS.format(directory=directory))
        if wanted.resume == "must" and not self._found:
            raise RecoverrunError(NOT_THERE.format(directory=directory), ExitCode.USAGE)

    @property
    def held(self) -> tuple[Held, ...]:
        """The parts that are there, of whatever rank."""
        return tuple(
            (*on_disk(one.start, one.step), one.world, rank, nbytes)
            for one in self._found
            for rank, nbytes in sorted(one.parts.items())
        )

    def held_of(self, ranks: Iterable[int]) -> tuple[Held, ...]:
        """The parts that are there of these ranks."""
        wanted = set(ranks)
        return tuple(one for one in self.held if one[3] in wanted)

    def begin(self, start: Start) -> None:
        """An attempt begins. Raises RecoverrunError if it would do so anew beside what is there."""
        self.starts = max(self.starts, start.number)
        newest = next((one for one in self._found if one.is_whole), None)
        if newest is None or start.restore or start.attempt or newest.world == start.world_size:
            return
        words = OTHER_WORLD.format(
            step=newest.step, directory=self.path, there=newest.world, here=start.world_size
        )
        raise RecoverrunError(words, ExitCode.REQUEUE)

    def loads(self, restore: str, ranks: Iterable[int]) -> list[Load]:
        """The parts that the keeper has to load as an attempt begins from `restore`."""
        wanted, start = read(restore), start_in(restore)
        if wanted is None or start < 0:
            return []
        name = start, wanted.step
        folder = next((one.folder for one in self._found if (one.start, one.step) == name), None)
        self._names.setdefault((wanted.attempt, wanted.step), set()).add(name)
        return [
            Load(
                path=part_files.part_path(folder, rank), rank=rank,
                attempt=wanted.attempt, step=wanted.step,
            )
            for rank in ranks
            if folder is not None
        ]  # fmt: skip

    def without(self, unfit: Iterable[tuple[int, int]], ranks: Iterable[int]) -> list[str]:
        """Offer no snapshot any more that nobody is to have. Returns the files there, of these
        ranks, of those of them that are in memory: what this job has written or come from.
        """
        told = [SnapshotId(*one) for one in unfit]
        names = [name for one in told for name in sorted(self._names.get(one, ()))]
        self._unfit |= {*names, *((start_of(one), one.step) for one in told)}
        self._found = [one for one in self._found if one.name not in self._unfit]
        folders = [Path(part_files.folder_of(str(self.path), *name)) for name in names]
        return [part_files.part_path(folder, rank) for folder in folders for rank in ranks]

    def order(self, persist: Persist, world: int, parts: Mapping[int, int]) -> WriteOut:
        """The order to the keeper to write what it has of a snapshot: `parts`, bytes by rank."""
        found, name = SnapshotId(persist.attempt, persist.step), (persist.start, persist.step)
        self._names.setdefault(found, set()).add(name)
        folder = Path(part_files.folder_of(str(self.path), *name))
        self._orders[name] = persist.keep, StoredSnapshot(
            folder=folder, start=persist.start, step=persist.step, world=world,
            script=self._script, arguments=self._arguments, parts=parts,
        )  # fmt: skip
        told = part_files.manifest(
            script=self._script,
            arguments=self._arguments,
            world=world,
            step=found.step,
            start=persist.start,
        )
        return WriteOut(
            attempt=found.attempt,
            step=found.step,
            start=persist.start,
            directory=str(self.path),
            manifest=told,
            keep=persist.keep,
        )

    def hear(self, told: WrittenOut) -> None:
        """The keeper has written what it was told to, and removed what is older than it should
        keep; or it could not.
        """
        keep, written = self._orders.pop((told.start, told.step), ((0, 0), None))
        if written is None or told.failed:
            return
        left = (one for one in self._found if one.name >= keep and one.name != written.name)
        self._found = [one for one in (written, *left) if one.name not in self._unfit]


def _try_out(directory: Path) -> None:
    probe = directory / f".recoverrun-{os.getpid()}"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe.touch(mode=0o600)
        probe.unlink()
    except OSError as error:
        why = error.strerror or str(error)
        words = UNWRITABLE.format(directory=directory, why=why)
        raise RecoverrunError(words, ExitCode.USAGE) from error
