"""The deputy of rank 0 draws that rank's private numbers."""

import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recoverrun.worker.context.slot_context import Context, Point
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.rank0 import failover
from recoverrun.worker.replay.lost_rank import LostRank
from recoverrun.worker.rng.object_generators import state_of
from recoverrun.worker.rng.private_draws import forget_private
from recoverrun.worker.rng.registry import REGISTRY
from recoverrun.worker.rng.streams import Streams, read_streams, restore_streams
from recoverrun.worker.tracking.rank0_gate import Rank0Gate
from tests.unit.contexts import at, draw
from tests.unit.private_draws import Runtime, after, stream


@pytest.fixture(autouse=True)
def _streams_put_back() -> Iterator[None]:
    before = read_streams()
    forget_private()
    yield
    forget_private()
    restore_streams(before)


class Deputy:
    """As much of a session as one who stands in for rank 0 needs."""

    def __init__(self, lost: LostRank | None, points: list[Context]) -> None:
        self.runtime = Runtime(1)
        self.points = points
        self.protected = False
        lost_ranks = {} if lost is None else {0: lost}
        captures = SimpleNamespace(points=points)
        self.executor = SimpleNamespace(lost=lost_ranks, captures=captures)
        self.said: list[str] = []
        self.downgraded: list[str] = []
        self.awaited: list[int] = []
        self.reporter = SimpleNamespace(notice=self.said.append)
        self.guarantee = SimpleNamespace(weaken=self.downgraded.append)
        self.left: Any = SimpleNamespace(
            exact=True,
            await_contexts=self.awaited.append,
            absorb=lambda: None,
        )

    def standing_in(self, where: str = "train.py:7") -> failover.StandingIn:
        worker: Any = self
        executor: Any = self.executor
        return failover.StandingIn(worker, executor, self.left, where)

    def streams_at(self, here: Context) -> Streams:
        """Rank 0's, as told at our next point."""
        own = read_streams()
        self.points.append(here)
        state = self.executor.lost[0].at(here.point, self.points)
        restore_streams(own)
        return state.context.streams


def deputy_of(drawn: int = 700, within: Point | None = None) -> Deputy:
    """We have drawn 720 numbers, of which the last 20 since rank 0 was at a point like ours."""
    mine = after(3, stream(7, 700))
    points = [mine]
    if within is not None:
        points.append(at(*within[:2], streams=stream(7, 720)))
    lost = LostRank(0, apart=True)
    lost.learn(after(3, stream(8, drawn)), mine)
    stream(7, 720)
    return Deputy(lost, points)


def test_the_deputy_draws_what_rank_0_would_have_drawn_and_keeps_its_own() -> None:
    session = deputy_of()
    own = read_streams()
    with session.standing_in():
        seen = torch.rand(50)

    assert read_streams() == own and not session.downgraded
    assert session.streams_at(at(4, streams=stream(7, 730))) == stream(8, 780)
    stream(8, 720)
    assert torch.equal(torch.rand(50), seen)


def test_what_is_drawn_within_a_microbatch_is_drawn_again_with_it() -> None:
    session = deputy_of(within=(4, 0, 0, 0))
    own = read_streams()
    with session.standing_in():
        torch.rand(50)
    with session.standing_in():
        more = torch.rand(5)

    lost = session.executor.lost[0]
    assert read_streams() == own and not session.downgraded
    assert lost.at((4, 0, 0, 0), session.points).context.streams == stream(8, 720)
    assert session.streams_at(after(4, stream(7, 735))) == stream(8, 735)
    stream(8, 770)
    assert torch.equal(torch.rand(5), more)


def lottery(rank: int) -> tuple[random.Random, str]:
    """A generator of the script's, and its name."""
    made = random.Random(rank)
    REGISTRY.note(made, sys._getframe())
    return made, next(key for key, one in REGISTRY.alive().items() if one is made)


def test_a_generator_of_the_script_draws_as_rank_0s_and_is_put_back() -> None:
    plan, key = lottery(99)
    mine, theirs = random.Random(99), random.Random(99)
    theirs.random()  # rank 0 has made one plan, alone
    session = deputy_with(key, mine, theirs)

    for _ in range(2):
        with session.standing_in():
            assert plan.random() == theirs.random()
        assert plan.getstate() == mine.getstate()

    assert not session.downgraded
    here = replace(at(4, streams=stream(7, 720)), generators={key: state_of(mine)})
    session.points.append(here)
    state = session.executor.lost[0].at(here.point, session.points)
    assert state.context.generators[key] == state_of(theirs)


def test_a_generator_that_only_rank_0_had_goes_on_in_one_made_in_its_place() -> None:
    plan, key = lottery(99)
    theirs = random.Random(99)
    theirs.random()
    session = deputy_with(key, None, theirs)

    with session.standing_in():
        assert plan.random() == theirs.random()

    assert not session.downgraded


def test_a_generator_whose_place_on_rank_0_is_not_known_takes_the_promise_back() -> None:
    plan, key = lottery(99)
    mine, theirs = random.Random(99), random.Random(98)
    session = deputy_with(key, mine, theirs)
    plan.random()  # since our last point, and rank 0's moves otherwise

    with session.standing_in():
        pass
    assert not session.downgraded

    with session.standing_in():
        plan.random()
    assert session.downgraded == [failover.DRAWS]


def deputy_with(key: str, mine: random.Random | None, theirs: random.Random) -> Deputy:
    """Rank 0 was at our last point, and its generator stood there."""
    here = replace(after(3, stream(7, 720)), generators={key: state_of(mine)} if mine else {})
    lost = LostRank(0, apart=True)
    lost.learn(replace(here, streams=stream(8, 720), generators={key: state_of(theirs)}), here)
    stream(7, 720)
    return Deputy(lost, [here])


def test_what_was_missed_within_a_microbatch_tells_in_the_next_step() -> None:
    gate = Rank0Gate(2)
    end, top, backward = (3, 0, 1, 0), (4, 0, 0, 0), (4, 0, 1, 0)
    for point, where in ((end, "between"), (top, "within")):
        gate.last_point = lambda point=point: point  # type: ignore[misc]
        gate.first(where, True, False, 2)
    gate.last_point = lambda: backward
    assert gate.missed == {"between", "within"}

    gate.begin_anew()

    assert gate.missed == {"within"}
    assert not gate.has_done(0, frozenset({"between"}), end)
    assert gate.has_done(0, frozenset({"within"}), end), "it is executed with the microbatch"
    assert not gate.has_done(0, frozenset(), top)
    assert gate.has_done(0, frozenset(), backward)


def test_what_was_missed_before_the_first_iteration_is_over_at_the_first_commit() -> None:
    gate = Rank0Gate(2)
    gate.first("log = open(...)", True, False)
    gate.last_point = lambda: (1, 0, 1, 0)

    gate.begin_anew()

    assert not gate.missed


def test_calls_inside_go_on_drawing_rank_0_s_numbers() -> None:
    session = deputy_of()
    with session.standing_in():
        with session.standing_in():
            draw(20)
        with session.standing_in():
            draw(30)

    assert session.streams_at(at(4, streams=stream(7, 720))) == stream(8, 770)


@pytest.mark.parametrize("drawn", [False, True])
def test_what_fails_halfway_tells_no_numbers_any_more(drawn: bool) -> None:
    session = deputy_of()
    with session.standing_in():
        with session.standing_in("train.py:8"):
            draw(9 if drawn else 0)
            raise OSError("no such log")

    assert session.downgraded == ([failover.DRAWS] if drawn else [])
    assert "OSError" in session.said[-1]


def test_who_does_not_know_rank_0_s_stream_says_so_if_it_is_drawn_from() -> None:
    session, own = Deputy(None, [at(4)]), stream(7, 720)
    with session.standing_in():
        pass
    assert not session.downgraded

    with session.standing_in():
        draw(3)

    assert session.downgraded == [failover.DRAWS]
    assert read_streams() == own


def test_the_numbers_of_python_that_rank_0_draws_alone_are_its_own() -> None:
    session = deputy_of()
    own = read_streams()
    with session.standing_in():
        random.random()
        drawn = read_streams().python

    assert read_streams() == own and not session.downgraded
    streams = session.streams_at(at(4, streams=stream(7, 720)))
    assert streams.python == drawn != own.python


def test_before_it_speaks_for_rank_0_the_deputy_looks_at_what_that_left() -> None:
    """A loss in the vote: what rank 0 left may come after the view without it."""
    known = deputy_of()
    session = Deputy(None, known.points)
    session.left.absorb = lambda: session.executor.lost.update(known.executor.lost)
    for count in (40, 10):
        with session.standing_in():
            draw(count)

    assert set(session.awaited) == {0} and not session.downgraded
    assert session.streams_at(at(4, streams=stream(7, 730))) == stream(8, 780)


def test_what_rank_0_does_alone_does_not_end_its_microbatch_elsewhere() -> None:
    deputy = Deputy(None, [])
    worker: Any = deputy
    worker.env = SimpleNamespace(rank=1, local_rank=1, local_world_size=2)
    failover.serve(worker, worker.executor, worker.left)
    deputy.runtime.gate.is_deputy = lambda: False

    for around in (deputy.runtime.gate.leading, deputy.runtime.gate.asking):
        deputy.runtime.acting_rank = 0
        with around("train.py:7"):
            raise AttributeError("nothing to log to")
        with pytest.raises(NotReplayable), around("train.py:7"):
            raise NotReplayable("of ours")
        deputy.runtime.acting_rank = None
        with pytest.raises(AttributeError), around("train.py:7"):
            raise AttributeError("the script's own")
