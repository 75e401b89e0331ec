"""An iterator that begins late gives the rest of the pass, and leaves all as it is in its slot."""

import itertools
import sys
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from recoverrun.worker.arrival.source_places import told_opening
from recoverrun.worker.data.begun_iterators import begun
from recoverrun.worker.data.late_items import PassedItems, is_looked_at, taken
from recoverrun.worker.data.loader_iterator import LoaderIterator
from recoverrun.worker.data.loader_state import LoaderState
from recoverrun.worker.data.loader_workers import end_workers
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.rng.streams import read_streams, restore_streams
from tests.unit.loaders import LOADERS, ORIGINAL_ITER, OWN, WITH_WORKERS, Make, Numbers, Play, seed

pytestmark = pytest.mark.usefixtures("streams_put_back")

ALL = {**LOADERS, **WITH_WORKERS}
PASSES = 3


def set_epoch(loader: "DataLoader[Any]", epoch: int) -> None:
    for sampler in (loader.sampler, getattr(loader.batch_sampler, "sampler", None)):
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)


def opened(loader: "DataLoader[Any]", number: int, **options: Any) -> LoaderIterator:
    """As a script does, which draws numbers before and after."""
    torch.rand(5)
    set_epoch(loader, number)
    return LoaderIterator(
        loader=loader, make=ORIGINAL_ITER, runtime=Play(), number=number, **options
    )


class Slot:
    """The items of a process in all passes, and its place after `index` items of the first or
    second one, `held`.
    """

    def __init__(self, make: Make, held: int, index: int) -> None:
        seed(OWN)
        self.loader = make(Numbers(), OWN)
        self.items: list[list[torch.Tensor]] = []
        for number in range(PASSES):
            one, items = opened(self.loader, number), []
            torch.rand(3)
            if number == held:
                items = [next(one) for _ in range(index)]
                self.opening = told_opening(one, one.origin)
                self.state = LoaderState.of(self.loader)
            self.items.append([*items, *one])
        self.streams = read_streams()


def _states(loader: "DataLoader[Any]") -> list[bytes]:
    return list(LoaderState.of(loader).generator_states)


@pytest.mark.parametrize(
    ("name", "held", "index"),
    [(name, *place) for name in LOADERS for place in [(0, 2), (1, 3), (1, 0)]]
    + [(name, 1, 3) for name in WITH_WORKERS]
    + [("shuffled by the loader's generator, workers", *place) for place in [(0, 2), (1, 0)]],
)
def test_the_rest_is_that_of_the_slot(name: str, held: int, index: int) -> None:
    slot = Slot(ALL[name], held, index)
    seed(OWN)
    loader = ALL[name](Numbers(), OWN)
    passing = PassedItems(sys._getframe().f_code)

    one = opened(loader, held, late=lambda source: taken(source, slot.opening, passing))
    one.own.move(index)  # type: ignore[attr-defined]
    restore_streams(slot.state.streams)
    for generator, state in zip(_generators(loader), slot.state.states.values(), strict=True):
        generator.set_state(state)
    found = [list(one)]
    for number in range(held + 1, PASSES):
        after = opened(loader, number)
        torch.rand(3)
        found.append(list(after))

    expected = [slot.items[held][index:], *slot.items[held + 1 :]]
    assert [[item.tolist() for item in items] for items in found] == [
        [item.tolist() for item in items] for items in expected
    ]
    assert read_streams() == slot.streams
    assert _states(loader) == _states(slot.loader)
    for lasting in (loader, slot.loader):
        end_workers(lasting._iterator)


def _generators(loader: "DataLoader[Any]") -> list[torch.Generator]:
    held = {
        id(one): one
        for owner in (loader, loader.batch_sampler, loader.sampler)
        if isinstance(one := getattr(owner, "generator", None), torch.Generator)
    }
    return list(held.values())


def first_items(items: Any, count: int) -> list[Any]:
    """As they are passed."""
    found = []
    for _ in range(count):
        try:
            found.append(next(items))
        except StopIteration:
            break
    return found


def late(slot: Slot, name: str) -> tuple[LoaderIterator, PassedItems]:
    seed(OWN)
    passing = PassedItems(first_items.__code__)
    loader = LOADERS[name](Numbers(), OWN)
    one = opened(loader, 0, late=lambda source: taken(source, slot.opening, passing))
    restore_streams(slot.state.streams)
    Numbers.read.clear()
    passing.under_way = True
    return one, passing


def test_what_is_passed_is_not_read() -> None:
    slot = Slot(LOADERS["shuffled"], 0, 0)
    one, passing = late(slot, "shuffled")
    passed = first_items(one, 5) + first_items(enumerate(one), 1000)
    passing.under_way = False

    assert passed == [None] * 5 + [(n, None) for n in range(len(slot.items[0]) - 5)]
    assert not Numbers.read
    assert one.count == len(slot.items[0])


def test_who_looks_at_the_items_is_given_them() -> None:
    slot = Slot(LOADERS["shuffled"], 0, 0)
    one, passing = late(slot, "shuffled")
    passed = first_items((2 * item for item in one), 2)
    passing.under_way = False

    assert [item.tolist() for item in passed] == [(2 * x).tolist() for x in slot.items[0][:2]]


@pytest.mark.parametrize(
    ("over", "looks"),
    [
        (iter, False),
        (enumerate, False),
        (lambda one: zip(one, "abc", strict=False), False),
        (lambda one: enumerate(zip(one, "abc", strict=False)), False),
        (lambda one: itertools.islice(one, 9), False),
        (lambda one: map(str, one), True),
        (lambda one: filter(None, one), True),
        (lambda one: map(str, enumerate(zip("abc", one, strict=False))), True),
        (itertools.cycle, True),
    ],
)
def test_who_may_look_at_items_is_known(over: Any, looks: bool) -> None:
    one = (item for item in "abc")

    over_it = over(one)

    assert is_looked_at(one) is looks
    assert over_it is not None


def test_a_function_that_is_mapped_over_items_is_given_them() -> None:
    slot = Slot(LOADERS["shuffled"], 0, 0)
    one, passing = late(slot, "shuffled")
    passed = first_items(map(torch.Tensor.tolist, one), 2)
    passing.under_way = False

    assert passed == [item.tolist() for item in slot.items[0][:2]]


def test_begun_puts_streams_and_generators_back() -> None:
    slot = Slot(LOADERS["shuffled by the loader's generator"], 0, 2)
    seed(OWN)
    loader = LOADERS["shuffled by the loader's generator"](Numbers(), OWN)
    passing = PassedItems(sys._getframe().f_code)
    one = opened(loader, 0, late=lambda source: taken(source, slot.opening, passing))
    before = read_streams(), _states(loader)

    begun(one, 2, by_rows=True)

    assert (read_streams(), _states(loader)) == before


def test_another_loader_is_refused() -> None:
    slot = Slot(LOADERS["shuffled"], 0, 0)
    loader = LOADERS["distributed"](Numbers(), OWN)
    passing = PassedItems(sys._getframe().f_code)

    with pytest.raises(NotReachable) as reason:
        opened(loader, 0, late=lambda source: taken(source, slot.opening, passing))

    assert str(reason.value) == (
        "data iterator 0 is one of DataLoader of Numbers by BatchSampler, DistributedSampler, not "
        "of DataLoader of Numbers by BatchSampler, RandomSampler"
    )
