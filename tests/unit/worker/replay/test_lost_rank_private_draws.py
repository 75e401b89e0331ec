"""A lost rank that drew privately is followed by what all ranks draw."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from recoverrun.worker.context.slot_context import Context
from recoverrun.worker.replay.lost_rank import ALONE, LostRank, lost_rank
from recoverrun.worker.rng.private_draws import forget_private
from recoverrun.worker.rng.skip_ahead import skip_ahead
from recoverrun.worker.rng.streams import Streams, read_streams, restore_streams
from tests.unit.contexts import at, draw
from tests.unit.private_draws import after, by_itself, stream


@pytest.fixture(autouse=True)
def _streams_put_back() -> Iterator[None]:
    before = read_streams()
    forget_private()
    yield
    forget_private()
    restore_streams(before)


def test_who_does_not_draw_alone_is_followed_by_what_all_draw() -> None:
    here, theirs = stream(7, 10), stream(8, 10)
    torch.manual_seed(7)
    forget_private()
    draw(10)
    by_itself(900)
    draw(20)
    after = read_streams()

    moved = skip_ahead(theirs, here, after, shared=True)

    assert moved == stream(8, 30)
    assert skip_ahead(theirs, here, after) == stream(8, 930)


def test_counters_of_cuda_are_followed_likewise() -> None:
    def state(seed: int, offset: int) -> bytes:
        return seed.to_bytes(8, "little") + offset.to_bytes(8, "little")

    def streams(cuda: bytes, lonely: int) -> Streams:
        cpu = read_streams().torch_cpu
        whole = Streams(torch_cpu=cpu, torch_cuda=(cuda,), python=b"", numpy=b"")
        return whole.with_private([0, lonely])

    before, after = streams(state(9, 8), 4), streams(state(9, 40), 24)

    moved = skip_ahead(streams(state(7, 100), 0), before, after, shared=True)
    told = skip_ahead(streams(state(7, 100), 0), before, after)

    assert moved is not None and moved.torch_cuda == (state(7, 112),)
    assert told is not None and told.torch_cuda == (state(7, 132),)


def followed(theirs: Context, own: list[Context], *, apart: bool) -> LostRank:
    """The lost rank that left `theirs` where we were, too: at the first of our `own` points."""
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
    forget_private()
    draw(720)
    by_itself(90)
    here = at(4, streams=read_streams())

    state = lost.at(here.point, [mine, here])

    assert not state.torch_unknown
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
    forget_private()
    by_itself(mine[1])
    draw(mine[0] + 20)
    by_itself(110)
    here = at(4, streams=read_streams())

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
    assert state.torch_unknown == ("" if led else ALONE.format(rank=0))
