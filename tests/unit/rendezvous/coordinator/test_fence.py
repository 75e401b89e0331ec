"""The fence: a former process of a rank has no effect, and a newcomer little."""

from dataclasses import replace

import pytest

from rendezvous.protocol.arrival_messages import Ready
from rendezvous.protocol.hang_messages import Progress
from rendezvous.protocol.messages import (
    Broken,
    Committed,
    ContextBuffer,
    Discord,
    Exited,
    Farewell,
    Hello,
    Message,
    Notice,
    Overdue,
    Topology,
)
from rendezvous.protocol.views import View
from tests.unit.coordination import PAIRS, events, told, verdict
from tests.unit.returning_job import ReturningJob, joining

EXITED = Exited(rank=1, incarnation=0, node="a", code=-9, ours=False, error="", detected_s=0.0)
PROGRESS = Progress(
    rank=1, incarnation=0, serial=1, age_ms=5000, phase=1, step=1, index=0, waits=False
)
COMMITTED = Committed(rank=1, generation=1, step=1, done=((1, 0),), redone=(), total=3, digest="")


def returned() -> ReturningJob:
    """Replica 1 was lost and takes part again; nothing of its first step is done."""
    job = ReturningJob()
    job.lose(1)
    job.bring_back(1)
    assert job.live == [0, 1, 2]
    return job


@pytest.mark.parametrize(
    "message",
    [
        EXITED,
        PROGRESS,
        COMMITTED,
        Ready(rank=1, incarnation=0),
        Hello(rank=1, incarnation=0, pid=1, torch="t"),
        ContextBuffer(rank=1, incarnation=0, contexts=(b"old",)),
        Farewell(rank=1, generation=1, step=3),
        Overdue(rank=1, generation=1, reason="r"),
        Broken(rank=1, generation=1, invariant="INV-1", reason="r"),
        Discord(rank=1, generation=2, reason="r"),
        verdict(1, "unprotected"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_former_process_of_a_member_has_no_say(message: Message) -> None:
    job = returned()
    before = job.machine.snapshot()

    assert job.tell(message) == []
    assert job.machine.snapshot() == before
    assert job.machine.members.context_buffer.keys() == set()
    assert job.machine.overdue == set()
    assert job.machine.protected


def test_what_a_process_said_as_it_was_ready_counts_no_more_once_it_has_ended() -> None:
    job = ReturningJob()
    job.lose(1)
    job.start(1)
    job.kill(1)

    assert job.ready(1) == [] and joining(job.hold()) == {}


@pytest.mark.parametrize(
    "message",
    [
        Broken(rank=1, generation=2, invariant="INV-1", reason="r"),
        Discord(rank=1, generation=2, reason="r"),
        verdict(1, "unprotected"),
        Farewell(rank=1, generation=2, step=3),
        ContextBuffer(rank=1, incarnation=1, contexts=(b"nothing",)),
        replace(PROGRESS, incarnation=1),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_newcomer_says_nothing_that_concerns_the_others(message: Message) -> None:
    job = ReturningJob()
    job.lose(1)
    job.start(1)
    before = job.machine.snapshot()

    assert job.tell(message) == []
    assert job.machine.snapshot() == before
    assert job.machine.members.context_buffer.keys() == set()


def test_a_newcomer_that_sees_other_replicas_is_answered_and_not_believed() -> None:
    job = ReturningJob(PAIRS)
    job.lose(1)
    job.start(2, 3)
    alone = Topology(rank=2, generation=2, strategy="test", replicas=((2, 3),))

    assert told(job.tell(alone), View).keys() == {2}


def test_a_newcomer_may_leave_a_line_in_the_journal() -> None:
    job = ReturningJob()
    job.lose(1)
    job.start(1)

    assert events(job.tell(Notice(rank=1, generation=2, event="", reason="r"))) == ["notice.give"]


def test_contexts_of_a_lost_member_count_though_its_next_process_has_spoken() -> None:
    job = ReturningJob()
    job.lose(1)
    job.start(1)
    job.tell(ContextBuffer(rank=1, incarnation=0, contexts=(b"late",)))

    assert job.machine.members.context_buffer[1].contexts == (b"late",)


def test_contexts_of_a_member_that_came_back_count_when_it_is_lost_again() -> None:
    job = returned()
    job.tell(ContextBuffer(rank=1, incarnation=1, contexts=(b"new",)))
    job.kill(1)

    assert job.machine.members.context_buffer[1].contexts == (b"new",)


def test_an_end_that_is_told_twice_is_one() -> None:
    job = returned()
    job.kill(1)
    job.redo()
    job.start(1)
    job.ready(1)

    assert job.tell(replace(EXITED, incarnation=1)) == []
    assert joining(job.hold()) == dict.fromkeys((0, 1, 2), ((1,), 3))


def test_the_last_words_of_a_newcomer_that_has_ended_concern_nobody() -> None:
    job = ReturningJob()
    job.lose(1)
    job.start(1)
    job.kill(1)

    assert job.tell(Broken(rank=1, generation=2, invariant="INV-1", reason="r")) == []
