"""Starts of lost ranks: whole replicas whose processes are gone, later each time, not for ever."""

from rendezvous.coordinator.job_events import NodeLost, PlaceTaken, Tick
from rendezvous.coordinator.recovery_policy import RecoveryPolicy
from rendezvous.coordinator.revivals import START_AGAIN_S, TELL_S
from rendezvous.protocol.effects import Effect, KillRanks
from rendezvous.protocol.messages import Committed, Farewell
from rendezvous.protocol.records import Record
from tests.unit.coordination import PAIRS, events, fields_of
from tests.unit.returning_job import ReturningJob, invited, killed, started


def ranks(effects: list[Effect]) -> list[tuple[int, ...]]:
    return [order.ranks for order in started(effects)]


def test_a_lost_replica_is_started_once_all_of_its_processes_are_gone() -> None:
    job = ReturningJob(PAIRS)

    assert ranks(job.kill(2)) == []
    effects = job.kill(3)

    assert ranks(effects) == [(2, 3)]
    assert fields_of(effects, "replica.start") == {"slot": 1, "ranks": [2, 3], "number": 1}
    assert ranks(job.redo()) == []  # once


def test_the_second_start_is_after_two_seconds_the_third_after_twenty_and_no_fourth() -> None:
    job = ReturningJob()
    waited = []
    effects = job.kill(1)
    for _ in range(3):
        begun = job.now
        while not started(effects):
            deadline = job.machine.deadline()
            assert deadline is not None and deadline > job.now
            job.now = deadline
            effects = job.feed(Tick())
            job.redo() if job.machine.snapshot()["gathering"] else None
        waited.append(job.now - begun)
        job.start(1)
        effects = job.kill(1)

    assert waited == [0.0, 2.0, 20.0]
    assert events(effects) == ["notice.give"] and started(effects) == []
    assert job.machine.deadline() is None


def test_starts_of_more_than_an_hour_ago_do_not_count() -> None:
    job = ReturningJob()
    job.kill(1)
    job.redo()
    job.now = 3601.0
    job.start(1)

    assert ranks(job.kill(1)) == [(1,)]


def test_nothing_is_started_once_a_member_has_ended() -> None:
    job = ReturningJob(PAIRS)
    job.kill(2)
    job.tell(Farewell(rank=0, generation=job.generation, step=2))

    assert ranks(job.kill(3)) == []


def test_a_replica_whose_script_had_ended_is_not_started() -> None:
    job = ReturningJob(PAIRS)
    job.tell(Farewell(rank=2, generation=1, step=2))
    job.kill(3)

    assert ranks([*job.kill(2), *job.redo()]) == []


def test_a_replica_with_a_rank_of_a_lost_node_is_not_started() -> None:
    job = ReturningJob(PAIRS)
    effects = job.feed(NodeLost(node="b", ranks=(3,), reason="silent"))

    assert killed(effects) == [(2,)]
    assert ranks(job.kill(2)) == []


def test_a_replica_that_went_astray_gets_another_ones_state_as_others_do() -> None:
    job = ReturningJob()
    for rank in (0, 1, 2):
        digest = "b" if rank == 1 else "a"
        effects = job.tell(Committed(rank=rank, generation=1, step=1, done=((rank, 0),), redone=(),
                                     total=3, digest=digest))  # fmt: skip
    assert "replica.lost" in events(effects) and killed(effects) == [(1,)]

    assert ranks(job.kill(1)) == [(1,)]


def test_a_start_that_shows_no_process_is_ordered_again_by_the_same_birth() -> None:
    job = ReturningJob(PAIRS)
    job.kill(2, 3)
    first = started(job.redo())
    job.births[2] += 1
    job.greet(2)
    job.now = START_AGAIN_S
    again = started(job.feed(Tick()))
    job.births[3] += 1
    job.greet(3)
    job.now = 3 * START_AGAIN_S

    assert [(order.ranks, order.birth, order.often) for order in again] == [((2, 3), 1, 1)]
    assert first == [] and ranks(job.feed(Tick())) == []


def told_until(job: ReturningJob, end: float) -> list[tuple[float, str]]:
    """The sentences of that time, each with its moment; nothing happens but that time passes."""
    said = []
    while (deadline := job.machine.deadline()) is not None and deadline <= end:
        job.now = deadline
        effects = job.feed(Tick())
        said += [(job.now, one.reason) for one in effects if isinstance(one, Record)]
    return said


def test_processes_that_do_not_come_to_their_loop_are_told_of_each_time_they_took_twice_as_long(
) -> None:  # fmt: skip
    job = ReturningJob(PAIRS)
    job.lose(1)
    job.start(2, 3)
    job.ready(2)  # and the other one hangs in its first lines

    words = "replica 1 was started again {} s ago, and has not come to its training loop yet"
    assert told_until(job, 5 * TELL_S) == [
        (at, words.format(f"{at:.0f}")) for at in (TELL_S, 2 * TELL_S, 4 * TELL_S)
    ]
    job.ready(3)
    assert told_until(job, 20 * TELL_S) == []


def test_a_start_that_has_ended_is_not_told_of() -> None:
    job = ReturningJob(PAIRS)
    job.lose(1)
    job.start(2, 3)
    job.kill(2)

    assert told_until(job, 5 * TELL_S) == []


def test_an_end_that_shows_nothing_is_ordered_again() -> None:
    job = ReturningJob(PAIRS)
    job.kill(2, 3)
    job.redo()
    job.start(2)  # the order to start rank 3 is lost
    assert killed(job.kill(2)) == [(3,)]
    job.now = START_AGAIN_S
    again = job.feed(Tick())

    kills = [effect.kill for effect in again if isinstance(effect, KillRanks)]
    assert [(kill.ranks, kill.births) for kill in kills] == [((3,), (1,))]
    job.births[3] += 1
    # It never began: both start together, by another birth.
    job.kill(3)
    job.now += 3.0
    assert [order.birth for order in started(job.feed(Tick()))] == [2]


def test_the_end_of_a_former_process_is_not_that_of_the_one_that_follows() -> None:
    job = ReturningJob(PAIRS)
    job.kill(2, 3)
    job.redo()
    before = dict(job.births)
    job.start(2, 3)
    after, job.births = job.births, before

    assert job.kill(3) == []
    job.births = after
    assert [order for order in job.ready(2, 3) if isinstance(order, KillRanks)] == []


# ---------------------------------------------------------------------------------------- nodes


def node_lost(*lost: int) -> ReturningJob:
    """Of pairs; the node of these ranks is lost, and its mates are ended."""
    job = ReturningJob(PAIRS)
    (mates,) = killed(job.feed(NodeLost(node="b", ranks=lost, reason="silent"))) or [()]
    job.kill(*mates)
    job.redo()
    return job


def test_ranks_of_a_lost_node_start_with_their_mates_once_another_launcher_has_its_place() -> None:
    job = node_lost(3)
    wanted = job.machine.wants((3,))
    orders = started(job.feed(PlaceTaken(ranks=(3,))))

    assert wanted and [(order.ranks, order.birth) for order in orders] == [((2, 3), 1)]
    job.start(2, 3)
    assert invited(job.ready(2, 3)) == dict.fromkeys((0, 1, 4, 5), (2, 3))


def test_a_node_that_is_lost_after_its_replica_is_told_of() -> None:
    job = ReturningJob()
    job.kill(1)
    job.redo()

    effects = job.feed(NodeLost(node="b", ranks=(1,), reason="its launcher has ended"))

    assert fields_of(effects, "notice.give") == {"rank": -1}
    assert "node b is lost, too: its launcher has ended" in [
        effect.reason for effect in effects if isinstance(effect, Record)
    ]


def test_a_node_is_lost_on_the_way_with_the_newcomers_on_it() -> None:
    job = node_lost(3)
    job.feed(PlaceTaken(ranks=(3,)))
    job.start(2, 3)

    assert killed(job.feed(NodeLost(node="b", ranks=(3,), reason="silent"))) == [(2,)]
    job.now = 30.0
    assert started([*job.kill(2), *job.feed(Tick())]) == []
    assert ranks(job.feed(PlaceTaken(ranks=(3,)))) == []  # from now on it waits, as it came twice
    job.now = 32.0
    assert ranks(job.feed(Tick())) == [(2, 3)]


def test_a_launcher_with_a_place_is_told_which_other_replicas_were_started() -> None:
    job = node_lost(3)
    job.kill(4, 5)
    job.redo()
    orders = started(job.feed(PlaceTaken(ranks=(3,))))

    assert [(order.ranks, order.birth) for order in orders] == [((4, 5), 1), ((2, 3), 1)]


def test_nobody_is_wanted_for_ranks_that_train_or_will_not_come_back() -> None:
    job = node_lost(3)
    assert not job.machine.wants((0, 1))
    job.tell(Farewell(rank=2, generation=1, step=2))

    assert not job.machine.wants((3,))
    policy = RecoveryPolicy()
    assert not ReturningJob(policy=policy).machine.wants((1,))
