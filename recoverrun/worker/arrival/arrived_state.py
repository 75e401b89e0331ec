"""All that others have told is put in place at the top of the step, and then looked through."""

from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

from recoverrun.worker.arrival import (
    drawing_generators,
    frame_variables,
    generator_states,
    held_tensors,
    learned,
    loose_values,
    made_places,
    other_names,
    placing,
    plain_values,
    rebound_variables,
    structure,
)
from recoverrun.worker.arrival.contents import Before, PackedState
from recoverrun.worker.arrival.frame_variables import frames_of
from recoverrun.worker.arrival.learned import PlaceParts
from recoverrun.worker.arrival.slot_sources import SlotSources
from recoverrun.worker.arrival.value_places import Spaces
from recoverrun.worker.context.namespaces import reachable
from recoverrun.worker.context.object_graph import Holdings
from recoverrun.worker.context.slot_context import Context, key_of
from recoverrun.worker.rng.registry import REGISTRY
from recoverrun.worker.rng.streams import read_streams, restore_streams
from recoverrun.worker.tracking.microbatches import LoopFrame
from recoverrun.worker.tracking.python_frames import find_frame
from recoverrun.worker.tracking.script_runtime import changing_modules

Look = Callable[[], tuple[Holdings, Spaces]]


def put(
    parts: PlaceParts,
    found: PackedState,
    loop_frame: LoopFrame,
    frame: FrameType,
    global_: dict[str, Any],
    *,
    sources: SlotSources,
) -> Before:
    """Put it in place at the top of `loop_frame`. Returns what this process had from its own first
    lines. Raises NotReachable where it does not fit, or not all has come.
    """
    runtime, told, streams = parts.worker.runtime, found.manifest, read_streams()
    frames, own_modules = frames_of(runtime.stack, frame), changing_modules(runtime)
    bound = plain_values.bound_by(runtime.stack)

    def look() -> tuple[Holdings, Spaces]:
        there = plain_values.found(frames, own_modules, last=bound)
        return there, loose_values.spaces_of(frames, runtime.own_modules)

    there, spaces = look()
    at = find_frame(loop_frame.frame_id, frame)
    assert at is not None, "its top was reached"
    before = _before(there, spaces, own_modules)
    tensors = loose_values.tensor_marks(there, spaces)
    slot = None if told["slot"] is None else Context.unpack(told["slot"])
    bind = partial(rebound_variables.bind_one, spaces=spaces, frames=frames)
    if made_places.make(told["made"], there, spaces, bind, slot):
        there, spaces = look()

    def seen() -> dict[str, Any]:
        return reachable(runtime.module_data, global_, at.f_locals)

    write = frame_variables.writer(at, global_)
    own = placing.own_values(found, seen())
    complete = placing.put_constants(parts, found, there, wound=False)
    placing.put_state(parts, found, there, spaces, frames)
    _put_variables(parts, found, frame, (there, spaces), sources)
    structure.put(told["structure"], before.structure, look, own_modules, bind)
    placing.put_attached(parts, found, {**global_, **at.f_locals})
    fits = partial(
        placing.without_own_objects, visible=seen(), tensors=tensors, donor=told["donor"]
    )
    here = fits(Context.unpack(told["here"]))
    if slot is not None:
        placing.put_context(seen(), here, fits(slot), write)
        _restore_generators(slot, sources)
    placing.put_values(seen(), own, write)
    placing.put_shares(parts, found, seen())
    if not complete:
        placing.put_constants(parts, found, there, wound=True)
    learned.put(parts, told["learned"])
    restore_streams(streams)  # what making modules and iterators drew is nobody's
    parts.taken.take(map(key_of, told["taken over"]), [one.loop for one in runtime.stack])
    return placing.begun(told, before)


def _restore_generators(slot: Context, sources: SlotSources) -> None:
    """Those of random numbers stand where the lost rank's did."""
    states = slot.generators.items()
    REGISTRY.restore({name: one for name, one in states if name not in sources.inside})


def _before(there: Holdings, spaces: Spaces, own_modules: frozenset[str]) -> Before:
    return Before(
        {**plain_values.digests(there), **rebound_variables.digests(spaces)},
        frozenset(path for path, _ in there.modules),
        loose_values.marks(there, spaces),
        structure.seen(there, spaces, own_modules),
    )


def _put_variables(
    parts: PlaceParts,
    found: PackedState,
    frame: FrameType,
    held: tuple[Holdings, Spaces],
    sources: SlotSources,
) -> None:
    """Variables, and the iterators that some of them hold."""
    stack, (there, spaces) = parts.worker.runtime.stack, held
    frames = frames_of(stack, frame)
    known = held_tensors.in_every_process(parts.made, parts.worker.strategy)
    rebound_variables.put(found.manifest["rebound"], found.tensors, spaces, frames, known)
    others = other_names.found(found.manifest["other names"], there, spaces)
    placing.put_variables(found, stack, frame, known)
    frame_variables.write_all(others, stack, frame)
    own = parts.worker.runtime.own_modules
    drawn = generator_states.below(stack, there, own)
    hold = drawing_generators.holding(found.manifest["drawn"], there, sources.hold)
    placing.put_iterators(found, frames, hold)
    drew = drawing_generators.drew(sources.drew, own)
    drawing_generators.put(found.manifest["drawn"], drawn, found.tensors, known, drew)
