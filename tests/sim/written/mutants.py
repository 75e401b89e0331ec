"""Planted bugs: rules of snapshots on disks that are broken one at a time, and a history that
notices.
"""

from recoverrun.launcher.node import snapshot_dir
from rendezvous.bays import part_files
from rendezvous.coordinator import written_snapshots
from rendezvous.membership import formation
from tests.sim.mutants import Mutant

BUGS = (
    Mutant(
        "each run counts its attempts from one", formation, "Formation._form",
        "1 + max(join.starts for join in joins)", "1 + self._attempt", "DISK-1", 2,
    ),
    Mutant(
        "an attempt has the number of the one before", formation, "Formation._form",
        "1 + max(join.starts for join in joins)", "max(1, *(join.starts for join in joins))",
        "DISK-1", 2,
    ),
    Mutant(
        "the step alone tells which is newer", snapshot_dir, "SnapshotDir.held",
        "on_disk(one.start, one.step)", "on_disk(1, one.step)", "DISK-1", 0,
    ),
    Mutant(
        "parts of one step are of one snapshot, whoever wrote them", snapshot_dir,
        "SnapshotDir.loads", "(one.start, one.step) == name", "one.step == name[1]", "DISK-2", 103,
    ),
    Mutant(
        "what does not fit is offered again", snapshot_dir, "SnapshotDir.without",
        "for one in self._found if one.name not in self._unfit", "for one in self._found",
        "DISK-2", 6,
    ),
    Mutant(
        "what this run has written is offered to the next one only", snapshot_dir,
        "SnapshotDir.hear", "in (written, *left)", "in left", "DISK-1", 1,
    ),
    Mutant(
        "nodes get their ranks as they come", formation, "Formation._placed",
        "if not (placed or self._former):", "if False:", "DISK-1", 3,
    ),
    Mutant(
        "it is on the disk once one node has written", written_snapshots, "WrittenSnapshots.hear",
        "if self._lacking:", "if False:", "DISK-1", 21,
    ),
    Mutant(
        "what is older goes before the newer one is whole", written_snapshots,
        "WrittenSnapshots.write", "keep=self._keep", "keep=(start, safe.step)", "DISK-1", 1,
    ),
    Mutant(
        "the one that is to stay goes as well", part_files, "drop_before",
        "(start, step) >= keep", "(start, step) > keep", "DISK-1", 1,
    ),
    Mutant(
        "a job that is to end does not wait for the disk", written_snapshots,
        "WrittenSnapshots.drained",
        "drain.awaits(self.newest, now) or self._order is not None", "False", "DRAIN", 1,
    ),
    Mutant(
        "nothing is written before a job is to end", written_snapshots, "WrittenSnapshots.write",
        "self._drain is None and now < self._next_at", "self._drain is None", "DISK-L", 0,
    ),
)  # fmt: skip
