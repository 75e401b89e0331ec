"""All that a rank is at the top of a step, as plain values and tensors.

It is what an arrival asks of a donor (`arrival.packed_state`), of this rank itself: nothing is
followed or guessed, and nobody else's word is needed. Tensors are not copied here.
"""

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import FrameType, GeneratorType
from typing import Any

import torch

from recoverrun.worker.arrival import (
    frame_variables,
    generator_states,
    held_tensors,
    loose_values,
    lost_entries,
    memory_places,
    plain_values,
    rebound_variables,
    values_by_parameter,
)
from recoverrun.worker.arrival.frame_variables import frames_of, stack_of
from recoverrun.worker.arrival.generator_states import Below
from recoverrun.worker.arrival.generator_trials import GeneratorTrials
from recoverrun.worker.arrival.iterator_places import held_iterator
from recoverrun.worker.arrival.learned import PlaceParts
from recoverrun.worker.arrival.packing import CannotTravel, Packing, Plain
from recoverrun.worker.arrival.sharded_tensors import local
from recoverrun.worker.arrival.value_places import Spaces
from recoverrun.worker.arrival.winding import standing
from recoverrun.worker.context.made_objects import MadeObjects, state_of
from recoverrun.worker.context.object_graph import Holdings
from recoverrun.worker.context.slot_context import Context
from recoverrun.worker.data.loader_iterator import LoaderIterator
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.rng.streams import read_streams
from recoverrun.worker.snapshots import (
    computed_tensors,
    key_orders,
    large_values,
    loader_states,
    moved_sources,
    script_values,
    set_orders,
    shared_objects,
    trained_parameters,
)
from recoverrun.worker.snapshots.open_collectives import under_way
from recoverrun.worker.snapshots.packed_states import PackedStates
from recoverrun.worker.snapshots.piece_table import RankImage
from recoverrun.worker.snapshots.rank_tensors import trained
from recoverrun.worker.snapshots.values_at_start import ValuesAtStart
from recoverrun.worker.tracking.microbatches import LoopFrame, Top
from recoverrun.worker.tracking.script_runtime import changing_modules

BEGUN = "how far {}, a generator of {}, has come is unknown"
UNDER_WAY = "a collective is under way between steps at {}: {} waits for it"
LATER = "{} was made while the script trained, and a process that goes back has none"


def made(
    parts: PlaceParts,
    top: Top,
    context: Context,
    before: ValuesAtStart,
    *,
    states: PackedStates,
    trials: GeneratorTrials,
    passes: list[list[Plain]],
    gradients: bool,
    keeping: Sequence[LoaderIterator] = (),
) -> RankImage:
    """The image at `top`, where `context` was captured; with `gradients` their values, too.
    `states` packs those of optimizers, `trials` try the way back of generators, `passes` tells of
    each loop around what its body found, and iterators over loaders are `keeping` a state. Raises
    NotReachable where a process cannot come here again, or not with all that it needs.
    """
    runtime, frame = parts.worker.runtime, sys._getframe(1)
    own = runtime.own_modules
    packing = Packing([], held_tensors.in_every_process(parts.made))
    frames = frames_of(stack := stack_of(runtime.stack, top), frame)
    bound, known = plain_values.bound_by(stack), changing_modules(runtime)
    there = script_values.found(frames, known, before.resting.size, stack=stack)
    read = frozenset(name for one in stack for name in one.loop.live_in)
    others, later = before.names.others(parts.made, there)
    spaces = loose_values.spaces_of(frames, own)
    _require(top, there, spaces, later)
    trains = trained_parameters.told(parts.made, before.names)
    before.references.require_groups(trains[0], stack)
    _try(trials, drawn := generator_states.below(stack, there, own), stack, frame)
    whole: set[str] = set()
    changed = plain_values.changed(there, before.digests, of_process=True, whole=whole, every=True)
    try:
        manifest: dict[str, Any] = {
            "standing": standing(runtime, passes=False).pack(),
            "starts": [None if one.streams is None else one.streams.pack() for one in stack],
            "passes": passes,
            "here": context.pack(),
            "learned": learned(parts),
            "iterators": [_iterators(one, own, read) for one in frames],
            "sources": moved_sources.told(there, before.sources, stack, frames, own),
            "lost": lost_entries.told(there, before.keys),
            "trains": trains,
            "trained": packing.pack(trained(parts.made), "trained"),
            "modules": packing.pack(others, "modules"),
            "values": plain_values.pack(changed, packing),
            "by parameter": values_by_parameter.told(there, parts.made, packing),
            "gradients": _gradients(packing, parts, values=gradients),
            "before": before.pack(),
            **_states(packing, states, parts.made),
        }
    except CannotTravel as why:
        raise NotReachable(str(why)) from why
    _tell_others(manifest, (there, spaces), before, stack, packing, whole=whole)
    manifest["references"] = before.references.told(there, spaces, stack, packing)
    manifest["loose"] = _loose((there, spaces), before, bound, packing, whole=whole)
    _tell_of_memory(manifest, (there, spaces), before, bound, packing, own=own)
    manifest |= _generators(stack, frame, drawn, packing, (keeping, own))
    manifest["frames"] = _variables(packing, stack, frame)
    return RankImage(manifest, packing.tensors, packing.names)


def _tell_others(
    manifest: dict[str, Any],
    held: tuple[Holdings, Spaces],
    before: ValuesAtStart,
    stack: Sequence[LoopFrame],
    packing: Packing,
    *,
    whole: set[str],
) -> None:
    """Tell of variables that functions have rebound, and of values that are too large for plain
    ones, or have no places in them, but for what is told as a `whole`. Raises NotReachable.
    """
    bound = plain_values.bound_by(stack)
    rebound = rebound_variables.changed(
        held[1], before.digests, bound, of_process=True, packing=packing
    )
    rebound += rebound_variables.containers(held[1], before.digests, bound, packing)
    values, variables = large_values.told(*held, before.large, bound, packing, whole=whole)
    passed = before.references.is_of_new_module
    others, rest = before.whole.told(held, stack, packing, whole=whole, passed=passed)
    manifest["values"] += [*values, *others]
    manifest["rebound"] = [*rebound, *variables, *rest]


def _tell_of_memory(
    manifest: dict[str, Any],
    held: tuple[Holdings, Spaces],
    before: ValuesAtStart,
    bound: frozenset[str],
    packing: Packing,
    *,
    own: frozenset[str],
) -> None:
    """Tell which tensors and arrays lie where they lay, of tensors that require a gradient, in
    which order sets and dicts give what they hold, and what several places hold.
    """
    told = [*manifest["values"], *manifest["loose"]]
    manifest["lie"] = memory_places.unmoved(told, before.addresses, memory_places.seen(*held))
    manifest["shared"] = shared_objects.told(*held, own)
    manifest["orders"] = set_orders.told(held[0])
    manifest["keys"] = key_orders.told(held[0], before.orders, packing)
    manifest["computed"] = computed_tensors.told(*held, bound, packing)


def _loose(
    held: tuple[Holdings, Spaces],
    before: ValuesAtStart,
    bound: frozenset[str],
    packing: Packing,
    *,
    whole: set[str],
) -> list[list[Any]]:
    """Values that have changed where they lie, but for data. Raises NotReachable."""
    data = script_values.data_of_headers(held[0], before.marks)
    return loose_values.told(*held, before.marks, bound, packing, whole=whole, data=data)


def _require(top: Top, there: Holdings, spaces: Spaces, later: str) -> None:
    """Raises NotReachable if there is a module `later` than the first lines, or a collective is
    under way.
    """
    if later:
        raise NotReachable(LATER.format(later))
    if held := under_way(there, spaces):
        raise NotReachable(UNDER_WAY.format(top.loop.id, held))


def _try(
    trials: GeneratorTrials, drawn: Sequence[Below], stack: Sequence[LoopFrame], frame: FrameType
) -> None:
    """Raises NotReachable where a process that goes back would not come to what is `drawn` from."""
    items = generator_states.untold_items(stack, frame, drawn)
    trials.require(drawn, items, draws=stack[-1].streams not in (None, read_streams()))


def _generators(
    stack: Sequence[LoopFrame],
    frame: FrameType,
    drawn: Sequence[Below],
    packing: Packing,
    loaders: tuple[Sequence[LoaderIterator], frozenset[str]],
) -> dict[str, Any]:
    """The states of generators and of `loaders` that keep one, with the script's modules, the
    streams as they were asked for their first items, and by loop the items that loops hold of them.
    An item that is taken before these have their states may draw more numbers, or fewer: so the
    streams are told, too. What they share with others would be left out of what is told of these if
    it came first.
    """
    told: list[list[Any]] = [[] for _ in stack]
    of_loaders = loader_states.require(loaders, stack, drawn, start=frame)
    read = {*script_values.read_here(stack), *of_loaders}
    for number, name, value in generator_states.items_of(stack, frame, drawn, read):
        with suppress(CannotTravel):
            told[number].append([name, packing.pack(value, f"item {name}")])
    began = {
        each.name: one.source.began.pack()
        for each in drawn
        for one in reversed(each.found)
        if one.source is not None and one.source.began is not None
    }
    states = [[one.name, generator_states.told(one.found, packing)] for one in drawn]
    return {
        "drawn": states,
        "began": began,
        "items": told,
        "drawn to": read_streams().pack() if drawn or loaders[0] else None,
        "loaders": loader_states.told(*loaders, packing),
    }


def learned(parts: PlaceParts) -> dict[str, Any]:
    """The knowledge that this process has gained about the script's loops."""
    runtime = parts.worker.runtime
    return {
        "regions": sorted(runtime.regions),
        "trains": sorted(runtime.training_loops),
        "outward": dict(runtime.outward),
        "told": dict(runtime.gate.told),
    }


def learn(parts: PlaceParts, said: Mapping[str, Any]) -> None:
    """Learn in a process that goes on from a snapshot."""
    runtime = parts.worker.runtime
    runtime.regions.update(said["regions"])
    runtime.training_loops.update(said["trains"])
    runtime.outward.update(said["outward"])
    runtime.gate.told = said["told"]


def _iterators(frame: FrameType, own: frozenset[str], read: frozenset[str]) -> list[list[Any]]:
    """Those that variables of `frame` hold. Raises NotReachable if loops have `read` one that does
    not know how far it has come.
    """
    visible = {**frame.f_globals, **frame.f_locals}
    found = []
    for name, value in list(frame.f_locals.items()):
        held = held_iterator(value, visible, own)
        if held is not None:
            found.append([name, held.pack()])
        elif name in read and isinstance(value, GeneratorType) and value.gi_frame is not None:
            raise NotReachable(BEGUN.format(name, value.__qualname__))
    return found


def _variables(packing: Packing, stack: Sequence[LoopFrame], frame: FrameType) -> list[Any]:
    """The variables that the loops bind in each function on the stack: locals, and variables of its
    module.
    """
    carried = {name for one in stack for name in one.loop.carried}
    return [
        [list(one.loops), *(_values(packing, part, carried) for part in (one.local, one.module))]
        for one in frame_variables.read_all(stack, frame)
    ]


def _values(packing: Packing, values: Mapping[str, Any], carried: set[str]) -> list[list[Any]]:
    """Variables by name. Left out is what is no value (a module, an open file), and results that no
    later iteration reads.
    """
    told = []
    for name, value in values.items():
        plain = value
        if isinstance(value, torch.Tensor) and value.requires_grad and not value.is_leaf:
            if name not in carried:
                continue
            plain = value.detach()  # its graph is used up
        try:
            told.append([name, packing.pack(plain, f"variable {name}")])
        except CannotTravel:
            continue
    return told


def _gradients(packing: Packing, parts: PlaceParts, *, values: bool) -> list[Plain]:
    """The gradient of each trained parameter: None, its gradient, or False for one whose value is
    not used: the script sets it to zero first.
    """
    found: list[Plain] = []
    for number, param in enumerate(held_tensors.trained(parts.made)):
        if param.grad is None:
            found.append(None)
        elif not values:
            found.append(False)
        else:
            gradient = local(param.grad)
            found.append(packing.pack(gradient, f"gradients[{number}]"))
    return found


def _states(packing: Packing, states: PackedStates, made: MadeObjects) -> dict[str, list[Plain]]:
    """The states of optimizers, schedulers and scalers. Of the latter without functions, which the
    script's own first lines make.
    """
    told: dict[str, list[Plain]] = {kind: [] for kind in made.names()}
    for kind, number, one in ((k, n, one) for k in told for n, one in enumerate(made.of(k))):
        entries: list[Plain] = []
        for key, value in state_of(one).items():
            try:
                entries.append([key, states.pack(packing, value, f"{kind}[{number}].{key}")])
            except CannotTravel:
                if kind == "optimizers":
                    raise
        told[kind].append({"dict": entries})
    return told
