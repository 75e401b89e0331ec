"""Numbers that a rank draws in code for it alone: counted apart, and followed by its deputy."""

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
import torch

from recoverrun.worker.context.slot_context import Context, Point
from recoverrun.worker.rank0 import failover, private_draws
from recoverrun.worker.replay.lost_rank import ALONE, LostRank, lost_rank
from recoverrun.worker.rng import rng
from recoverrun.worker.tracking.rank0_gate import KEPT, Rank0Gate
from tests.unit.contexts import at, draw


@pytest.fixture(autouse=True)
def _streams_put_back() -> Iterator[None]:
    before = rng.read()
    rng.forget_alone()
    yield
    rng.forget_alone()
    rng.restore(before)


class Runtime(Rank0Gate):
    active = True
    acting_rank: int | None = None
    seedings = 0

    def seeding(self) -> None:
        self.seedings += 1


def by_itself(count: int, runtime: Any = None) -> None:
    with private_draws.Alone(runtime or Runtime(own_rank=0), "train.py:5"):
        draw(count)


def stream(seed: int, shared: int, lonely: int = 0) -> rng.Streams:
    """Seeded, and so many numbers drawn."""
    torch.manual_seed(seed)
    rng.forget_alone()
    by_itself(lonely)
    draw(shared)
    return rng.read()


# --------------------------------------------------------------------------- counting


def test_only_what_is_drawn_in_there_is_counted() -> None:
    torch.manual_seed(3)
    draw(5)
    by_itself(700)
    draw(6)
    by_itself(2)

    assert rng.read().alone == (702,)


def test_what_stands_inside_counts_once_and_what_another_is_acted_by_not_at_all() -> None:
    torch.manual_seed(3)
    runtime = Runtime(own_rank=0)
    with private_draws.Alone(runtime, "train.py:5"):
        draw(3)
        by_itself(4, runtime)
    runtime.acting_rank = 1
    by_itself(50, runtime)
    runtime.acting_rank, runtime.active = None, False
    by_itself(50, runtime)

    assert rng.read().alone == (7,)


@pytest.mark.parametrize("seed", [3, 4])
def test_seeding_begins_anew(seed: int) -> None:
    torch.manual_seed(3)
    by_itself(9)
    private_draws.seeding(runtime := Runtime(own_rank=0))  # type: ignore[arg-type]
    torch.manual_seed(seed)

    assert rng.read().alone == (0,) and runtime.seedings == 1


def test_a_seed_that_nobody_saw_begins_anew_too() -> None:
    torch.manual_seed(3)
    by_itself(9)
    torch.default_generator.manual_seed(4)

    assert rng.read().alone == (0,)


def test_what_is_seeded_and_put_back_inside_is_as_if_nothing_was_drawn() -> None:
    torch.manual_seed(3)
    by_itself(9)
    runtime = Runtime(own_rank=0)
    with private_draws.Alone(runtime, "train.py:5"):
        kept = torch.get_rng_state()
        private_draws.seeding(runtime)  # type: ignore[arg-type]
        torch.manual_seed(1)
        draw(8)
        torch.set_rng_state(kept)

    assert rng.read().alone == (9,)


def test_where_something_was_drawn_is_remembered_and_travels() -> None:
    rng.alone_at.clear()
    by_itself(0)
    assert not rng.alone_at
    by_itself(3)
    assert rng.alone_at == {"train.py:5"}

    left = at(3, alone_at=frozenset(rng.alone_at))

    assert Context.unpack(left.pack()).alone_at == {"train.py:5"}


@pytest.mark.parametrize(
    ("places", "done"), [({"a.py:1"}, True), ({"a.py:1", "a.py:2"}, False), (set(), False)]
)
def test_who_passed_a_place_before_it_was_the_deputy_missed_it(
    places: set[str], done: bool
) -> None:
    runtime = Runtime(own_rank=1)
    runtime.first("a.py:2", True, False)
    runtime.is_deputy = lambda: True
    runtime.first("a.py:1", True, False)

    assert runtime.has_done(0, frozenset(places), since=None) is done
    assert not runtime.has_done(2, frozenset(places), since=None)


def test_what_is_missed_again_and_again_is_remembered_once() -> None:
    """Nobody may ever commit anything: the script has one replica, say."""
    runtime = Runtime(own_rank=1)
    for _ in range(9):
        runtime.first("a.py:2", True, False)

    assert list(runtime.missed_at) == [(None, "a.py:2")]


def test_of_earlier_transactions_only_so_much_is_remembered() -> None:
    runtime = Runtime(own_rank=1)
    for step in range(KEPT + 5):
        runtime.last_point = lambda step=step: (step, 0, 1, 0)  # type: ignore[misc]
        runtime.first("a.py:2", True, False)
        runtime.begin_anew()

    assert len(runtime.missed_at) == KEPT
    assert not runtime.has_done(0, frozenset(), since=(KEPT + 4, 0, 1, 0))
    assert not runtime.has_done(0, frozenset(), since=(5, 0, 1, 0))
    assert runtime.has_done(0, frozenset(), since=(4, 0, 1, 0)), "forgotten"


def test_counts_travel() -> None:
    streams = stream(7, 30, lonely=4)

    travelled = rng.Streams.unpack(msgpack.unpackb(msgpack.packb(streams.pack())))

    assert travelled == streams and travelled.alone == (4,)


@pytest.mark.parametrize("counts", [None, [], [1, 2], [-1], ["1"], [True]])
def test_what_is_no_count_is_refused(counts: object) -> None:
    *streams, _ = rng.read().pack()

    with pytest.raises(ValueError, match="drawn alone"):
        rng.Streams.unpack([*streams, counts])


def test_who_does_not_draw_alone_is_followed_by_what_all_draw() -> None:
    here, theirs = stream(7, 10), stream(8, 10)
    torch.manual_seed(7)
    rng.forget_alone()
    draw(10)
    by_itself(900)
    draw(20)
    after = rng.read()

    moved = rng.jump(theirs, here, after, shared=True)

    assert moved == stream(8, 30)
    assert rng.jump(theirs, here, after) == stream(8, 930)


def test_counters_of_cuda_are_followed_likewise() -> None:
    def state(seed: int, offset: int) -> bytes:
        return seed.to_bytes(8, "little") + offset.to_bytes(8, "little")

    def streams(cuda: bytes, lonely: int) -> rng.Streams:
        cpu = rng.read().torch_cpu
        whole = rng.Streams(torch_cpu=cpu, torch_cuda=(cuda,), python=b"", numpy=b"")
        return whole.with_alone([0, lonely])

    before, after = streams(state(9, 8), 4), streams(state(9, 40), 24)

    moved = rng.jump(streams(state(7, 100), 0), before, after, shared=True)
    told = rng.jump(streams(state(7, 100), 0), before, after)

    assert moved is not None and moved.torch_cuda == (state(7, 112),)
    assert told is not None and told.torch_cuda == (state(7, 132),)


# --------------------------------------------------------------------------- lost ranks


def after(step: int, streams: rng.Streams, **more: Any) -> Context:
    return at(step, kind="after", streams=streams, **more)


def followed(theirs: Context, own: list[Context], *, apart: bool) -> LostRank:
    """Who left `theirs`, where we were too: the first of our `own` points."""
    lost = lost_rank(0, [theirs], {one.point: one for one in own}, apart=apart)
    assert lost is not None
    return lost


@pytest.mark.parametrize("apart", [False, True])
def test_a_first_evaluation_after_a_loss_is_not_the_lost_rank_s_if_it_may_do_none(
    apart: bool,
) -> None:
    mine = after(3, stream(7, 700))
    lost = followed(after(3, stream(8, 700)), [mine], apart=apart)
    torch.manual_seed(7)
    rng.forget_alone()
    draw(720)
    by_itself(90)
    here = at(4, streams=rng.read())

    state = lost.at(here.point, [mine, here])

    assert not state.torch_known
    assert state.context.streams == stream(8, 720 if apart else 810)


@pytest.mark.parametrize(
    ("theirs", "mine", "drawn"),
    [
        ((700, 0), (700, 200), 720),  # we evaluate, it does not
        ((700, 200), (700, 200), 830),  # both do, as first of a node: all that is drawn counts
    ],
)
def test_that_somebody_drew_alone_tells_more_than_where_ranks_run(
    theirs: tuple[int, int], mine: tuple[int, int], drawn: int
) -> None:
    own = after(3, stream(7, *mine))
    lost = followed(after(3, stream(8, *theirs)), [own], apart=theirs[1] == mine[1])
    torch.manual_seed(7)
    rng.forget_alone()
    by_itself(mine[1])
    draw(mine[0] + 20)
    by_itself(110)
    here = at(4, streams=rng.read())

    state = lost.at(here.point, [own, here])

    assert state.context.streams == stream(8, drawn + theirs[1])


@pytest.mark.parametrize("led", [False, True])
def test_between_steps_only_its_deputy_knows_who_draws_alone(led: bool) -> None:
    own, here = after(3, stream(7, 700)), at(4, streams=stream(7, 720))
    there = after(3, stream(8, 700, 50), alone_at=frozenset({"train.py:5"}))
    lost = followed(there, [own], apart=False)
    asked: list[Any] = []
    lost.led = lambda *about: not asked.append(about) and led

    state = lost.at(here.point, [own, here])

    assert asked == [({"train.py:5"}, own.point)]
    assert state.torch_known == ("" if led else ALONE.format(rank=0))


# --------------------------------------------------------------------------- the deputy


class Deputy:
    """As much of a session as one who stands in for rank 0 needs."""

    def __init__(self, lost: LostRank | None, points: list[Context]) -> None:
        self.runtime = Runtime(own_rank=1)
        self.points = points
        lost_ranks = {} if lost is None else {0: lost}
        captures = SimpleNamespace(points=points)
        self.impersonator = SimpleNamespace(lost=lost_ranks, captures=captures)
        self.said: list[str] = []
        self.downgraded: list[str] = []
        self.awaited: list[int] = []
        self.voice = SimpleNamespace(notice=self.said.append)
        self.makeup: Any = SimpleNamespace(
            exact=True,
            downgrade=self.downgraded.append,
            await_legacy=self.awaited.append,
            absorb=lambda: None,
        )

    def standing_in(self, where: str = "train.py:7") -> failover.StandingIn:
        worker: Any = self
        actor: Any = self.impersonator
        return failover.StandingIn(worker, actor, self.makeup, where)

    def streams_at(self, here: Context) -> rng.Streams:
        """Rank 0's, as told at our next point."""
        own = rng.read()
        self.points.append(here)
        state = self.impersonator.lost[0].at(here.point, self.points)
        rng.restore(own)
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
    own = rng.read()
    with session.standing_in():
        seen = torch.rand(50)

    assert rng.read() == own and not session.downgraded
    assert session.streams_at(at(4, streams=stream(7, 730))) == stream(8, 780)
    stream(8, 720)
    assert torch.equal(torch.rand(50), seen)


def test_what_is_drawn_within_a_microbatch_is_drawn_again_with_it() -> None:
    session = deputy_of(within=(4, 0, 0, 0))
    own = rng.read()
    with session.standing_in():
        torch.rand(50)
    with session.standing_in():
        more = torch.rand(5)

    lost = session.impersonator.lost[0]
    assert rng.read() == own and not session.downgraded
    assert lost.at((4, 0, 0, 0), session.points).context.streams == stream(8, 720)
    assert session.streams_at(after(4, stream(7, 735))) == stream(8, 735)
    stream(8, 770)
    assert torch.equal(torch.rand(5), more)


def test_what_was_missed_within_a_microbatch_tells_in_the_next_step() -> None:
    runtime = Runtime(own_rank=2)
    end, top, backward = (3, 0, 1, 0), (4, 0, 0, 0), (4, 0, 1, 0)
    for point, where in ((end, "between"), (top, "within")):
        runtime.last_point = lambda point=point: point  # type: ignore[misc]
        runtime.first(where, True, False, 2)
    runtime.last_point = lambda: backward
    assert runtime.missed == {"between", "within"}

    runtime.begin_anew()

    assert runtime.missed == {"within"}
    assert not runtime.has_done(0, frozenset({"between"}), end)
    assert runtime.has_done(0, frozenset({"within"}), end), "it is executed with the microbatch"
    assert not runtime.has_done(0, frozenset(), top)
    assert runtime.has_done(0, frozenset(), backward)


def test_what_was_missed_before_the_first_iteration_is_over_at_the_first_commit() -> None:
    runtime = Runtime(own_rank=2)
    runtime.first("log = open(...)", True, False)
    runtime.last_point = lambda: (1, 0, 1, 0)

    runtime.begin_anew()

    assert not runtime.missed


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
    assert rng.read() == own


def test_the_numbers_of_python_that_rank_0_draws_alone_are_its_own() -> None:
    session = deputy_of()
    own = rng.read()
    with session.standing_in():
        random.random()
        drawn = rng.read().python

    assert rng.read() == own and not session.downgraded
    streams = session.streams_at(at(4, streams=stream(7, 720)))
    assert streams.python == drawn != own.python


def test_before_it_speaks_for_rank_0_the_deputy_looks_at_what_that_left() -> None:
    """A loss in the vote: what rank 0 left may come after the view without it."""
    known = deputy_of()
    session = Deputy(None, known.points)
    session.makeup.absorb = lambda: session.impersonator.lost.update(known.impersonator.lost)
    for count in (40, 10):
        with session.standing_in():
            draw(count)

    assert set(session.awaited) == {0} and not session.downgraded
    assert session.streams_at(at(4, streams=stream(7, 730))) == stream(8, 780)
