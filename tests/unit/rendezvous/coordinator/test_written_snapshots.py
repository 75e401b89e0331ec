"""One snapshot is written at a time, by all, and an older one goes only when a newer is there."""

from rendezvous.coordinator.written_snapshots import (
    DRAIN_S,
    NEWER_S,
    WRITE_EVERY_S,
    WrittenSnapshots,
)
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.messages import Stop
from rendezvous.protocol.records import Record
from rendezvous.protocol.snapshot_messages import Persist, Persisted
from rendezvous.snapshots.identity import NONE, SnapshotId

BOTH = ("a", "b")


class Job:
    def __init__(self) -> None:
        self.written = WrittenSnapshots()
        self.start = 3

    def write(self, step: int, now: float) -> Persist | None:
        return self.written.write(SnapshotId(0, step), BOTH, self.start, now)

    def done(self, order: Persist, now: float, *names: str, failed: str = "") -> list[Record]:
        told = Persisted(
            attempt=order.attempt, step=order.step, start=order.start, nbytes=7, failed=failed
        )
        records = [self.written.hear(name, told, now) for name in names or BOTH]
        return [one for some in records for one in some]


def _written(job: Job, step: int, now: float) -> Persist:
    order = job.write(step, now)
    assert order is not None
    job.done(order, now)
    return order


def test_the_first_one_is_written_at_once_and_the_next_after_a_while() -> None:
    job = Job()
    first = _written(job, 5, 0.0)

    assert job.write(10, 1.0) is None
    second = job.write(15, WRITE_EVERY_S)

    assert second is not None
    assert (first.step, first.keep, second.step, second.keep) == (5, (0, 0), 15, (3, 5))


def test_it_is_there_once_all_have_said_so() -> None:
    job = Job()
    order = job.write(5, 0.0)
    assert order is not None

    half = job.done(order, 1.0, "a", "a")
    whole = job.done(order, 2.0, "b")

    assert half == []
    assert [(one.event, one.fields["bytes"]) for one in whole] == [("snapshot.persisted", 14)]
    assert job.written.newest == (0, 5)


def test_what_one_could_not_write_is_not_there_and_that_is_said_once() -> None:
    job = Job()
    said = []
    for number, step in enumerate((5, 10)):
        now = number * WRITE_EVERY_S
        order = job.write(step, now)
        assert order is not None
        said += job.done(order, now, "a", failed="No space left on device")

    assert [one.reason for one in said] == [
        "the snapshot of step 5 is not on the disk: No space left on device"
    ]
    assert job.written.newest == NONE


def test_a_late_word_of_an_earlier_writing_is_not_of_this_one() -> None:
    job = Job()
    early = job.write(5, 0.0)
    assert early is not None
    job.written.lose("a")
    later = job.write(10, WRITE_EVERY_S)
    assert later is not None

    assert job.done(early, WRITE_EVERY_S) == []
    assert job.written.newest == NONE


def test_nothing_safe_is_nothing_to_write() -> None:
    assert WrittenSnapshots().write(NONE, BOTH, 1, 0.0) is None


def _end(job: Job, now: float) -> tuple[int, str]:
    stop = job.written.drained(now)
    assert isinstance(stop, Stop)
    return stop.exit_code, stop.reason


def test_a_job_that_is_to_end_waits_for_one_snapshot_more() -> None:
    job = Job()
    _written(job, 5, 0.0)

    assert job.written.drain(SnapshotId(0, 10), "SIGTERM", 20.0)
    assert not job.written.drain(SnapshotId(0, 10), "SIGTERM", 20.0)
    assert job.write(10, 20.0) is None
    assert job.written.drained(21.0) is None
    order = job.write(13, 22.0)
    assert order is not None
    assert job.written.drained(22.0) is None
    job.done(order, 23.0)

    words = "SIGTERM: the snapshot of step 13 is on the disk, start the job again"
    assert _end(job, 23.0) == (ExitCode.REQUEUE, words)


def test_where_none_comes_the_one_that_is_safe_is_written() -> None:
    job = Job()
    job.written.drain(SnapshotId(0, 10), "SIGTERM", 0.0)

    order = job.write(10, NEWER_S)
    assert order is not None
    job.done(order, NEWER_S + 1)

    assert _end(job, NEWER_S + 1)[0] == ExitCode.REQUEUE


def test_a_disk_that_cannot_be_written_to_ends_the_job_as_without_it() -> None:
    job = Job()
    job.written.drain(SnapshotId(0, 10), "SIGTERM", 0.0)
    order = job.write(13, 1.0)
    assert order is not None
    job.done(order, 2.0, "a", failed="Input/output error")

    assert _end(job, 2.0) == (
        ExitCode.TERMINATED,
        "SIGTERM: no snapshot is on the disk, Input/output error",
    )


def test_a_disk_that_stalls_is_not_waited_for_for_ever() -> None:
    job = Job()
    job.written.drain(SnapshotId(0, 10), "SIGTERM", 0.0)
    assert job.write(13, 1.0) is not None

    assert job.written.drained(DRAIN_S - 1) is None
    assert _end(job, DRAIN_S)[0] == ExitCode.TERMINATED
