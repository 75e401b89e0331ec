"""Numbers that a rank draws in code for it alone: counted apart, and followed by its deputy."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
import torch

from recoverrun.hooks import alone, deputy, rng
from recoverrun.hooks.context import Context
from recoverrun.hooks.heritage import Heritage, heir_of
from recoverrun.hooks.kin import Kin


@pytest.fixture(autouse=True)
def _streams_put_back() -> Iterator[None]:
    before = rng.read()
    rng.forget_alone()
    yield
    rng.forget_alone()
    rng.restore(before)


class Runtime(deputy.FirstRank):
    active = True
    acting_rank: int | None = None
    seedings = 0

    def seeding(self) -> None:
        self.seedings += 1


def draw(count: int) -> None:
    torch.empty(count, dtype=torch.int32).random_()


def by_itself(count: int, runtime: Any = None) -> None:
    with alone.Alone(runtime or Runtime(own_rank=0), "train.py:5"):
        draw(count)


def stream(seed: int, shared: int, lonely: int = 0) -> rng.Streams:
    """Seeded, and so many numbers drawn."""
    torch.manual_seed(seed)
    rng.forget_alone()
    by_itself(lonely)
    draw(shared)
    return rng.read()


def at(step: int, streams: rng.Streams, kind: Any = "top") -> Context:
    return Context(step=step, attempt=0, kind=kind, loop="train.py:1", streams=streams)


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
    with alone.Alone(runtime, "train.py:5"):
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
    alone.seeding(runtime := Runtime(own_rank=0))  # type: ignore[arg-type]
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
    with alone.Alone(runtime, "train.py:5"):
        kept = torch.get_rng_state()
        alone.seeding(runtime)  # type: ignore[arg-type]
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

    left = at(3, rng.read())
    left.alone_at = frozenset(rng.alone_at)

    assert Context.unpack(left.pack()).alone_at == {"train.py:5"}
    assert left.copy().alone_at == {"train.py:5"}


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

    assert runtime.has_done(0, frozenset(places)) is done
    assert not runtime.has_done(2, frozenset(places))


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

    assert moved is not None and moved.torch_cuda == (state(7, 112),)
    assert rng.phase(before, shared=True)[1:] == (4,)


# --------------------------------------------------------------------------- lost ranks


@pytest.mark.parametrize(
    ("theirs", "mine", "kin"),
    [
        ((700, 0), (700, 200), "alike"),  # we evaluate, it does not
        ((700, 200), (700, 0), "alike"),  # it did, we do not
        ((700, 200), (700, 200), "alike"),  # both do, as first of a node
        ((700, 0), (720, 200), "fewer"),
        ((700, 200), (650, 250), "alike"),  # both do: then all that is drawn counts
        ((700, 200), (650, 260), "fewer"),
    ],
)
def test_kin_leaves_out_what_one_draws_alone(
    theirs: tuple[int, int], mine: tuple[int, int], kin: Kin
) -> None:
    heir = Heritage(rank=1, theirs=at(3, stream(8, *theirs)), mine=at(3, stream(7, *mine)))

    assert heir.kin == kin


@pytest.mark.parametrize("apart", [False, True])
def test_a_first_evaluation_after_a_loss_is_known_not_to_be_the_lost_rank_s(apart: bool) -> None:
    """Unless that one might be the first of its node, which does what rank 0 does."""
    heir = Heritage(1, at(3, stream(8, 700)), at(3, stream(7, 700)), apart=apart)
    torch.manual_seed(7)
    rng.forget_alone()
    draw(720)
    ahead = rng.read()
    by_itself(90)

    heir.follow(at(4, ahead, "ahead"), at(4, rng.read()))

    assert heir.sure
    assert heir.theirs.streams == stream(8, 720 if apart else 810)


@pytest.mark.parametrize("led", [False, True])
def test_between_steps_only_its_deputy_knows_who_draws_alone(led: bool) -> None:
    heir = Heritage(0, at(3, stream(8, 700, 50)), at(3, stream(7, 700)))
    heir.end_step()
    heir.led = led

    heir.follow(at(4, stream(7, 720), "ahead"), at(4, stream(7, 720)))

    assert heir.sure is led


def test_a_rank_is_known_by_the_last_point_where_both_were() -> None:
    mine = {one.point: one for one in (at(2, stream(7, 1)), at(3, stream(7, 2), "ahead"))}
    left = [at(3, stream(8, 2), "ahead"), at(2, stream(8, 1)), at(3, stream(8, 5))]

    heir = heir_of(1, left, mine, apart=True)

    assert heir is not None and heir.point == (3, 0, 0)
    assert heir.earlier is not None and heir.earlier[0].point == (2, 0, 1)
    assert heir_of(1, [at(9, stream(8, 1))], mine, apart=True) is None


# --------------------------------------------------------------------------- the deputy


class Actor:
    def __init__(self, heir: Heritage | None) -> None:
        self.heritage = {} if heir is None else {0: heir}
        self.remains: dict[int, Any] = {0: ()}
        self.interim: Heritage | None = None
        self.standing: Heritage | None = None
        self.met: Any = lambda rank, step: None


class Deputy:
    """As much of a session as one who stands in for rank 0 needs."""

    step = 4

    def __init__(self, heir: Heritage | None) -> None:
        self.runtime = Runtime(own_rank=1)
        self.impersonator = Actor(heir)
        self.said: list[str] = []
        self.downgraded: list[str] = []
        self.voice = SimpleNamespace(notice=self.said.append)
        self.makeup = SimpleNamespace(exact=True, downgrade=self.downgraded.append)

    def standing_in(self, where: str = "train.py:7") -> deputy.StandingIn:
        return deputy.StandingIn(self, where)  # type: ignore[arg-type]


def _lost(drawn: int = 700) -> Heritage:
    heir = Heritage(0, at(3, stream(8, drawn)), at(3, stream(7, 700)), apart=True)
    stream(7, 720)  # where we are now
    return heir


def test_the_deputy_draws_what_rank_0_would_have_drawn_and_keeps_its_own() -> None:
    session, own = Deputy(heir := _lost()), stream(7, 720)
    with session.standing_in():
        seen = torch.rand(50)

    assert rng.read() == own and not session.downgraded
    assert heir.theirs.streams == stream(8, 770)
    assert heir.streams_at(stream(7, 730)) == stream(8, 780)
    stream(8, 720)
    assert torch.equal(torch.rand(50), seen)


def test_what_is_drawn_within_a_microbatch_counts_when_that_is_over() -> None:
    session, own = Deputy(heir := _lost()), stream(7, 720)
    session.runtime.within = lambda: True
    with session.standing_in():
        torch.rand(50)
    with session.standing_in():
        more = torch.rand(5)

    standing = session.impersonator.standing
    assert rng.read() == own and not session.downgraded and session.impersonator.interim is None
    assert heir.streams_at(own) == stream(8, 720)  # to be executed again with all of it
    assert standing is not None and standing.streams_at(own) == stream(8, 775)
    stream(8, 770)
    assert torch.equal(torch.rand(5), more)


def test_what_was_missed_within_a_microbatch_tells_in_the_next_step() -> None:
    runtime = Runtime(own_rank=2)
    runtime.first("between", True, False, 2)
    runtime.within = lambda: True
    runtime.first("within", True, False, 2)
    assert not runtime.has_done(0, frozenset({"between"}))

    runtime.begin_anew()

    assert runtime.has_done(0, frozenset({"between"}))
    assert not runtime.has_done(0, frozenset({"within"}))
    runtime.begin_anew()
    assert runtime.has_done(0, frozenset({"within"}))


def test_calls_inside_go_on_drawing_rank_0_s_numbers() -> None:
    session = Deputy(heir := _lost())
    with session.standing_in():
        with session.standing_in():
            draw(20)
        with session.standing_in():
            draw(30)

    assert heir.theirs.streams == stream(8, 770)


@pytest.mark.parametrize("drawn", [False, True])
def test_what_fails_halfway_tells_no_numbers_any_more(drawn: bool) -> None:
    session = Deputy(_lost())
    with session.standing_in():
        with session.standing_in("train.py:8"):
            draw(9 if drawn else 0)
            raise OSError("no such log")

    assert session.downgraded == ([deputy.DRAWS] if drawn else [])
    assert "OSError" in session.said[-1]


def test_who_does_not_know_rank_0_s_stream_says_so_if_it_is_drawn_from() -> None:
    session, own = Deputy(None), stream(7, 720)
    with session.standing_in():
        pass
    assert not session.downgraded

    with session.standing_in():
        draw(3)

    assert session.downgraded == [deputy.DRAWS]
    assert rng.read() == own


def test_streams_of_python_that_a_chain_follows_must_not_move() -> None:
    session = Deputy(heir := _lost())
    heir.moving[("the stream of Python's random",)] = rng.read().python
    with session.standing_in():
        import random

        random.random()

    assert session.downgraded == [deputy.DRAWS]


def test_before_it_speaks_for_rank_0_the_deputy_keeps_what_it_drew() -> None:
    """A loss in the vote: the next step, in which rank 0 is followed, has not begun."""
    theirs, mine = at(4, stream(8, 720), "ahead"), at(4, stream(7, 720), "ahead")
    session = Deputy(None)
    session.impersonator.met = lambda rank, step: Heritage(rank, theirs, mine)
    for count in (40, 10):
        with session.standing_in():
            draw(count)

    heir = Heritage(0, theirs, mine)
    assert session.impersonator.interim is not None
    heir.go_on_from(session.impersonator.interim)

    assert not session.downgraded
    assert heir.streams_at(stream(7, 730)) == stream(8, 780)
    assert heir.theirs is not theirs and theirs.streams == stream(8, 720)
