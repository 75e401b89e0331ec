"""A loader's iterator that begins late: at the first item that is really read.

A process that comes into the middle of a loop passes items that others had long ago. Of a loader's
iterator they are only counted. The iterator is begun where its slot began it, at the item that is
wanted: rows are skipped by index, and worker processes begin at that row. `LoaderOpening.as_rank`
does so for another rank, with copies of all that moves; here the script's own objects move.
"""

import gc
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from opcode import opmap
from types import CodeType, FrameType, GeneratorType, MappingProxyType
from typing import Any

import torch
from torch.utils.data import DataLoader

from recoverrun.worker.data import generator_source
from recoverrun.worker.data.begun_iterators import begun, begun_again, pass_on, put_state
from recoverrun.worker.data.handed_items import gives_on
from recoverrun.worker.data.iterator_origin import Origin
from recoverrun.worker.data.loader_clone import keeps_workers
from recoverrun.worker.data.loader_iterator import LoaderIterator
from recoverrun.worker.data.loader_keepers import keepers_of
from recoverrun.worker.data.loader_opening import RankIterator
from recoverrun.worker.data.loader_state import LoaderState
from recoverrun.worker.data.loader_workers import checked
from recoverrun.worker.data.put_back import Contents
from recoverrun.worker.data.samplers import samplers_of
from recoverrun.worker.errors import NotReachable, NotReplayable
from recoverrun.worker.rng.skip_ahead import skip_ahead
from recoverrun.worker.rng.streams import Streams, read_streams, restore_streams

HAND_ON = ("tqdm", generator_source.__name__)
"""Packages and modules whose iterators give on what they are given, and do not look at it."""

HANDING_ON = (enumerate, zip, itertools.islice, itertools.chain)
"""Iterators of Python's own that do the same; `map`, say, gives each item to a function."""

YIELDS_FROM = opmap["SEND"]
"""What the code of a generator is at while it is at a `yield from`."""

BUILT_IN = ("builtins", "itertools")

Found = Callable[[], Sequence[Mapping[str, Any]]]
"""Tells what the keepers of a state held as an iterator began."""

Epochs = tuple[int | None, ...]
"""Of the samplers of a loader, in the order of `samplers_of`."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The state in which the slot asked an iterator for its first item."""

    streams: Streams | None
    generators: tuple[bytes, ...]
    epochs: Epochs


@dataclass(frozen=True, slots=True)
class SlotOpening:
    """The way in which a slot opened one of its iterators."""

    kind: str  # of the loader and its data
    origin: Origin | None  # None: not told
    epochs: Epochs
    started: Moment | None  # None: it has asked for no item, or has worker processes
    renewed: bool  # by worker processes that an earlier iterator had begun


class PassedItems:
    """Says that items are being passed, and by which code."""

    restated: Mapping[int, Found] = MappingProxyType({})
    """The numbers of iterators whose state is put in place once their items have been passed."""

    def __init__(self, code: CodeType) -> None:
        self._code = code
        self._give_on: dict[tuple[CodeType, int], bool] = {}
        self.under_way = False

    def only_counts(self, frame: FrameType | None, ends: bool) -> bool:
        """True if nobody looks at the item that is asked for in `frame`. `ends`: how many there are
        is known; if not, a generator that goes on after the last one has to be given all.
        """
        if not self.under_way:
            return False
        while frame is not None and (hands_on(frame) or (ends and self._gives_on(frame))):
            frame = frame.f_back
        return frame is not None and frame.f_code is self._code

    def _gives_on(self, frame: FrameType) -> bool:
        """True if the item that is asked for in `frame` is not looked at there."""
        place = frame.f_code, frame.f_lasti
        if place not in self._give_on:
            self._give_on[place] = _yields_from(frame) or gives_on(*place)
        return self._give_on[place]


def hands_on(frame: FrameType) -> bool:
    """True of code that gives on the items of an iterator, and does not look at them."""
    name = str(frame.f_globals.get("__name__"))
    return name in HAND_ON or name.partition(".")[0] in HAND_ON


def _yields_from(frame: FrameType) -> bool:
    return frame.f_code.co_code[frame.f_lasti] == YIELDS_FROM


class LateItems:
    """The items of `source`, a loader's iterator of this process."""

    def __init__(self, source: LoaderIterator, passing: PassedItems) -> None:
        self._source = source
        self._passing = passing
        self._begun: RankIterator | None = None
        self._by_rows = True  # no item has drawn random numbers in a worker process
        self.first = self.at = source.count  # what it had given before it began anew
        self._looked_at: bool | None = None  # not asked yet
        self._kept: Contents | None = None  # of keepers of a state, as its iterator began again
        self._count = -1 if source.opening.is_iterable else length_of(source.loader)

    def __iter__(self) -> "LateItems":
        return self

    def __len__(self) -> int:
        return len(self._source.loader._index_sampler)

    def __next__(self) -> Any:
        if self._only_counts(sys._getframe(2)):  # beyond that of `source`
            if self.at == self._count:
                raise StopIteration
            self.at += 1
            return None
        try:
            item = self._read()
        except NotReplayable as reason:
            raise NotReachable(str(reason)) from reason
        self.at += 1
        return item

    def _only_counts(self, frame: FrameType) -> bool:
        if not self._passing.only_counts(frame, self._count >= 0):
            return False
        if self._looked_at is None:
            self._looked_at = is_looked_at(self._source)
        return not self._looked_at

    @property
    def items(self) -> Iterator[Any] | None:
        """The iterator that gives them; None as long as none was read."""
        return None if self._begun is None else self._begun.items

    def move(self, count: int) -> None:
        """`count` items count as given; none of them is read."""
        self.at = self._source.count = count

    def restate(self) -> None:
        """It is about to be given its state, and its keepers theirs.

        Raises NotReachable.
        """
        found = self._passing.restated[self._source.number]
        try:
            if self._begun is None:
                self._begun = begun_again(self._source, self.at, found())
            pass_on(self._source, self._begun, self.at)
        except NotReplayable as reason:
            raise NotReachable(str(reason)) from reason
        if self._kept is not None:
            self._kept.put_back()
            self._kept = None

    def _read(self) -> Any:
        source = self._source
        if self._begun is None and (found := self._passing.restated.get(source.number)):
            self._kept = Contents(keepers_of(source.loader))
            self._begun = begun_again(source, self.at, found())
        elif self._begun is None:
            self._begun = begun(source, self.at, by_rows=self._by_rows)
            if self.at == 0 and not (source.loader.num_workers or self._passing.under_way):
                _draw_order(self._begun)
            _begin_lasting_workers(source)
        if self._kept is not None:
            pass_on(source, self._begun, self.at)
        source.go_up_to(self._begun, self.at)
        read = next(self._begun.items)
        self._begun.at += 1
        if not source.loader.num_workers:
            return read
        if checked(read, source.loader.dataset).drew and self._by_rows:
            self._by_rows, self._begun = False, None
            return self._read()
        return read.item


def is_looked_at(source: Iterator[Any]) -> bool:
    """True if an iterator of Python's own that may look at its items goes over `source`."""
    over, seen = [source], {id(source)}
    while over:
        holders = gc.get_referrers(*over)
        inner, over = over, []
        for holder in holders:
            kind = type(holder)
            if id(holder) in seen or holder is inner or kind is GeneratorType:
                continue
            is_iterator = hasattr(kind, "__next__") and kind.__module__ in BUILT_IN
            if is_iterator and kind not in HANDING_ON:
                return True
            if is_iterator or kind is tuple:  # `zip` and `map` keep those below in one
                seen.add(id(holder))
                over.append(holder)
    return False


def taken(source: LoaderIterator, told: SlotOpening, passing: PassedItems) -> LateItems:
    """Let `source` be opened as its slot opened it, and return its items.

    Raises NotReachable if it is an iterator over other data.
    """
    loader, opening = source.loader, source.opening
    origin_here, kind = opening.origin, kind_of(loader)
    if kind != told.kind:
        raise NotReachable(f"data iterator {source.number} is one of {kind}, not of {told.kind}")
    for sampler, epoch in zip(samplers_of(loader), told.epochs, strict=True):
        if epoch is not None:
            sampler.epoch = epoch
    opening.renewed = told.renewed
    state = opening.created  # some samplers make their generator as they begin
    if told.origin is not None:
        origin = replace(told.origin, loader=origin_here.loader)
        rows = {origin.rows, origin_here.rows} - {-1}  # which without generators are not known
        if origin.subset_rows != origin_here.subset_rows or len(rows) > 1:
            raise NotReachable(f"{kind} goes through other rows here than in its slot")
        generators = origin.require_generators()
        state = _at(
            _begun_before(loader, state, generators), origin.streams, generators, told.epochs
        )
        opening.origin = origin
    opening.created = state
    if told.started is not None:
        moment = told.started
        opening.started = _at(state, moment.streams, moment.generators, moment.epochs)
    return LateItems(source, passing)


def _begun_before(
    loader: "DataLoader[Any]", state: LoaderState, generators: tuple[bytes, ...]
) -> LoaderState:
    """Some samplers make their generator as they begin: where the slot's had done so before it made
    this iterator, those of this process have done so, too, or do so now.
    """
    wanted = len(generators)
    if len(state.states) == wanted:
        return state
    lacking = [one for one in samplers_of(loader) if getattr(one, "generator", "none") is None]
    if len(LoaderState.of(loader).states) + len(lacking) == wanted:
        for sampler in lacking:
            sampler.generator = torch.Generator()
    return replace(LoaderState.of(loader), streams=state.streams, resumed=state.resumed)


def kind_of(loader: "DataLoader[Any]") -> str:
    """The identity of an iterator beside its number."""
    samplers = ", ".join(type(sampler).__name__ for sampler in samplers_of(loader))
    return f"{type(loader).__name__} of {type(loader.dataset).__name__} by {samplers}"


def _at(
    state: LoaderState, streams: Streams | None, generators: tuple[bytes, ...], epochs: Epochs
) -> LoaderState:
    try:
        moved = state.with_generators(generators)
    except NotReplayable as reason:
        raise NotReachable(str(reason)) from reason
    samplers = tuple(
        (generator, epoch) for (generator, _), epoch in zip(state.samplers, epochs, strict=True)
    )
    return replace(moved, streams=streams or state.streams, samplers=samplers)


def length_of(loader: "DataLoader[Any]") -> int:
    """The number of its items; -1 if it does not know."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return -1


def _draw_order(theirs: RankIterator) -> None:
    """The first item is asked for here and now, and with it numbers that give the order."""
    moved = skip_ahead(read_streams(), *theirs.order)
    if moved is None:
        raise NotReplayable("a sampler draws random numbers of Python or numpy")
    restore_streams(moved)


def _begin_lasting_workers(source: LoaderIterator) -> None:
    """Give the loader the worker processes that all its iterators have, as the slot's loader has.

    Else its next iterator would begin them, and draw a seed for them that the slot's does not.
    """
    loader = source.loader
    if not loader.persistent_workers or keeps_workers(loader):
        return
    present = LoaderState.of(loader)
    source.make(loader)
    put_state(loader, present)
