"""The positions of a slot's data iterators, told by a survivor, for a fresh process of that slot.

Counts are equal on all ranks. What orders the data of a slot is what its iterator began with
(`Origin`); between that and the first item a survivor has drawn as many numbers as the slot.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from recoverrun.worker.data.iterator_origin import Origin, advanced_generators
from recoverrun.worker.data.late_items import Epochs, Moment, SlotOpening, kind_of
from recoverrun.worker.data.loader_iterator import LoaderIterator
from recoverrun.worker.data.loader_state import LoaderState
from recoverrun.worker.data.source import Source
from recoverrun.worker.data.weak_source import WeakSource
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.rng.skip_ahead import skip_ahead
from recoverrun.worker.rng.streams import Streams
from recoverrun.worker.tracking.microbatches import LoopFrame

OriginOf = Callable[[LoaderIterator], Origin | None]
"""Returns where the slot made the iterator that is this one here; None: nobody knows."""


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """The position of one iterator over a loader."""

    number: int
    before: int  # items that it had given when the header of the held iteration began
    count: int  # and has given now
    opening: SlotOpening

    def pack(self) -> list[Any]:
        """Plain values for msgpack."""
        told, moment = self.opening, self.opening.started
        return [
            self.number,
            self.before,
            self.count,
            told.kind,
            None if told.origin is None else told.origin.pack(),
            list(told.epochs),
            None if moment is None else _packed(moment),
            told.renewed,
        ]

    @staticmethod
    def unpack(packed: list[Any]) -> "SourcePlace":
        """Raises ValueError if `packed` is not what `pack` makes."""
        number, before, count, kind, origin, epochs, moment, renewed = packed
        opening = SlotOpening(
            kind=str(kind),
            origin=None if origin is None else Origin.unpack(origin),
            epochs=_epochs(epochs),
            started=None if moment is None else _unpacked(moment),
            renewed=bool(renewed),
        )
        return SourcePlace(int(number), int(before), int(count), opening)


def _packed(moment: Moment) -> list[Any]:
    streams = None if moment.streams is None else moment.streams.pack()
    return [streams, list(moment.generators), list(moment.epochs)]


def _unpacked(packed: list[Any]) -> Moment:
    streams, generators, epochs = packed
    if any(type(state) is not bytes for state in generators):
        raise ValueError("no states of generators")
    told = None if streams is None else Streams.unpack(streams)
    return Moment(told, tuple(generators), _epochs(epochs))


def _epochs(packed: list[Any]) -> Epochs:
    if any(epoch is not None and type(epoch) is not int for epoch in packed):
        raise ValueError("no epochs of samplers")
    return tuple(packed)


def loader_iterators(sources: Iterable[Source]) -> Iterator[tuple[Source, LoaderIterator]]:
    """The iterators over loaders among the script's `sources` that it still holds."""
    for source in sources:
        held = source.held if isinstance(source, WeakSource) else source
        if isinstance(held, LoaderIterator):
            yield source, held


def told_sources(
    sources: Iterable[Source], held: LoopFrame, origin_of: OriginOf = lambda one: one.origin
) -> list[SourcePlace]:
    """Tell where the script's iterators stand at the top of `held`, the innermost loop.

    Raises NotReachable where that cannot be told.
    """
    return [
        SourcePlace(
            number=one.number,
            before=before_header(source, held),
            count=one.count,
            opening=told_opening(one, origin_of(one)),
        )
        for source, one in loader_iterators(sources)
    ]


def before_header(source: Source, held: LoopFrame) -> int:
    """The number of items of `source` before the header of the present iteration of `held`."""
    if held.loop.kind == "for":
        return held.counts.get(id(source), 0)
    return max(0, source.count - (held.tested or {}).get(id(source), 0))


def told_opening(one: LoaderIterator, origin: Origin | None) -> SlotOpening:
    opening = one.opening
    created, started = opening.created, opening.started
    moment = None
    if started is not None and origin is not None:
        moment = _moved(created, started, origin)
    return SlotOpening(
        kind=kind_of(one.loader),
        origin=origin,
        epochs=_of(created),
        started=moment,
        renewed=opening.renewed,
    )


def _moved(created: LoaderState, started: LoaderState, origin: Origin) -> Moment:
    """The moment as far from the slot's `origin` as this rank's first item was from where it made
    its own.
    """
    generators = None
    if origin.generators is not None:
        generators = advanced_generators(
            origin.generators, created.generator_states, started.generator_states
        )
    if generators is None:
        raise NotReachable("where a loader's own generator stands is unknown for its slot")
    streams = origin.streams
    if streams is not None:
        streams = skip_ahead(streams, created.streams, started.streams, hosts=False)
    return Moment(streams, generators, _of(started))


def _of(state: LoaderState) -> Epochs:
    return tuple(epoch if type(epoch) is int else None for _, epoch in state.samplers)
