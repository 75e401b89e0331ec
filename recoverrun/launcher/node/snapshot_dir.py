"""The directory of `--snapshot-dir`, as the launcher of a node sees it.

What is there is offered as the node joins, as parts of snapshots of the first attempt: those that
are taken in it have higher steps, so they are newer. What all ranks begin from is decided as after
a loss. This process looks into the directory once, before the job; all else its keeper does.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from recoverrun.config.snapshot_options import SnapshotOptions
from recoverrun.errors import ExitCode, RecoverrunError
from rendezvous.bays import part_files
from rendezvous.bays.part_files import Written
from rendezvous.protocol.formation_messages import Start
from rendezvous.protocol.keeper_messages import Load, WriteOut
from rendezvous.protocol.snapshot_messages import Held, Persist
from rendezvous.snapshots.identity import SnapshotId
from rendezvous.snapshots.restore_plan import read

ATTEMPT = 0
"""The one in which a job begins."""

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
        """Of a job with this `script` and a digest of its `arguments`. Raises RecoverrunError where
        nothing can be written, or what must be there is not.
        """
        assert wanted.directory is not None, "only made where there is one"
        directory = self.path = wanted.directory
        self._script, self._arguments = script, arguments
        self.refusal = ""  # why nothing is read or written there
        self.notes: list[str] = []  # for the user
        self._found: list[Written] = []
        _try_out(directory)
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
            (ATTEMPT, one.step, one.world, rank, nbytes)
            for one in self._found
            for rank, nbytes in sorted(one.parts.items())
        )

    def check(self, start: Start) -> None:
        """Raises RecoverrunError if the job would begin anew beside what is there."""
        newest = next((one for one in self._found if one.is_whole), None)
        if newest is None or start.restore or start.attempt or newest.world == start.world_size:
            return
        words = OTHER_WORLD.format(
            step=newest.step, directory=self.path, there=newest.world, here=start.world_size
        )
        raise RecoverrunError(words, ExitCode.REQUEUE)

    def loads(self, attempt: int, restore: str, ranks: Iterable[int]) -> list[Load]:
        """What the keeper has to have from there as an attempt begins from `restore`."""
        wanted = read(restore)
        if attempt != ATTEMPT or wanted is None or wanted.attempt != ATTEMPT:
            return []
        folder = next((one.folder for one in self._found if one.step == wanted.step), None)
        return [
            Load(
                path=part_files.part_path(folder, rank), rank=rank,
                attempt=wanted.attempt, step=wanted.step,
            )
            for rank in ranks
            if folder is not None
        ]  # fmt: skip

    def order(self, persist: Persist, world: int) -> WriteOut:
        """What the keeper is told to write."""
        found = SnapshotId(persist.attempt, persist.step)
        told = part_files.manifest(
            script=self._script,
            arguments=self._arguments,
            world=world,
            step=found.step,
            stamp=persist.stamp,
        )
        return WriteOut(
            attempt=found.attempt,
            step=found.step,
            stamp=persist.stamp,
            directory=str(self.path),
            manifest=told,
            keep=persist.keep,
        )


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
