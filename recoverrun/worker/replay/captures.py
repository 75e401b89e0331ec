"""The contexts of this rank, point by point: as iterations begin, and as backwards end.

Every rank captures at the same points, so that what a lost rank left can be held against what this
one had there (`lost_rank`).
"""

import sys
from collections.abc import Callable, Mapping, Set
from types import MappingProxyType
from typing import Any

from ft_collectives.communicators.script_modes import aside
from recoverrun.worker.context.attached_state import ATTACHED
from recoverrun.worker.context.changed_in_place import IN_PLACE
from recoverrun.worker.context.fingerprints import grown, marks
from recoverrun.worker.context.namespaces import around_of, made_by, seen_by
from recoverrun.worker.context.slot_context import (
    CARRIED_TENSOR_BYTES,
    Context,
    Key,
    Kind,
    Path,
    Point,
    attributes_of,
    values_of,
)
from recoverrun.worker.data.batch_substitution import dicts_in
from recoverrun.worker.data.iterator_origin import Origin
from recoverrun.worker.instrumentation import Loop
from recoverrun.worker.rng.private_draws import draw_sites
from recoverrun.worker.rng.registry import REGISTRY
from recoverrun.worker.rng.streams import Streams, read_streams
from recoverrun.worker.tracking.microbatches import Microbatch, MicrobatchPlace, Top
from recoverrun.worker.tracking.python_frames import find_frame
from recoverrun.worker.tracking.script_runtime import ScriptRuntime

KEPT_STEPS = 2
"""Transactions whose points are kept: a lost rank may have stopped one before."""


Rest = Callable[[MicrobatchPlace, Mapping[str, Any], Set[Key]], Mapping[Key, Any]]
"""Takes the place of a microbatch, the variables as its backward ends, and the unknown ones."""


def no_rest(
    place: MicrobatchPlace, names: Mapping[str, Any], unknown: Set[Key]
) -> Mapping[Key, Any]:
    """Nothing is known of the rest of an iteration."""
    return {}


class Captures:
    """The points of this rank, oldest first."""

    def __init__(self, runtime: ScriptRuntime, rest: Rest = no_rest) -> None:
        """`rest` is what the rest of an iteration will make of variables (`tails`)."""
        self._runtime = runtime
        self._rest = rest
        self.points: list[Context] = []

    def top(self, step: int, index: int, attempt: int, top: Top) -> Context:
        """An iteration begins, perhaps that of microbatch `index` of the transaction `step`.

        It is one of our points once it is kept.
        """
        context = capture(
            point=(step, index, "top", attempt),
            loop=top.loop,
            streams=top.streams,
            names=seen_by(top.loop, top.globals, top.names),
            loaders=self.loaders(),
            attributes=top.attributes,
        )
        top.context, top.made = context, REGISTRY.made()
        return context

    def after(self, step: int, microbatch: Microbatch, *, look_again: bool = True) -> Context:
        """The backward of `microbatch` has ended. With `look_again` all objects of the script are
        looked through anew: at the end of a transaction, as others may need what they hold.
        """
        index, place = microbatch.index, microbatch.place
        return self.keep(self.present(step, index, place, look_again=look_again))

    def present(
        self, step: int, index: int, place: MicrobatchPlace, *, look_again: bool = True
    ) -> Context:
        """The context now, after the backward of the microbatch of that `place`."""
        top = place.top
        frame = find_frame(top.frame_id, sys._getframe(1))
        local = frame.f_locals if frame is not None and not top.loop.module_level else {}
        names = seen_by(top.loop, top.globals, local)
        made = made_by(top.loop, local)
        behind = self._rest(place, local or top.globals, frozenset())
        around: dict[str, Any] = {}
        if look_again:
            IN_PLACE.look()
            around = {
                **around_of(top.loop, top.globals, local),
                **ATTACHED.names(),
                **self._runtime.module_data.beside(top.globals),
            }
        if sys.version_info < (3, 13):
            local.clear()  # the frame would keep every local alive until the next call
        return capture(
            point=(step, index, "after", 0),
            loop=top.loop,
            streams=read_streams(),
            names=names,
            loaders=self.loaders(),
            attributes=self._attributes(around, look_again),
            made=made,
            behind=behind,
        )

    @aside
    def executed(
        self, names: dict[str, Any], microbatch: Microbatch, step: int, unknown: Set[Key]
    ) -> Context:
        """The context of a rank that was executed, of which some values are `unknown`; `names` are
        those of the region.
        """
        place, own = microbatch.place, self._runtime.own_modules
        top, loop = place.top, place.top.loop
        return capture(
            point=(step, microbatch.index, "after", 0),
            loop=loop,
            streams=read_streams(),
            names=seen_by(loop, top.globals, names),
            loaders={},
            attributes=attributes_of(around_of(loop, top.globals, names), own),
            made=made_by(loop, names),
            behind=self._rest(place, names, unknown),
        )

    def _attributes(self, around: Mapping[str, Any], look_again: bool) -> dict[Path, Any]:
        observer, own = self._runtime.observer, self._runtime.own_modules
        if look_again or observer is None:
            return attributes_of(around, own, dicts_in(self._runtime.given()))
        return observer.attributes(None, own, ())

    def loaders(self) -> dict[int, Origin]:
        """The origins of the iterators over loaders, by their numbers."""
        return {
            source.number: origin
            for source in self._runtime.sources
            if not getattr(source, "gone", False)
            and (origin := getattr(source, "origin", None)) is not None
        }

    def at(self, point: Point) -> Context | None:
        return next((one for one in self.points if one.point == point), None)

    @property
    def by_point(self) -> dict[Point, Context]:
        return {one.point: one for one in self.points}

    def include(self, context: Context) -> None:
        """Take a point that was not kept for one of ours, at its place among them."""
        others = [one for one in self.points if one.point != context.point]
        self.points = sorted([*others, context], key=lambda one: one.point)

    def keep(self, context: Context) -> Context:
        if self.points and self.points[-1].point >= context.point:  # what was there counts no more
            self.points = [one for one in self.points if one.point < context.point]
        oldest = context.step - KEPT_STEPS
        if self.points and self.points[0].step < oldest:
            kept = [
                loop_frame.top.context
                for loop_frame in self._runtime.under_way()
                if loop_frame.top is not None
            ]
            self.points = [
                point
                for point in self.points
                if point.step >= oldest or any(point is begun for begun in kept)
            ]
        self.points.append(context)
        return context


def capture(
    *,
    point: tuple[int, int, Kind, int],
    loop: Loop,
    streams: Streams,
    names: Mapping[str, Any],
    loaders: Mapping[int, Origin],
    attributes: Mapping[Path, Any],
    made: Mapping[str, Any] = MappingProxyType({}),
    behind: Mapping[Key, Any] = MappingProxyType({}),
) -> Context:
    """The context that `names` (what the region sees) and the script's objects make."""
    step, index, kind, attempt = point
    carried = {name: names[name] for name in sorted(loop.carried & names.keys())} | grown(names)
    return Context(
        step=step,
        index=index,
        kind=kind,
        attempt=attempt,
        loop=loop.id,
        streams=streams,
        names=values_of(names, loop.carried) | marks(carried, CARRIED_TENSOR_BYTES),
        attributes=dict(attributes),
        generators=REGISTRY.states(),
        loaders=dict(loaders),
        alone_at=frozenset(draw_sites),
        made=values_of(made),
        behind=dict(behind),
    )
