"""The status of a run whose journal is read in one go."""

from recoverrun.reports.status import Status, Watch
from rendezvous.journal.reader import RunLog


def status_of(log: RunLog, now: float, utc_offset_s: int = 0) -> Status:
    watch = Watch(run_dir=str(log.run_dir), unreadable=log.unreadable_places)
    watch.add(log.entries)
    return watch.status(now, utc_offset_s)
