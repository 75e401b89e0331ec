"""Draws and sources that a microbatch may need are kept, and no others."""

from typing import Any

import pytest
import torch

from recoverrun.worker.tracking.script_runtime import ScriptRuntime
from tests.unit.worker.tracking.test_loop_tracker import Play

pytestmark = pytest.mark.usefixtures("streams_put_back")

# --------------------------------------------------------------------------- draws

BATCHES = [torch.tensor([float(n)]) for n in range(4)]


@pytest.mark.parametrize("around", [list, enumerate])
def test_draws_of_what_a_loop_goes_over_are_held_until_it_ends(around: Any) -> None:
    """Each item is a transaction; of other draws, those of the one before are kept."""
    play, aheads = Play(), list[list[int]]()
    source: Any = Source()
    for index, batch in enumerate(BATCHES):
        play.runtime.drawn(source, index, batch)

    def backward(item: Any) -> None:
        microbatch = play.runtime.note_backward()
        assert microbatch is not None
        aheads.append([draw.index for draw in microbatch.top.ahead])
        play.runtime.begin_step()

    play.script.flat(around(BATCHES[:3]), backward)
    play.script.flat("a", backward)

    assert aheads == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2], []]


def test_what_goes_round_by_numbers_holds_no_draws() -> None:
    play, aheads = Play(), list[list[Any]]()
    source: Any = Source()
    play.runtime.drawn(source, 0, BATCHES[0])

    def backward(item: Any) -> None:
        microbatch = play.runtime.note_backward()
        assert microbatch is not None
        aheads.append(microbatch.top.ahead)
        play.runtime.begin_step()

    play.script.flat(range(3), backward)

    assert [len(one) for one in aheads] == [1, 1, 0]


# --------------------------------------------------------------------------- sources


class Source:
    """Of data."""

    def __init__(self) -> None:
        self.ended = self.gone = False
        self.count = 0
        self.floors: list[int] = []

    def begin_step(self, floor: int) -> None:
        self.floors.append(floor)


def test_what_an_ended_iterator_gave_may_be_used_in_the_transaction_after() -> None:
    runtime, source = ScriptRuntime(0), Source()
    runtime.adopt(source)  # type: ignore[arg-type]
    source.ended = True

    runtime.begin_step()
    assert runtime.sources == [source]
    runtime.begin_step()

    assert (runtime.sources, source.floors) == ([], [0])


@pytest.mark.parametrize("outward", [0, 1])
def test_what_was_drawn_since_the_region_began_is_kept(outward: int) -> None:
    """Several transactions may be executed again from one iteration of an outer loop."""
    play, source = Play(), Source()
    play.runtime.adopt(source)  # type: ignore[arg-type]

    def backward(item: Any) -> None:
        microbatch = play.runtime.note_backward()
        assert microbatch is not None
        play.runtime.regions = {microbatch.places[outward].top.loop.id}
        source.count += 1
        play.runtime.begin_step()

    play.script.inner(range(2), range(3), backward)

    assert source.floors == ([0, 0, 0, 3, 3, 3] if outward else [0, 1, 2, 3, 4, 5])


def test_iterators_that_nobody_holds_make_room() -> None:
    runtime, first, second = ScriptRuntime(0), Source(), Source()
    runtime.adopt(first)  # type: ignore[arg-type]
    first.gone = True

    runtime.adopt(second)  # type: ignore[arg-type]

    assert (runtime.sources, runtime.adopted) == ([second], 2)
