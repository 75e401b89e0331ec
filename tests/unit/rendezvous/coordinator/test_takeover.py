"""What a launcher remembers, and how another coordinator begins with it."""

from rendezvous.coordinator.coordinator import Coordinator, Received
from rendezvous.coordinator.takeover import STEPS_KEPT, Memory, Standing, Vacancy, new_coordinator
from rendezvous.protocol.effects import StopJob, ToRank
from rendezvous.protocol.messages import Committed, Exited, Farewell, Message, Topology, View
from tests.unit.coordination import verdict

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
    return Vacancy(
        term=2, world=(0, 1, 2), min_replicas=1, lost=nodes, reason="its launcher is gone"
    )


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
    both = Vacancy(term=2, world=(0, 1, 2), min_replicas=1, lost=lost, reason="another one")

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
