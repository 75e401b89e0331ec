"""The script's iterators over data in a fresh process, brought to where those of its slot stand.

An iterator over a loader is known by its number: the script is run again, and makes the same ones
in the same order. An iterator that a generator makes while its items are passed has a number below
0 at first: of all that the generator made in earlier passes over its data, the slot has the last.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from types import GeneratorType
from typing import Any

from torch.utils.data import DataLoader

from recoverrun.worker.arrival.iterator_places import (
    HeldIterator,
    at_path,
    items_given,
    loader_below,
    source_of,
)
from recoverrun.worker.arrival.source_places import SourcePlace, loader_iterators
from recoverrun.worker.data.generator_source import GeneratorSource
from recoverrun.worker.data.late_items import Found, LateItems, PassedItems, kind_of, taken
from recoverrun.worker.data.loader_iterator import LOOKED_AT_S, PASSING_S, LoaderIterator
from recoverrun.worker.data.weak_source import WeakSource
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.rng.registry import REGISTRY
from recoverrun.worker.rng.streams import read_streams
from recoverrun.worker.tracking.script_runtime import ScriptRuntime

FORGOTTEN_AFTER = 64
"""So many items are passed until what sources keep of them is dropped."""

DRAWS = "{kind} draws random numbers as its items are passed again"
ENDLESS = "to pass items of {kind} again takes more than {seconds:.0f} s"
SLOW = "to pass {count} items of {kind} again would take about {seconds:.0f} s"
ENDED = "{kind} ended after {passed} of {count} items, which the others have passed"
UNEQUAL = "data iterator {number} has given {here} items in this process, and {there} in its slot"
NOT_THERE = "{kind} does not come to where the others' has come"
UNTOLD = "data iterator {number} of the slot cannot be made in this process"


class SlotSources:
    """The script's iterators over data, in a process that comes to the place of its slot."""

    def __init__(self, runtime: ScriptRuntime) -> None:
        self._runtime = runtime
        self._told: dict[int, SourcePlace] = {}
        self._settled = self._own_data = False
        self._making: int | None = None
        self._passing = PassedItems(_next.__code__)
        self._moved: set[int] = set()  # numbers of those whose count was set: nobody read the items
        self._unnamed = 0  # iterators that were made as items were passed: they get numbers below 0
        self.inside: set[str] = set()  # names of generators: see `_note_generators`
        self.remade = False  # items may draw random numbers: the generators are put in place later
        self.drew: list[Any] = []  # iterators whose items drew some

    def restates(self, found: Mapping[int, Found]) -> None:
        """The iterators of these numbers are given their state once they have passed their items.
        `found` tells what the objects with that state held as each iterator began.
        """
        self._passing.restated = found

    def restate(self) -> None:
        """Make those of `restates` ready to be given their state. Raises NotReachable."""
        for _, one in loader_iterators(self._runtime.sources):
            if one.number in self._passing.restated and isinstance(one.own, LateItems):
                one.own.restate()

    def take(self, told: Sequence[SourcePlace], *, own_data: bool = False) -> None:
        """Take the places of the slot's iterators, some of which the script may have made already.
        With `own_data`, items may draw this process's own random numbers as they are passed.
        """
        self._own_data = own_data
        self._told = {place.number: place for place in told}
        for _, one in loader_iterators(self._runtime.sources):
            place = self._told.get(one.number)
            if place is not None:
                one.own = taken(one, place.opening, self._passing)

    def opens(self, number: int) -> Callable[[LoaderIterator], Iterator[Any]] | None:
        """A function that begins iterator `number` late; None if it begins as it is made."""
        if self._passing.under_way:
            return self._begin_unnamed
        place = None if self._settled and self._making != number else self._told.get(number)
        if place is None:
            return None
        return lambda source: taken(source, place.opening, self._passing)

    def settle(self) -> None:
        """The header of the held iteration begins: let each iterator give its slot's next item."""
        self._settled = True
        for _, one in loader_iterators(self._runtime.sources):
            place = self._told.get(one.number)
            if place is not None:
                if one.count != place.before:
                    self._moved.add(one.number)
                _advance(one, place.before)

    def check(self) -> None:
        """Raises NotReachable unless all iterators have given as many items as the slot's."""
        for _, one in loader_iterators(self._runtime.sources):
            place = self._told.get(one.number)
            if place is not None and one.count != place.count:
                raise NotReachable(
                    UNEQUAL.format(number=one.number, here=one.count, there=place.count)
                )

    # --------------------------------------------------------------------------- passing items

    def pass_items(self, items: Iterator[Any], count: int, *, at_top: bool = False) -> None:
        """Let `items` give `count` items that others had long ago: before the header of the held
        iteration began or, `at_top`, up to now.

        Raises NotReachable if there are not so many, or if they take long or draw random numbers.
        """
        kind, mark, opened = _kind(items), self._runtime.draws.count, self._runtime.opened
        before, clock = read_streams(), _Clock(kind, count)
        known = REGISTRY.alive().keys()
        with self._passes():
            for passed in range(count):
                if not _next(items):
                    raise NotReachable(ENDED.format(kind=kind, passed=passed, count=count))
                clock.passed(passed + 1)
                if not passed % FORGOTTEN_AFTER:
                    self._forget(mark)
        self._forget(mark)
        self._runtime.opened = opened
        if read_streams() != before and not self._own_data:
            self._require_remade(items, kind)
        self._note_generators(items, known)
        self._name(at_top)

    def _note_generators(self, items: Iterator[Any], known: Set[str]) -> None:
        """Note generators of random numbers that `items` have made since those that are `known`:
        they stand where the slot's do. Survivors cannot tell their states.
        """
        source = source_of(items)
        if isinstance(source, GeneratorSource) and source.again is not None:
            self.inside |= REGISTRY.alive().keys() - known

    def bring(self, items: Iterator[Any], count: int) -> None:
        """Bring `items`, which a variable holds, to where it has given `count` items.

        Raises NotReachable if it cannot be brought there.
        """
        given = items_given(items)
        if given is None or given > count:
            raise NotReachable(f"how far {_kind(items)} has come is unknown in this process")
        if given == count or not self._settled:
            self.pass_items(items, count - given)
            return
        late = [
            (one.own, one.count)
            for _, one in loader_iterators(self._runtime.sources)
            if isinstance(one.own, LateItems)
        ]
        for own, _ in late:  # loaders below `items` are at their places already: begin again
            own.move(own.first)
        self.pass_items(items, count - given, at_top=True)
        for own, at in late:
            own.move(at)
        for _, one in loader_iterators(self._runtime.sources):
            place = self._told.get(one.number)
            if place is not None:
                _advance(one, place.count)

    def hold(self, told: HeldIterator, present: Any, visible: Mapping[str, Any]) -> Any:
        """The iterator for a variable that holds `present` now. If the script made it in an
        iteration that is passed over here, it is made of the loader that `visible` leads to.

        For `passes` and `arrived`. Raises NotReachable.
        """
        if told.over >= 0:
            self._follow(present, told)
            return present
        if told.number < 0:
            self.bring(present, told.given)
            return present
        for _, one in loader_iterators(self._runtime.sources):
            if one.number == told.number:
                if not self._settled:
                    _advance(one, told.given)
                return one
        place, loader = self._told.get(told.number), at_path(told.loader, visible)
        if place is None or not isinstance(loader, DataLoader):
            raise NotReachable(UNTOLD.format(number=told.number))
        opened, self._making = self._runtime.opened, told.number
        self._runtime.opened = told.number
        made = iter(loader)
        self._runtime.opened, self._making = opened, None
        if isinstance(made, LoaderIterator):
            _advance(made, place.count)
        return made

    def _follow(self, items: Iterator[Any], told: HeldIterator) -> None:
        """Let a generator give items until the iterator over a loader below it has given as many as
        the slot's. Raises NotReachable.
        """
        kind, mark, opened = _kind(items), self._runtime.draws.count, self._runtime.opened
        before, until = read_streams(), time.monotonic() + PASSING_S
        with self._passes():
            while not _has_given(loader_below(items), told.given):
                if not isinstance(items, GeneratorType) or not _next(items):
                    raise NotReachable(NOT_THERE.format(kind=kind))
                if time.monotonic() > until:
                    raise NotReachable(ENDLESS.format(kind=kind, seconds=PASSING_S))
        self._forget(mark)
        self._runtime.opened = opened
        if read_streams() != before:
            self._require_remade(items, kind)
        self._name(at_top=told.at >= 0)
        if not _stands(items, told) or told.over in self._moved:
            raise NotReachable(NOT_THERE.format(kind=kind))

    def _require_remade(self, items: Iterator[Any], kind: str) -> None:
        if not self.remade:
            raise NotReachable(DRAWS.format(kind=kind))
        self.drew.append(items)

    @contextmanager
    def _passes(self) -> Iterator[None]:
        self._passing.under_way = True
        try:
            yield
        finally:
            self._passing.under_way = False

    def _forget(self, mark: int) -> None:
        """Drop what was noted of the items passed since draw number `mark`."""
        self._runtime.draws.pass_by(mark)
        for source in self._runtime.sources:
            source.begin_step(source.count)

    def _begin_unnamed(self, source: LoaderIterator) -> LateItems:
        """Begin an iterator before it is known which one of the slot's it is: that shows only when
        all items are passed (`_name`). Until then it is taken for the last one, so that an item
        which is held back when its reader has passed it is the slot's.
        """
        self._unnamed += 1
        source.number = source.opening.number = -self._unnamed
        kind = kind_of(source.loader)
        place = next((one for one in self._lacking() if one.opening.kind == kind), None)
        return LateItems(source, self._passing) if place is None else self._taken(source, place)

    def _lacking(self) -> list[SourcePlace]:
        """The iterators of the slot that this process has not made yet, the last one first."""
        here = {one.number for _, one in loader_iterators(self._runtime.sources)}
        last = sorted(self._told.values(), key=lambda place: -place.number)
        return [place for place in last if place.number not in here]

    def _name(self, at_top: bool) -> None:
        """Number the iterators that were made while items were passed, as far as they still exist:
        they are the last ones of the slot.
        """
        pairs = list(loader_iterators(self._runtime.sources))
        lacking = self._lacking()
        for known, one in reversed(pairs):
            if one.number >= 0:
                continue
            place = next((place for place in lacking if _may_be(one, place, at_top)), None)
            if place is not None:
                lacking.remove(place)
                one.number = one.opening.number = place.number
                if isinstance(known, WeakSource):
                    known.number = place.number
                one.own = taken(one, place.opening, self._passing)

    def _taken(self, source: LoaderIterator, place: SourcePlace) -> LateItems:
        return taken(source, place.opening, self._passing)


def _may_be(one: LoaderIterator, place: SourcePlace, at_top: bool) -> bool:
    there = place.count if at_top else place.before
    return place.opening.kind == kind_of(one.loader) and one.count <= there


def _next(items: Iterator[Any]) -> bool:
    """Pass one item, which nobody looks at; False if there was none (see `PassedItems`)."""
    try:
        next(items)
    except StopIteration:
        return False
    return True


def _has_given(below: LoaderIterator | None, count: int) -> bool:
    return (0 if below is None else below.count) >= count


def _stands(items: Iterator[Any], told: HeldIterator) -> bool:
    """True of a generator that waits at the instruction and the item at which the slot's waits."""
    below, frame = loader_below(items), getattr(items, "gi_frame", None)
    if below is None or frame is None:
        return not told.given
    at = -1 if told.at < 0 else frame.f_lasti
    return (below.number, below.count, at) == (told.over, told.given, told.at)


def _advance(one: LoaderIterator, count: int) -> None:
    """Set `one` to where it has given `count` items, without reading any of them."""
    if one.count > count:
        raise NotReachable(UNEQUAL.format(number=one.number, here=one.count, there=count))
    if isinstance(one.own, LateItems):
        one.own.move(count)


def _kind(items: Any) -> str:
    return str(getattr(items, "__qualname__", "") or type(items).__name__)


class _Clock:
    """The time limit of `count` items."""

    def __init__(self, kind: str, count: int) -> None:
        self._kind, self._count = kind, count
        self._begun = time.monotonic()

    def passed(self, passed: int) -> None:
        """Raises NotReachable if all would take longer than `PASSING_S`."""
        took = time.monotonic() - self._begun
        seconds = took * self._count / passed
        if took > LOOKED_AT_S and seconds > PASSING_S:
            raise NotReachable(SLOW.format(count=self._count, kind=self._kind, seconds=seconds))
