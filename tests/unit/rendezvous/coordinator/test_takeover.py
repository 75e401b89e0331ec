"""The memory of launchers, and how another coordinator begins with it."""

from dataclasses import replace

from rendezvous.coordinator.coordinator import Coordinator, Received, Tick
from rendezvous.coordinator.recovery_policy import USUAL, RecoveryPolicy
from rendezvous.coordinator.standing import STEPS_KEPT, Memory, Standing, Vacancy
from rendezvous.coordinator.takeover import new_coordinator
from rendezvous.protocol.arrival_messages import Ready, StartAgain
from rendezvous.protocol.effects import Effect, KillRanks, StartRanks, StopJob, ToRank
from rendezvous.protocol.messages import (
    Committed,
    ContextBuffer,
    Exited,
    Farewell,
    Hello,
    Message,
    Topology,
)
from rendezvous.protocol.records import Record
from rendezvous.protocol.views import View
from tests.unit.coordination import applied, verdict, waits

REPLICAS = ((0,), (1,), (2,))


def committed(rank: int, step: int) -> Committed:
    return Committed(
        rank=rank, generation=1, step=step, done=((rank, 0),), redone=(), total=3, digest=""
    )


def exited(rank: int, code: int) -> Exited:
    return Exited(
        rank=rank, incarnation=0, node="n", code=code, ours=False, error="", detected_s=0.0
    )


def topology(rank: int) -> Topology:
    return Topology(rank=rank, generation=1, strategy="fake", replicas=REPLICAS)


def standing(*said: Message, view: View | None = None) -> Standing:
    memory = Memory()
    for message in said:
        memory.said(message)
    if view is not None:
        memory.heard(view)
    return memory.standing


def begun(rank: int, *said: Message, view: View | None = None) -> Standing:
    """Of a launcher whose worker has said what it promises."""
    return standing(topology(rank), verdict(rank), *said, view=view)


def vacancy(*lost: int) -> Vacancy:
    nodes = (("node0", lost, "it is gone"),) if lost else ()
    return Vacancy(term=2, world=(0, 1, 2), policy=USUAL, lost=nodes, reason="its launcher is gone")


def test_a_memory_does_not_grow_with_the_run() -> None:
    memory = Memory()
    for step in range(100):
        memory.said(committed(0, step))
        memory.heard(View(generation=step, live=(), live_ranks=(0,), losses=()))

    assert len(memory.standing) == 2 * STEPS_KEPT


def test_a_successor_begins_a_generation_of_its_own_without_the_lost_node() -> None:
    standings = [begun(1), begun(2)]

    coordinator, effects = new_coordinator(vacancy(0), standings, 5.0)

    told = {e.rank: e.message for e in effects if isinstance(e, ToRank)}
    assert coordinator.generation == 1001
    assert sorted(told) == [1, 2]
    assert all(isinstance(m, View) and m.live == (1, 2) for m in told.values())


def test_of_two_nodes_that_were_lost_at_once_nobody_has_to_know_a_promise() -> None:
    lost = (("node0", (0,), "it is gone"), ("node1", (1,), "it is gone, too"))
    both = Vacancy(term=2, world=(0, 1, 2), policy=USUAL, lost=lost, reason="another one")

    coordinator, effects = new_coordinator(both, [begun(2)], 5.0)

    assert coordinator.members.live_ranks == {2}
    assert not any(isinstance(effect, StopJob) for effect in effects)


def test_a_successor_of_whom_nobody_was_lost_gathers_all_the_same() -> None:
    standings = [begun(rank) for rank in (0, 1, 2)]

    coordinator, effects = new_coordinator(vacancy(), standings, 5.0)

    views = [e.message for e in effects if isinstance(e, ToRank) and isinstance(e.message, View)]
    assert [(view.generation, view.live) for view in views] == [(1001, (0, 1, 2))] * 3
    assert coordinator.decisions.gathering is not None


def test_replicas_that_had_left_stay_out() -> None:
    view = View(generation=2, live=(0, 2), live_ranks=(0, 2), losses=(1,))
    standings = [begun(1, exited(1, -9)), begun(2, view=view)]

    coordinator, effects = new_coordinator(vacancy(0), standings, 5.0)

    assert coordinator.members.live == (2,)
    assert not any(isinstance(effect, StopJob) for effect in effects)


def _losses(effects: list[Effect]) -> list[tuple[object, str]]:
    """Replicas whose loss is recorded, and why."""
    return [
        (effect.fields["slot"], effect.reason)
        for effect in effects
        if isinstance(effect, Record) and effect.event == "replica.lost"
    ]


def test_a_loss_that_no_step_has_made_good_is_told_by_the_successor_and_recovered() -> None:
    view = View(generation=2, live=(0, 2), live_ranks=(0, 2), losses=(1,))
    both = replace(vacancy(0), lost=(("a", (0,), "it is gone"), ("b", (1,), "it has ended")))
    last = Committed(
        rank=2, generation=1001, step=5, done=tuple((n, 0) for n in range(3)), redone=((1, 0),),
        total=3, digest="",
    )  # fmt: skip

    coordinator, effects = new_coordinator(both, [begun(2, committed(2, 4), view=view)], 5.0)
    after = coordinator.step(Received(message=last), 6.0)

    assert _losses(effects) == [
        (1, "node b is lost: it has ended"),
        (0, "node a is lost: it is gone"),
    ]
    (recovery,) = [e for e in after if isinstance(e, Record) and e.event == "recovery.done"]
    assert (recovery.fields["slots"], recovery.fields["total_ms"]) == ([0, 1], 1000.0)


def test_a_loss_that_a_step_has_made_good_is_not_told_again() -> None:
    view = View(generation=2, live=(0, 2), live_ranks=(0, 2), losses=(1,))
    since = replace(committed(2, 4), generation=2)

    _, effects = new_coordinator(vacancy(0), [begun(2, since, view=view)], 5.0)

    assert _losses(effects) == [(0, "node node0 is lost: it is gone")]


def test_a_loss_that_is_told_again_names_the_end_of_the_process() -> None:
    view = View(generation=2, live=(0, 2), live_ranks=(0, 2), losses=(1,))

    _, effects = new_coordinator(vacancy(0), [begun(1, exited(1, -9)), begun(2, view=view)], 5.0)

    assert _losses(effects)[0] == (1, "rank 1 was ended by signal 9")


def test_a_job_whose_rest_has_ended_well_ends_well() -> None:
    ends = [Farewell(rank=r, generation=1, step=4) for r in (1, 2)]
    standings = [begun(e.rank, e, exited(e.rank, 0)) for e in ends]

    _, effects = new_coordinator(vacancy(0), standings, 5.0)

    stops = [effect.stop.exit_code for effect in effects if isinstance(effect, StopJob)]
    assert stops == [0]


def test_without_protection_the_loss_ends_the_job() -> None:
    _, effects = new_coordinator(vacancy(0), [standing(), standing()], 5.0)

    stops = [effect.stop.exit_code for effect in effects if isinstance(effect, StopJob)]
    assert stops == [137]


def test_a_successor_of_a_job_that_starts_stops_the_attempt() -> None:
    standings = [begun(0), begun(1), standing(topology(2))]

    coordinator, effects = new_coordinator(vacancy(), standings, 5.0)

    stops = [effect.stop.root_rank for effect in effects if isinstance(effect, StopJob)]
    assert stops == [-1]
    assert coordinator.starting


def test_generations_of_two_tenures_never_meet() -> None:
    first = Coordinator(world=(0, 1, 2))
    first.step(Received(message=topology(1)), 0.0)

    second, _ = new_coordinator(vacancy(0), [begun(1, view=first.view), begun(2)], 5.0)

    assert first.generation < 1001 <= second.generation


# ------------------------------------------------------------------------------------- arrivals

RETURNS = RecoveryPolicy(returns=True)
WITHOUT_1 = View(generation=2, live=(0, 2), live_ranks=(0, 2), losses=(1,))
BACK = View(generation=3, live=(0, 1, 2), live_ranks=(0, 1, 2), losses=(), joined=(1,), from_step=4)
LEFT = ContextBuffer(rank=1, incarnation=0, contexts=(b"old",))


def of_rank_1(*said: Message, heard: tuple[View, ...] = (WITHOUT_1,)) -> Memory:
    """The launcher of rank 1, which was lost in generation 1."""
    memory = Memory()
    for message in (topology(1), verdict(1), LEFT, exited(1, -9)):
        memory.said(message)
    for view in heard:
        memory.heard(view)
    for message in said:
        memory.said(message)
    return memory


def succeed(*standings: Standing) -> tuple[Coordinator, list[Effect]]:
    found = Vacancy(term=2, world=(0, 1, 2), policy=RETURNS, lost=(), reason="its launcher is gone")
    return new_coordinator(found, standings, 5.0)


def test_who_had_joined_is_a_member_of_the_view_that_is_taken_over() -> None:
    memory = of_rank_1(Hello(rank=1, incarnation=1, pid=2, torch="t"), Ready(rank=1, incarnation=1))
    memory.heard(BACK)

    coordinator, effects = succeed(begun(0, view=BACK), memory.standing, begun(2, view=BACK))

    assert coordinator.members.live_ranks == {0, 1, 2}
    assert not any(isinstance(message, Exited | ContextBuffer) for message in memory.standing)
    views = [e.message for e in effects if isinstance(e, ToRank) and isinstance(e.message, View)]
    assert {(view.joined, view.generation) for view in views} == {((), coordinator.generation)}
    assert coordinator.members.came_back == {1: BACK.generation}


def test_what_was_said_by_the_process_that_joined_is_kept() -> None:
    memory = of_rank_1(Hello(rank=1, incarnation=1, pid=2, torch="t"))
    again = Exited(rank=1, incarnation=1, node="n", code=-9, ours=False, error="", detected_s=0.0)
    memory.said(again)  # before its launcher hears that it has joined
    memory.heard(BACK)

    coordinator, _ = succeed(begun(0, view=BACK), memory.standing, begun(2, view=BACK))

    assert again in memory.standing
    assert coordinator.members.live_ranks == {0, 2}


def test_who_was_never_told_that_it_had_joined_is_lost() -> None:
    memory = of_rank_1(Hello(rank=1, incarnation=1, pid=2, torch="t"), Ready(rank=1, incarnation=1))

    coordinator, _ = succeed(begun(0, view=BACK), memory.standing, begun(2, view=BACK))

    assert coordinator.members.live_ranks == {0, 2}


def test_a_late_view_takes_no_memory_of_a_later_end() -> None:
    memory = of_rank_1(heard=(replace(BACK, generation=7, joined=()),))
    memory.heard(BACK)

    assert exited(1, -9) in memory.standing


def test_an_invitation_is_void_and_who_is_ready_says_it_again() -> None:
    memory = of_rank_1(Hello(rank=1, incarnation=1, pid=2, torch="t"), Ready(rank=1, incarnation=1))
    coordinator, effects = succeed(
        begun(0, view=WITHOUT_1), memory.standing, begun(2, view=WITHOUT_1)
    )
    generation = coordinator.generation
    reports = [
        waits(rank, generation=generation, step=3) for rank in (0, 2)
    ]  # fmt: skip
    for message in (*reports, *(applied(r, generation=generation, step=3) for r in (0, 2))):
        coordinator.step(Received(message=message), 6.0)
    invited = coordinator.step(Received(message=Ready(rank=1, incarnation=1)), 7.0)

    assert [e.start.ranks for e in effects if isinstance(e, StartRanks)] == [(1,)]
    assert {e.rank for e in invited if isinstance(e, ToRank)} == {0, 2}


def test_a_newcomer_that_hangs_is_ended_by_the_successor_too() -> None:
    memory = of_rank_1(Hello(rank=1, incarnation=1, pid=2, torch="t"))
    memory.heard(BACK)
    coordinator, _ = succeed(begun(0, view=BACK), memory.standing, begun(2, view=BACK))
    deadline = 5.0 + RETURNS.arrival_s

    effects = coordinator.step(Tick(), deadline)

    assert [e.kill.ranks for e in effects if isinstance(e, KillRanks)] == [(1,)]
    assert coordinator.members.live_ranks == {0, 2}


def test_ends_of_long_ago_are_not_those_of_newcomers() -> None:
    pairs = ((0, 1), (2, 3))
    found = Vacancy(term=2, world=(0, 1, 2, 3), policy=RETURNS, lost=(), reason="it is gone")
    without = View(generation=2, live=(0,), live_ranks=(0, 1), losses=(2,))
    standings = []
    for rank in found.world:
        memory = Memory()
        memory.said(Topology(rank=rank, generation=1, strategy="fake", replicas=pairs))
        memory.said(verdict(rank))
        if rank > 1:
            memory.said(replace(exited(rank, -9)))
            memory.said(Ready(rank=rank, incarnation=1))
        memory.heard(without)
        standings.append(memory.standing)

    coordinator, effects = new_coordinator(found, standings, 5.0)

    assert [e.start.ranks for e in effects if isinstance(e, StartRanks)] == [(2, 3)]
    assert not [effect for effect in effects if isinstance(effect, KillRanks)]
    assert coordinator.members.live_ranks == {0, 1}


def test_a_replica_of_which_one_rank_was_not_told_is_ended_with_its_newest_processes() -> None:
    pairs = ((0, 1), (2, 3))
    found = Vacancy(term=2, world=(0, 1, 2, 3), policy=RETURNS, lost=(), reason="it is gone")
    back = View(
        generation=3, live=(0, 1), live_ranks=(0, 1, 2, 3), losses=(), joined=(2, 3), from_step=4
    )
    standings = []
    for rank in found.world:
        memory = Memory()
        memory.said(Topology(rank=rank, generation=1, strategy="fake", replicas=pairs))
        memory.said(verdict(rank))
        memory.heard(StartAgain(ranks=(2, 3), birth=1, often=1, reason="it was lost"))
        if rank > 1:
            memory.said(exited(rank, -9))
            memory.said(Ready(rank=rank, incarnation=1))
        if rank != 3:
            memory.heard(back)
        standings.append(memory.standing)

    coordinator, effects = new_coordinator(found, standings, 5.0)

    assert coordinator.members.live_ranks == {0, 1}
    assert [e.kill.ranks for e in effects if isinstance(e, KillRanks)] == [(2, 3)]


def test_lines_that_are_told_again_wait_for_what_was_said_by_those_who_were_away_since() -> None:
    views = [
        replace(WITHOUT_1, generation=generation, joined=(), losses=())
        for generation in (3, 4, 5)
    ]  # fmt: skip
    back = replace(BACK, generation=6)
    done = {0: ((0, 0),), 2: ((2, 0),), 1: ((1, 0),)}
    standings = []
    for rank in (0, 2, 1):
        memory = Memory()
        memory.said(topology(rank))
        memory.said(verdict(rank))
        memory.said(
            Committed(rank=rank, generation=1, step=3, done=done[rank], redone=(), total=3,
                      digest="")
        )  # fmt: skip
        for view in (*views, back):
            memory.heard(view)
        standings.append(memory.standing)

    _, effects = succeed(*standings)

    (line,) = [e for e in effects if isinstance(e, Record) and e.event == "step.commit"]
    assert "inferred" not in line.fields


def test_how_often_a_replica_was_started_outlives_the_coordinator() -> None:
    found = replace(vacancy(), policy=RETURNS)
    view = View(generation=2, live=(0, 2), live_ranks=(0, 2), losses=(1,))
    standings = []
    for rank in found.world:
        memory = Memory()
        memory.said(topology(rank))
        memory.said(verdict(rank))
        memory.heard(view)
        if rank == 0:  # the others have not heard of the third start
            memory.heard(StartAgain(ranks=(1,), birth=3, often=3, reason="it was lost"))
        memory.heard(StartAgain(ranks=(1,), birth=2, often=2, reason="it was lost"))
        standings.append(memory.standing)

    coordinator, effects = new_coordinator(found, standings, 5.0)
    late = coordinator.step(Received(message=exited(1, -9)), 6.0)
    end = replace(exited(1, -9), incarnation=3)
    effects += coordinator.step(Received(message=end), 7.0)

    assert not [effect for effect in [*effects, *late] if isinstance(effect, StartRanks)]
    notices = [e.reason for e in effects if isinstance(e, Record) and e.event == "notice.give"]
    assert notices == ["replica 1 was lost 4 times in an hour: it stays away"]
