"""Survivors tell where a lost rank stands, also after one of them has drawn in its place."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from recoverrun.worker.replay.executed import Executed
from recoverrun.worker.replay.known_state import KnownState
from recoverrun.worker.rng.streams import Streams, read_streams
from recoverrun.worker.step.forward_sync import Buffers
from recoverrun.worker.tracking.microbatches import Microbatch
from tests.unit.contexts import at, draw
from tests.unit.survivors import LOST, STEP, Survivor, Team, left_at_top

pytestmark = pytest.mark.usefixtures("streams_put_back", "exchanging")

Started = list[tuple[int, int, Streams]]
"""By whom, which microbatch, from where."""

ELSEWHERE = torch.Generator().manual_seed(1).get_state()


def drew_in_its_place(survivor: Survivor, **moved: Any) -> None:
    """This one has drawn for the lost rank since the last transaction, up to `moved`."""
    survivor.left.absorb()
    lost, mine = survivor.executor.lost[LOST], survivor.executor.captures.points[0]
    lost.learn(replace(lost.states[mine.point].context, **moved), mine)
    lost.drawn = (mine.point, read_streams(), read_streams())


def watch(team: Team) -> Started:
    """The executions from now on."""
    started: Started = []

    def watched(survivor: Survivor) -> Any:
        execute = survivor.executor.execute

        def executes(
            rank: int, state: KnownState, step: int, microbatch: Microbatch, before: Buffers = ()
        ) -> Executed:
            if rank == LOST:
                started.append((survivor.env.rank, microbatch.index, state.context.streams))
            done: Executed = execute(rank, state, step, microbatch, before)
            return done

        return executes

    for one in team.survivors:
        one.executor.execute = watched(one)
    return started


def test_who_executed_from_where_it_does_not_stand_executes_again() -> None:
    """A rank 0 that evaluates is lost before it did so the first time: only its deputy knows."""
    team = Team(program=lambda x: x, microbatches=1)
    team.inherit(left_at_top())
    before = read_streams()
    draw(3)
    moved = read_streams()
    drew_in_its_place(team.survivors[0], streams=moved)
    started = watch(team)

    team.makes_up(((), (0,)))

    assert started == [(1, 0, before), (1, 0, moved)]
    assert team.gradients == {(LOST, 0): ("own", 5)}
    assert (team.promises, team.said) == (["exact-samples"] * 2, [])


@pytest.mark.parametrize("held", [False, True])
def test_a_generator_that_this_rank_has_not_moves_nothing_here(held: bool) -> None:
    team = Team(program=lambda x: x, microbatches=1)
    team.inherit(left_at_top())
    if held:
        points = team.survivors[1].executor.captures.points
        points[:] = [replace(one, generators={"own": torch.zeros(1)}) for one in points]
    drew_in_its_place(team.survivors[0], generators={"own": ELSEWHERE})
    started = watch(team)

    team.makes_up(((), (0,)))

    assert len(started) == 1 + held


def test_all_that_was_made_up_from_there_is_made_up_again() -> None:
    team = Team(program=lambda x: x)
    team.inherit(left_at_top())
    draw(3)
    moved = read_streams()
    drew_in_its_place(team.survivors[0], streams=moved)
    started = watch(team)

    team.makes_up(((1,), (0,)))

    assert started[-1][:2] in ((0, 1), (1, 0))
    assert (1, 0, moved) in started
    assert team.gradients == {(LOST, 0): ("own", 5), (LOST, 1): ("own", 5)}
    assert (team.promises, team.said) == (["exact-samples"] * 2, [])
    known = [one.executor.lost[LOST].states for one in team.survivors]
    assert [states[at(STEP, 0).point].context.streams for states in known] == [moved, moved]
