"""The extent of training loops is seen where it can be, and not guessed where it cannot."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler

from recoverrun.worker.instrumentation import Loop
from recoverrun.worker.tracking.loop_extent import UNSEEN, Extent, extent
from recoverrun.worker.tracking.microbatches import LoopFrame, Microbatch, MicrobatchPlace, Top
from tests.unit.contexts import loop

SIZED = list(range(25))


def _top(around: Loop, iteration: int, item: Any, names: dict[str, Any]) -> Top:
    nothing: Any = None
    return Top(
        loop=around, frame_id=1, iteration=iteration, item=item, streams=nothing, body=None,
        names=names, globals={}, attributes={}, bulk={}, iterators={}, positions=[], draws=[],
        ahead=[],
    )  # fmt: skip


def _seen(
    *loops: tuple[Any, list[tuple[int, Any]]], names: dict[str, Any] | None = None, **different: Any
) -> Extent:
    """Of loops, the outermost first: what each goes over, and iteration and item by microbatch."""
    known = [loop(f"train.py:{n}", **different) for n in range(len(loops))]
    frames = [LoopFrame(one, 1, over=over) for one, (over, _) in zip(known, loops, strict=True)]
    microbatches = []
    for index in range(len(loops[0][1])):
        tops = [
            _top(one, *at[index], names or {}) for one, (_, at) in zip(known, loops, strict=True)
        ]
        microbatches.append(
            Microbatch(index, tuple(MicrobatchPlace(top, 0) for top in reversed(tops)))
        )
    return extent(microbatches, frames)


class OfTheScript:
    """Asking it for its length does what the script wants."""

    def __len__(self) -> int:
        raise AssertionError("nobody asks")


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(SIZED)

    def __len__(self) -> int:
        raise AssertionError("nobody asks")


class Unsized(Sampler[int]):
    """torch's loaders need no length of a sampler."""

    def __iter__(self) -> Iterator[int]:
        return iter(SIZED)


class Asked(Unsized):
    def __len__(self) -> int:
        raise AssertionError("nobody asks")


def _loaders(sampler: Sampler[int]) -> list[DataLoader[int]]:
    data: Any = SIZED
    batches = BatchSampler(sampler, 5, drop_last=True)
    return [DataLoader(data, 5, sampler=sampler), DataLoader(data, batch_sampler=batches)]


def _generator() -> Iterator[int]:
    yield 1


def test_a_range_tells_both_the_place_and_the_end() -> None:
    assert _seen((range(40), [(0, 0)])) == Extent(step=0, steps=40)
    assert _seen((range(10, 40), [(0, 10)])) == Extent(step=10, steps=30)
    assert _seen((range(0, 41, 2), [(3, 6)])) == Extent(step=3, steps=18)


def test_microbatches_of_a_step_are_no_steps() -> None:
    within = [(0, 0), (1, 1), (2, 2), (3, 3)]

    assert _seen((range(40), [(5, 5)] * 4), (range(4), within)) == Extent(step=5, steps=35)
    assert _seen((range(80), within)) == Extent(step=0, steps=20)


def test_epochs_are_counted_through() -> None:
    batches = [(4, "batch"), (5, "batch")]

    assert _seen((range(3), [(1, 1)] * 2), (SIZED, batches)) == Extent(step=14, steps=23)


@pytest.mark.parametrize("over", [SIZED, enumerate(range(25)), DataLoader(SIZED)])
def test_what_has_a_length_tells_the_end_and_not_the_place_of_the_script(over: Any) -> None:
    if isinstance(over, enumerate):
        next(over)  # the item of the present iteration

    assert _seen((over, [(0, "batch")])) == Extent(step=-1, steps=25)


def test_the_shortest_of_what_is_zipped_tells_the_end() -> None:
    pairs = zip(iter(range(25)), iter(range(7)), strict=False)
    next(pairs)  # the item of the present iteration

    assert _seen((pairs, [(0, "pair")])) == Extent(step=-1, steps=7)


@pytest.mark.parametrize(
    "over",
    [
        *(_generator(), OfTheScript(), DataLoader(Endless()), None, iter(int, 1)),
        *_loaders(Unsized()),
        *_loaders(Asked()),
    ],
)
def test_what_tells_no_length_is_unseen(over: Any) -> None:
    assert _seen((over, [(0, "batch")])) == UNSEEN
    assert _seen((range(3), [(0, 0)]), (over, [(0, "batch")])) == UNSEEN


def test_a_bar_shows_what_it_goes_over() -> None:
    bar = SimpleNamespace(iterable=range(100))

    assert _seen((bar, [(2, 2)])) == Extent(step=2, steps=98)


@pytest.mark.parametrize(
    ("limit", "steps"), [("50", 43), ("args.most", 93), ("args.none", -1), ("args.text", -1)]
)
def test_a_while_that_counts_is_read(limit: str, steps: int) -> None:
    names = {"step": 7, "args": SimpleNamespace(most=100, text="100")}

    found = _seen((None, [(0, None)]), names=names, kind="while", counts=("step", limit))

    assert found == (Extent(step=7, steps=steps) if steps > 0 else UNSEEN)


@pytest.mark.parametrize("name", ["state", "trainer"])
def test_a_trainer_counts_its_steps_itself(name: str) -> None:
    owner = SimpleNamespace(**{name: SimpleNamespace(global_step=12, max_steps=60)})

    assert _seen((_generator(), [(0, 0)]), names={"self": owner}) == Extent(step=12, steps=48)


def test_a_trainer_without_an_end_is_not_believed() -> None:
    owner = SimpleNamespace(trainer=SimpleNamespace(global_step=12, max_steps=-1))

    assert _seen((range(9), [(0, 0)]), names={"self": owner}) == Extent(step=0, steps=9)


def test_without_a_microbatch_nothing_is_seen() -> None:
    assert extent([], []) == UNSEEN
