"""A process goes on from a snapshot, as all ranks do.

The script runs from its first line, with all ranks there. Its loops are wound forward to the step
at whose top the snapshot was taken (`arrival.winding`), and there everything is put in place.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import torch

from recoverrun.worker.arrival import (
    dict_kinds,
    frame_variables,
    generator_states,
    held_tensors,
    loose_values,
    lost_entries,
    memory_places,
    placing,
    plain_values,
    rebound_variables,
    values_by_parameter,
)
from recoverrun.worker.arrival.contents import PackedState
from recoverrun.worker.arrival.frame_variables import frames_of
from recoverrun.worker.arrival.generator_states import is_own_iterator
from recoverrun.worker.arrival.iterator_places import HeldIterator, Hold
from recoverrun.worker.arrival.learned import PlaceParts
from recoverrun.worker.arrival.packing import unpack
from recoverrun.worker.arrival.sharded_tensors import local
from recoverrun.worker.arrival.state_source import StateLost
from recoverrun.worker.arrival.value_places import Place, Spaces
from recoverrun.worker.arrival.winding import SurvivorPosition, Winding
from recoverrun.worker.context.made_objects import MadeObjects
from recoverrun.worker.context.namespaces import reachable
from recoverrun.worker.context.object_graph import Holdings
from recoverrun.worker.context.slot_context import Context
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.rng.registry import REGISTRY
from recoverrun.worker.rng.streams import Streams, read_streams, restore_streams
from recoverrun.worker.snapshots import (
    computed_tensors,
    key_orders,
    library_objects,
    loader_states,
    moved_sources,
    rank_image,
    rank_tensors,
    references,
    script_values,
    set_orders,
    shared_objects,
    trained_parameters,
)
from recoverrun.worker.snapshots.failures import fail, give_up
from recoverrun.worker.snapshots.outer_tops import OuterTops
from recoverrun.worker.snapshots.snapshot import Reading, Snapshot
from recoverrun.worker.snapshots.untouched_zeros import untouched_zeros
from recoverrun.worker.snapshots.values_at_start import ValuesAtStart
from recoverrun.worker.step.unvoted_steps import UnvotedSteps
from recoverrun.worker.tracking.microbatches import LoopFrame
from recoverrun.worker.tracking.python_frames import find_frame
from recoverrun.worker.tracking.script_runtime import changing_modules
from recoverrun.worker.tracking.trained_loops import TrainedLoop
from rendezvous.protocol.snapshot_messages import Restored
from rendezvous.snapshots.identity import SnapshotId

UNLIKE = "the snapshot holds {there} {what}, and this process {here}"


class Restoring:
    """Implements `arrival.winding.Arrives`."""

    def __init__(
        self,
        parts: PlaceParts,
        steps: UnvotedSteps,
        snapshot: Snapshot,
        outer: OuterTops,
        resumes: Callable[[SnapshotId, ValuesAtStart, int | None], None],
    ) -> None:
        """`resumes` hears from which snapshot, what the script held before it trained, and what
        proves that the step is the same again.
        """
        self._parts = parts
        self._steps = steps
        self._resumes = resumes
        self._outer = outer
        self._snapshot = snapshot
        self._told = snapshot.manifest()
        self._lie = {(path, name) for path, name in self._told["lie"]}  # tensors, arrays
        self._first_lines: ValuesAtStart | None = None  # what these have made
        failpoints = parts.worker.failpoints
        self._reading = Reading(snapshot, lambda: failpoints.strike(snapshot.id.step, "restore"))
        self.standing = SurvivorPosition.unpack(self._told["standing"])
        self.winding = Winding(parts.worker.runtime, self.standing.loops[0].loop_id, self)
        self.winding.sources.remade = True
        found = loader_states.found_by(self._told["loaders"], self._reading.tensors)
        self.winding.sources.restates(found)

    def before(self, loop_id: str) -> SurvivorPosition:
        return self.standing

    def passes_over(self, trained: TrainedLoop, frame: FrameType) -> None:
        raise AssertionError(f"no snapshot is taken behind the loop at {trained.loop.id}")

    def restore(self, index: int) -> None:
        packed = self._told["starts"][index]
        if packed is not None:
            restore_streams(Streams.unpack(packed))

    def finds(self, loop_frame: LoopFrame) -> None:
        """Values as they were then: data that the script changes as well. An iterator of a class of
        the script's stays as it has begun, as it is about to pass items.
        """
        runtime, items = self._parts.worker.runtime, loop_frame.items
        stack = [*runtime.stack, loop_frame]
        self._before(stack, sys._getframe(1))
        frames = frames_of(stack, sys._getframe(1))
        there = script_values.found(frames, changing_modules(runtime), stack=stack)
        begun = dict(vars(items)) if is_own_iterator(items, runtime.own_modules) else None
        own = held_tensors.in_every_process(self._parts.made)
        try:
            tensors = self._reading.tensors()
            with torch.no_grad():
                plain_values.put(self._told["values"], tensors, there, own, self._lie)
                spaces = loose_values.spaces_of(frames, runtime.own_modules)
                loose = self._loose(tensors, own)
                loose_values.put_in_place(there, spaces, loose, self._lie)
        except (NotReachable, ValueError) as why:
            fail(self._parts.worker, self._snapshot.id, str(why))
        except StateLost as why:
            give_up(self._parts.worker, self._snapshot.id, why)
        if begun is not None:
            vars(items).clear()
            vars(items).update(begun)
        self._begin(f"loop {len(runtime.stack) - 1}")

    def passes(self, index: int, loop_frame: LoopFrame) -> None:
        """The body of an outer loop finds what it found then."""
        self._before(self._parts.worker.runtime.stack, sys._getframe(1))
        try:
            told, hold = self._told["passes"][index], self.winding.sources.hold
            self._outer.put(told, loop_frame, sys._getframe(1), hold)
            self._put_items(index, loop_frame, sys._getframe(1))
        except (NotReachable, ValueError) as why:
            fail(self._parts.worker, self._snapshot.id, str(why))
        except StateLost as why:
            give_up(self._parts.worker, self._snapshot.id, why)

    def arrived(self, loop_frame: LoopFrame, global_: dict[str, Any]) -> None:
        began, env, kept = time.monotonic(), self._parts.worker.env, self._snapshot
        try:
            self.winding.sources.restate()
            self._put(loop_frame, sys._getframe(1), global_)
        except (NotReachable, ValueError) as why:
            fail(self._parts.worker, kept.id, str(why))
        except StateLost as why:
            give_up(self._parts.worker, kept.id, why)
        kept.close()
        self._parts.worker.on_not_reached = lambda why: None
        self._steps.index = kept.id.step
        self._parts.worker.link.send(
            Restored(
                rank=env.rank,
                incarnation=env.incarnation,
                attempt=kept.id.attempt,
                step=kept.id.step,
                state_ms=1000 * (time.monotonic() - began),
            )
        )

    def _put(self, loop_frame: LoopFrame, frame: FrameType, global_: dict[str, Any]) -> None:
        parts, told, streams = self._parts, self._told, read_streams()
        runtime = parts.worker.runtime
        packed_state = PackedState(dict(told), self._reading.tensors())
        stack = runtime.stack
        before = self._before(stack, frame).of(told["before"])
        frames = frames_of(stack, frame)
        lain = memory_places.held(self._lie, *self._held(frames))
        factories, others = dict_kinds.apart(told["references"])
        putting = self._putting(packed_state, frames, frames_of(stack[:1], frame))
        putting.put(others)
        trained_parameters.put(told["trains"], parts.made, before.names)
        known = changing_modules(runtime)
        there = script_values.found(frames, known, stack=stack)
        with torch.no_grad():
            self._put_tensors(packed_state, before, there)
        placing.put_states(parts.made, packed_state)
        own = held_tensors.in_every_process(parts.made)
        spaces = loose_values.spaces_of(frames, runtime.own_modules)
        rebound_variables.put(told["rebound"], packed_state.tensors, spaces, frames, own)
        placing.put_variables(packed_state, stack, frame, own)
        hold = self._holding(there)
        placing.put_iterators(packed_state, frames, hold)
        lost_entries.take_away(told["lost"], there)
        moved_sources.put(told["sources"], there, hold)
        there = script_values.found(frames, known, stack=stack)  # with dicts that are made above
        loose = self._loose(packed_state.tensors, own)
        anew = loose_values.put(there, spaces, loose, self._lie)
        rebound_variables.bind(anew, spaces, frames)
        held = there, spaces
        computed_tensors.put(told["computed"], packed_state.tensors, held, frames, here=own)
        self._put_generators(stack, frame, there)  # what is alike by now may be others' memory
        putting.put(factories)
        at = find_frame(loop_frame.frame_id, frame)
        assert at is not None, "its top was reached"
        self._tell_lacking(frames)
        here = Context.unpack(told["here"])
        visible = reachable(runtime.module_data, global_, at.f_locals)
        write = frame_variables.writer(at, global_)
        placing.put_context(visible, here, here, write, of_process=True)
        rebound_variables.bind(memory_places.put_back(lain, *self._held(frames)), spaces, frames)
        held = self._held(frames)
        anew = shared_objects.put(told["shared"], *held, runtime.own_modules)
        rebound_variables.bind(anew, spaces, frames)
        if told["keys"]:  # to look through all takes long
            key_orders.put(told["keys"], self._held(frames)[0])
        rank_image.learn(parts, told["learned"])
        REGISTRY.restore(here.generators)
        # What making modules and iterators drew is nobody's, nor is what an item drew that was
        # taken before its generator or its loader had their state.
        drawn_to = told["drawn to"]
        restore_streams(streams if drawn_to is None else Streams.unpack(drawn_to))
        self._resumes(self._snapshot.id, before, self._snapshot.proof)

    def _before(self, stack: Sequence[LoopFrame], frame: FrameType) -> ValuesAtStart:
        """The values that the first lines have made, seen before anything is put in place."""
        if self._first_lines is None:
            frames = frames_of(stack[:1], frame)
            self._first_lines = ValuesAtStart.seen(
                frames, self._parts.worker.runtime, self._parts.made
            )
        return self._first_lines

    def _loose(
        self, tensors: list[torch.Tensor], own: Sequence[torch.Tensor]
    ) -> list[tuple[str, str, Any]]:
        return [
            (path, name, unpack(packed, tensors, here=own))
            for path, name, packed in self._told["loose"]
        ]

    def _begin(self, name: str) -> None:
        """Items of what has this name are about to be passed, from where it began there."""
        if packed := self._told["began"].get(name):
            restore_streams(Streams.unpack(packed))

    def _holding(self, there: Holdings) -> Hold:
        names = {id(one): path for path, one in (*there.iterators, *there.sources)}

        def hold(told: HeldIterator, present: Any, visible: Mapping[str, Any]) -> Any:
            self._begin(names.get(id(present), ""))
            return self.winding.sources.hold(told, present, visible)

        return hold

    def _put_items(self, index: int, loop_frame: LoopFrame, frame: FrameType) -> None:
        """The items that loop `index` took from generators."""
        if items := self._told["items"][index]:
            tensors = self._reading.tensors()
            own = held_tensors.in_every_process(self._parts.made)
            values = [(name, unpack(packed, tensors, here=own)) for name, packed in items]
            generator_states.put_items(values, loop_frame, frame)

    def _put_generators(self, stack: list[LoopFrame], frame: FrameType, there: Holdings) -> None:
        """The states of generators, where they wait. Raises NotReachable."""
        tensors, told = self._reading.tensors(), dict(self._told["drawn"])
        own = held_tensors.in_every_process(self._parts.made)
        here = {
            one.name: one.found
            for one in generator_states.below(stack, there, self._parts.worker.runtime.own_modules)
        }
        for name, states in told.items():
            generator_states.put(states, here.get(name, []), tensors, own)
        runtime = self._parts.worker.runtime
        loader_states.put(self._told["loaders"], runtime.sources, runtime.own_modules, tensors, own)
        for index, one in enumerate(stack):
            self._put_items(index, one, frame)

    def _putting(
        self, packed_state: PackedState, frames: list[FrameType], first: list[FrameType]
    ) -> references.Putting:
        runtime = self._parts.worker.runtime
        own, known = runtime.own_modules, changing_modules(runtime)

        def look() -> tuple[Holdings, Spaces]:
            there = script_values.found(frames, known, stack=runtime.stack)
            return there, loose_values.spaces_of(frames, own)

        places: dict[Place, Any] = {}
        if packed_state.manifest["references"]:  # to look through all takes long
            there = script_values.found(first, known, stack=runtime.stack[:1])
            places = references.places(there, loose_values.spaces_of(first, known))
        return references.Putting(look, frames, places, packed_state.tensors, own)

    def _held(self, frames: list[FrameType]) -> tuple[Holdings, Spaces]:
        runtime = self._parts.worker.runtime
        known = changing_modules(runtime)
        there = script_values.found(frames, known, stack=runtime.stack)
        return there, loose_values.spaces_of(frames, runtime.own_modules)

    def _tell_lacking(self, frames: list[FrameType]) -> None:
        told, orders = self._told["references"], self._told["orders"]
        if not (told or orders):
            return
        worker, (there, spaces) = self._parts.worker, self._held(frames)
        if found := library_objects.lacking(told, there, spaces):
            worker.reporter.notice(library_objects.in_words(found))
        if changed := set_orders.changed(orders, there):
            worker.reporter.notice(changed)

    def _put_tensors(
        self, packed_state: PackedState, before: ValuesAtStart, there: Holdings
    ) -> None:
        """Parameters, what modules hold beside them, gradients, and what else has changed."""
        parts, told, tensors = self._parts, packed_state.manifest, packed_state.tensors
        _fill("parameters", rank_tensors.trained(parts.made), unpack(told["trained"], tensors))
        others, later = before.names.others(parts.made, there)
        theirs = unpack(told["modules"], tensors)
        if later or others.keys() != theirs.keys():
            names = sorted(others.keys() ^ theirs.keys())
            raise NotReachable(f"modules differ: {later or names[0]}")
        _fill("buffers", list(others.values()), [theirs[name] for name in others])
        _put_gradients(parts.made, told["gradients"], tensors)
        own = held_tensors.in_every_process(parts.made)
        plain_values.put(told["values"], tensors, there, own, self._lie)
        values_by_parameter.put(there, own, told["by parameter"], tensors)


def _fill(what: str, mine: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    if [one.shape for one in mine] != [one.shape for one in theirs]:
        raise NotReachable(UNLIKE.format(what=what, here=len(mine), there=len(theirs)))
    for target, value in zip(mine, theirs, strict=True):
        target.copy_(value)


def _put_gradients(made: MadeObjects, told: list[Any], tensors: list[torch.Tensor]) -> None:
    """False stands for one that the script sets to zero before it adds to it."""
    params = held_tensors.trained(made)
    if len(params) != len(told):
        raise NotReachable(UNLIKE.format(what="parameters", here=len(params), there=len(told)))
    gradients = [
        untouched_zeros(local(param)) if packed is False else unpack(packed, tensors)
        for param, packed in zip(params, told, strict=True)
    ]
    placing.put_gradients(made, gradients)
