"""The packed state with which a process begins a step in a lost rank's place: made by a survivor.

It is made at the top of the step's loop, before anything of the step is done here; others may have
begun it. What may change before the step commits (buffers, values, untrained modules) is copied;
parameters and the state of optimizers are not: they stay as they are until the vote, which needs
the newcomer.

| of the lost rank, as the survivor has followed it | of the survivor, as it is equal on all ranks |
|---|---|
| random streams, generators of random numbers | parameters, optimizers, schedulers, buffers |
| variables and attributes that differ between ranks | all other variables and attributes |
| how its data iterators were made | how far they are, and positions in loops |
| its share of the data is its own | shares of the other ranks, as all have told them |
| | what was learned of the script and of other ranks (`learned`) |

Where other samples are taken for lost microbatches, nobody follows the lost rank. Then a process
has the first column from its own first lines.
"""

import sys
from collections.abc import Sequence
from functools import partial
from itertools import compress
from types import FrameType
from typing import Any

from recoverrun.worker.arrival import (
    drawing_generators,
    held_tensors,
    learned,
    loop_variables,
    loose_values,
    passed_bodies,
    plain_values,
    rebound_variables,
    structure,
    values_by_parameter,
)
from recoverrun.worker.arrival.contents import Before, PackedState
from recoverrun.worker.arrival.frame_variables import frames_of, stack_of
from recoverrun.worker.arrival.generator_trials import GeneratorTrials
from recoverrun.worker.arrival.iterator_places import held_iterator, source_of
from recoverrun.worker.arrival.learned import PlaceParts
from recoverrun.worker.arrival.packing import CannotTravel, Packing
from recoverrun.worker.arrival.value_places import Spaces
from recoverrun.worker.context.attached_state import ATTACHED
from recoverrun.worker.context.namespaces import module_paths
from recoverrun.worker.context.object_graph import Holdings
from recoverrun.worker.context.object_members import contents
from recoverrun.worker.context.passed_over import NOTHING, PassedOver
from recoverrun.worker.context.slot_context import Context, Key, last, owners_of
from recoverrun.worker.context.slot_context import told as key_told
from recoverrun.worker.data.batch_substitution import parts_of
from recoverrun.worker.errors import NotReachable, NotReplayable
from recoverrun.worker.replay.holder_places import first_name
from recoverrun.worker.replay.known_state import KnownState, differing, pack_lacking
from recoverrun.worker.replay.lost_rank import LostRank
from recoverrun.worker.tracking.microbatches import LoopFrame, Top
from recoverrun.worker.tracking.script_runtime import changing_modules

EARLY_BYTES = 1 << 20
"""They are kept in the job's store."""

TRAINED = ("state", "param_groups")
"""Of an optimizer: without these a newcomer would train with what its first lines have made."""


def made(
    parts: PlaceParts,
    rank: int,
    *,
    slot: Context | None,
    top: Top,
    here: Context,
    before: Before,
    trials: GeneratorTrials,
) -> PackedState:
    """For `rank`, at `top`, where this rank's own context is `here` and that of the lost one
    `slot`; `before` is what there was as the run began.

    Raises NotReachable.
    """
    exact, stack = parts.left.exact, stack_of(parts.worker.runtime.stack, top)
    starts = [_known(parts, rank, one) if exact else None for one in stack]
    passed = passed_over(parts, rank)
    manifest, packing = common(parts, top, here, before, trials, passed=passed)
    own = parts.worker.runtime.own_modules
    manifest |= {
        "slot": None if slot is None else slot.pack(),
        "starts": [
            None if one is None or one.torch_unknown else one.context.pack() for one in starts
        ],
        "passes": passed_bodies.told(
            stack, sys._getframe(), own, starts, _own_to_ranks(slot, here)
        ),
        "others": _others(parts, rank, here) if exact else [],
        "taken over": _taken_over(parts, rank, here) if exact else [],
        "apart": [] if exact else _apart(parts, rank),
        "rebound": _rebound(parts, rank, stack, before, passed, packing=packing),
    }
    still = {one.untyped_storage().data_ptr() for one in held_tensors.frozen(parts.made)}
    tensors = [
        one if one.untyped_storage().data_ptr() in still else one.clone() for one in packing.tensors
    ]
    return PackedState(manifest, tensors)


def passed_over(parts: PlaceParts, rank: int) -> PassedOver:
    """The names that are rank 0's alone, and so nothing to `rank`. Who is first on a node may do
    what rank 0 does.
    """
    first = parts.worker.runtime.gate.first_of_node(rank)
    return NOTHING if first else parts.executor.influence.rank0s()


def common(
    parts: PlaceParts,
    top: Top,
    here: Context,
    before: Before,
    trials: GeneratorTrials,
    *,
    passed: PassedOver,
) -> tuple[dict[str, Any], Packing]:
    """The parts that are the same for any rank, but for what is `passed` over; tensors by
    reference. Raises NotReachable.
    """
    worker, frame = parts.worker, sys._getframe(1)
    strategy, own = worker.protection.strategy, worker.runtime.own_modules
    plan = strategy.plan()
    if isinstance(plan, str):
        raise NotReachable(plan)
    stack = stack_of(worker.runtime.stack, top)
    packing = Packing([], held_tensors.in_every_process(parts.made, strategy))
    frames = frames_of(stack, frame)
    data = parts_of(worker.runtime.given())  # those of this rank: a newcomer has its own
    bound = plain_values.bound_by(stack)
    there, spaces = _held(parts, frames, bound, passed)
    draws = drawing_generators.drawing(stack, there, own) if parts.left.exact else []
    whole: set[str] = set()
    changed = plain_values.changed(there, before.digests, data, whole=whole)
    try:
        manifest = {
            "step": worker.step,
            "microbatches": worker.protection.machine.microbatches,
            "plan": plan,
            "channels": [one.name for one in worker.protection.fabric.channels],
            "learned": learned.read(parts),
            "attached": ATTACHED.learned(module_paths({**top.globals, **top.names}, own)),
            "here": here.pack(),
            "constants": constants_outside(parts.executor.constants.told(), _anew(stack)),
            "shares": packing.pack(_shares(parts, top), "shares of the data"),
            "iterators": [_iterators(one, own) for one in frames],
            **_modules(parts, packing, there, before),
            "values": plain_values.pack(changed, packing),
            **_structure(parts, (there, spaces), before, data, bound),
            "by parameter": values_by_parameter.told(there, parts.made, packing),
            "gradients": packing.pack(held_tensors.gradients(parts.made), "gradients"),
            **_states(parts, packing),
        }
        manifest["loose"] = loose_values.changed_in_place(
            there, spaces, before=before.marks, bound=bound, data=data, packing=packing, whole=whole
        )
        manifest["drawn"] = drawing_generators.told(
            draws, packing, partial(trials.require, items=(), draws=True)
        )
        # A variable of a loop may hold one of these, and is given a copy: it tells of nothing else.
        manifest |= loop_variables.told(
            packing, stack, frame, data=data, held=(there, spaces), passed=passed
        )
    except (CannotTravel, NotReplayable) as why:
        raise NotReachable(str(why)) from why
    return manifest, packing


def _held(
    parts: PlaceParts, frames: Sequence[FrameType], bound: frozenset[str], passed: PassedOver
) -> tuple[Holdings, Spaces]:
    """All that the script holds, but for what is `passed` over."""
    runtime = parts.worker.runtime
    there = plain_values.found(frames, changing_modules(runtime), last=bound, passed=passed)
    return there, [
        (space, {name: one for name, one in names.items() if name not in passed.variables})
        for space, names in loose_values.spaces_of(frames, runtime.own_modules)
    ]


def _anew(stack: Sequence[LoopFrame]) -> frozenset[str]:
    """The variables that iterations make for themselves."""
    return frozenset(name for one in stack for name in one.loop.made)


def constants_outside(told: list[Any], made: frozenset[str]) -> list[Any]:
    """The constants of other ranks without those that hang on variables which iterations have
    `made` for themselves: a process that has yet to wind its loops has none.
    """
    names, theirs, resting = told
    kept = [first_name(name) not in made for name in names]
    return [
        list(compress(names, kept)),
        [[rank, list(compress(values, kept))] for rank, values in theirs],
        [name for name in resting if first_name(name) not in made],
    ]


def early_values(parts: PlaceParts, frame: FrameType, before: Before) -> list[list[Any]]:
    """Plain values that have changed since the run began, for code behind loops that are over: a
    fresh process runs it before it has its place. Of many none are told: all come with its place.
    """
    worker = parts.worker
    runtime = worker.runtime
    frames, bound = frames_of(runtime.stack, frame), plain_values.bound_by(runtime.stack)
    there = plain_values.found(frames, changing_modules(runtime), last=bound)
    packing = Packing([], held_tensors.in_every_process(parts.made, worker.protection.strategy))
    data = parts_of(runtime.given())
    found = [one for one in plain_values.changed(there, before.digests, data) if not one.tensors]
    if sum(len(one.packed) for one in found) > EARLY_BYTES:
        return []
    return plain_values.pack(found, packing)


def slot_of(parts: PlaceParts, rank: int, here: Context) -> Context | None:
    """The place of lost `rank`; None where nobody follows it. Raises NotReachable if nobody can
    tell.
    """
    if not parts.left.exact:
        return None
    parts.left.await_contexts(rank)
    parts.left.absorb()
    lost = parts.executor.lost.get(rank)
    if lost is None:
        raise NotReachable(f"rank {rank} has left nothing that tells where it stands")
    state = lost.at(here.point, parts.executor.captures.points)
    matters, own = parts.executor.influence.matters, here.values
    unlike = passed_over(parts, rank)
    unknown = [
        key for key in state.unknown if matters(key, own.get(key)) and not unlike.lies_on(key)
    ]
    if state.torch_unknown or unknown:
        raise NotReachable(state.torch_unknown or f"{last(unknown[0])} of rank {rank} is not known")
    # Unknown values that bear on no microbatch are the survivor's.
    known = {key: one for key, one in state.context.values.items() if key not in state.unknown}
    return state.context.with_values(known)


def _own_to_ranks(slot: Context | None, here: Context) -> frozenset[Key] | None:
    """The keys in which the slot differs from this rank at this moment; None where nobody follows
    it.
    """
    return None if slot is None else frozenset(differing(slot, here))


def _known(parts: PlaceParts, rank: int, loop_frame: LoopFrame) -> KnownState | None:
    """The state of `rank` as the present iteration began, its header included; None if unknown."""
    lost = parts.executor.lost.get(rank)
    context = loop_frame.top.context if loop_frame.top is not None else None
    return None if lost is None or context is None else lost.states.get(context.point)


def _taken_over(parts: PlaceParts, rank: int, here: Context) -> list[Any]:
    """The values that `rank` gets from this one though its own were others, by name."""
    state = parts.executor.lost[rank].at(here.point, parts.executor.captures.points)
    return sorted(map(key_told, state.unknown), key=str)


def _apart(parts: PlaceParts, rank: int) -> list[Any]:
    """The values in which `rank` differed from this one when it was lost, by name."""
    parts.left.absorb()
    lost = parts.executor.lost.get(rank)
    return [] if lost is None else sorted(map(key_told, lost.parted), key=str)


def _rebound(
    parts: PlaceParts,
    rank: int,
    stack: Sequence[LoopFrame],
    before: Before,
    passed: PassedOver,
    *,
    packing: Packing,
) -> list[list[Any]]:
    """The variables that functions have rebound since the run began."""
    spaces = loose_values.spaces_of(
        frames_of(stack, sys._getframe(1)), parts.worker.runtime.own_modules
    )
    bound = plain_values.bound_by(stack)
    unlike = parts.left.informs(LostRank(rank, apart=False)).alone
    unlike |= passed.variables
    return rebound_variables.changed(spaces, before.digests, bound, unlike, packing=packing)


def _others(parts: PlaceParts, rank: int, here: Context) -> list[list[Any]]:
    """The positions of ranks that stay lost, and what of these is not known."""
    points, lost = parts.executor.captures.points, sorted(parts.executor.lost.items())
    found = []
    for other, one in lost:
        if other != rank:
            state = one.at(here.point, points)
            words = pack_lacking(state.unknown, state.torch_unknown)
            found.append([other, state.context.pack(), one.apart, state.assumed, words])
    return found


def _shares(parts: PlaceParts, top: Top) -> list[Any]:
    """The shares of all ranks, if they have told each other; their names first."""
    worker, shares = parts.worker, parts.executor.shares
    return shares.told(worker.env.rank, {**top.globals, **top.names})


def _iterators(frame: FrameType, own: frozenset[str]) -> list[list[Any]]:
    """Those that variables of `frame` hold, and generators that attributes of the script's objects
    do, as far as they know how far they have come. Iterators over loaders have numbers.
    """
    visible = {**frame.f_globals, **frame.f_locals}
    found = [(name, held_iterator(value, visible, own)) for name, value in frame.f_locals.items()]
    told: list[list[Any]] = [[name, held.pack()] for name, held in found if held is not None]
    for path, owner in owners_of(visible, own):
        for name, value in contents(owner).items():
            counts = source_of(value) is not None
            one = held_iterator(value, visible, own) if counts else None
            if one is not None and one.number < 0:
                told.append([[*path, name], one.pack()])
    return told


def _structure(
    parts: PlaceParts,
    held: tuple[Holdings, Spaces],
    before: Before,
    data: frozenset[int],
    bound: frozenset[str],
) -> dict[str, Any]:
    """The structure of all that is held, as far as it has changed."""
    own, was = changing_modules(parts.worker.runtime), before.structure
    now = structure.seen(*held, own, data)
    return {
        "structure": structure.told(now, was, held[0], bound),
        "made": structure.made(now, was, held, own=own, data=data, bound=bound),
    }


def _modules(
    parts: PlaceParts, packing: Packing, there: Holdings, before: Before
) -> dict[str, Any]:
    """The model's parameters and buffers, and those beside it."""
    strategy = parts.worker.protection.strategy
    others = held_tensors.others(strategy, parts.made, there)
    beside = held_tensors.beside(strategy, parts.made)
    return {
        "model": packing.pack(held_tensors.model(strategy), "the model"),
        "with gradients": held_tensors.with_gradients(strategy),
        "beside": packing.pack(beside, "parameters beside the model"),
        "modules": packing.pack(others, "untrained modules"),
        "late": [one for one in others if held_tensors.path_of(one) not in before.modules],
    }


def _states(parts: PlaceParts, packing: Packing) -> dict[str, Any]:
    return {
        name: [
            packing.pack(_travelling(one.state_dict()), f"the state of a {type(one).__name__}")
            for one in parts.made.of(name)
        ]
        for name in parts.made.names()
    }


def _travelling(state: dict[str, Any]) -> dict[str, Any]:
    """The state without functions, which the newcomer's own prologue makes."""
    found = {}
    for name, value in state.items():
        if name in TRAINED:
            found[name] = value
            continue
        try:
            Packing([]).pack(value, name)
        except CannotTravel:
            continue
        found[name] = value
    return found
