"""Everything of a packed state is put in place: the newcomer's side of `packed_state`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import torch

from recoverrun.worker.arrival import (
    frame_variables,
    held_tensors,
    loose_values,
    plain_values,
    rebound_variables,
    values_by_parameter,
)
from recoverrun.worker.arrival.container_contents import fill
from recoverrun.worker.arrival.contents import Before, PackedState
from recoverrun.worker.arrival.frame_variables import FrameVariables
from recoverrun.worker.arrival.iterator_places import HeldIterator, Hold, at_path
from recoverrun.worker.arrival.learned import PlaceParts
from recoverrun.worker.arrival.packing import unpack
from recoverrun.worker.arrival.sharded_tensors import LocalShard, is_distributed
from recoverrun.worker.arrival.value_places import Place, Spaces
from recoverrun.worker.context.attached_state import ATTACHED
from recoverrun.worker.context.made_objects import MadeObjects, state_of
from recoverrun.worker.context.namespaces import module_paths
from recoverrun.worker.context.object_graph import Holdings, holdings
from recoverrun.worker.context.object_members import members, resolve
from recoverrun.worker.context.slot_context import Context, Key, belongs_to_process, key_of, last
from recoverrun.worker.context.values import copied, is_of_one_rank, put
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.replay import local_shards as shares
from recoverrun.worker.replay.known_state import differing
from recoverrun.worker.replay.rank_constants import CALLED
from recoverrun.worker.tracking.microbatches import LoopFrame


def put_state(
    parts: PlaceParts,
    packed: PackedState,
    there: Holdings,
    spaces: Spaces,
    frames: Sequence[FrameType],
) -> None:
    """Parameters, buffers, averages of weights, gradients, optimizers and the like.

    Raises NotReachable where they do not fit.
    """
    told, tensors, donor = packed.manifest, packed.tensors, packed.manifest["donor"]
    strategy = parts.worker.protection.strategy
    held_tensors.unfreeze(strategy, told["with gradients"])
    with torch.no_grad():
        _fill(
            "the model",
            held_tensors.model(strategy),
            unpack(told["model"], tensors, moved=False),  # a device may lack room for two of them
            donor,
        )
        _fill(
            "parameters beside the model",
            held_tensors.beside(strategy, parts.made),
            unpack(told["beside"], tensors, moved=False),
            donor,
        )
        mine = held_tensors.others(strategy, parts.made, there)
        theirs = unpack(told["modules"], tensors, moved=False)
        theirs = without_own(mine, theirs, frozenset(told["late"]))
        _fill("untrained modules", mine, theirs, donor)
        put_gradients(parts.made, unpack(told["gradients"], tensors))
    own = held_tensors.in_every_process(parts.made, strategy)
    plain_values.put(told["values"], tensors, there, own)
    values_by_parameter.put(there, own, told["by parameter"], tensors)
    loose = (
        (path, name, unpack(packed, tensors, here=own)) for path, name, packed in told["loose"]
    )
    anew = loose_values.put_in_place(there, spaces, loose)
    rebound_variables.bind(anew, spaces, frames)
    put_states(parts.made, packed)


def put_states(made: MadeObjects, packed: PackedState) -> None:
    """Put in place the states of optimizers, schedulers and scalers. Raises NotReachable where they
    do not fit.
    """
    told, tensors = packed.manifest, packed.tensors
    held = _holders(made.of("optimizers"))
    for name in made.names():
        own = made.of(name)
        if len(own) != len(told[name]):
            raise NotReachable(f"this process has made {len(own)} {name}, others {len(told[name])}")
        for one, packed in zip(own, told[name], strict=True):
            state = unpack(packed, tensors)
            if name == "optimizers":
                _require_groups(one, state.get("param_groups", one.param_groups))
                state = _distributed(one, state)
            one.load_state_dict({**state_of(one), **state})
    _keep(held)


def _holders(optimizers: Iterable[Any]) -> list[tuple[Any, str, Any, list[Any]]]:
    """The lists of groups and the states of optimizers, and what these lists hold, to be filled."""
    return [
        (one, name, vars(one)[name], list(vars(one)[name]))
        for one in optimizers
        for name in ("param_groups", "state")
        if name in vars(one)
    ]


def _keep(held: Iterable[tuple[Any, str, Any, list[Any]]]) -> None:
    """The states that optimizers have loaded go into the objects that held states before: one that
    wraps another may share its groups, and the script may hold one.
    """
    for one, name, present, groups in held:
        loaded = vars(one)[name]
        if loaded is present:
            continue
        if isinstance(present, dict):
            _refilled(present, loaded)
        elif len(groups) == len(loaded):
            present[:] = [_refilled(*pair) for pair in zip(groups, loaded, strict=True)]
        else:
            present[:] = loaded
        setattr(one, name, present)


def _refilled(present: dict[Any, Any], content: dict[Any, Any]) -> dict[Any, Any]:
    """The same dict, with this content."""
    if present is not content:
        present.clear()
        present.update(content)
    return present


def put_constants(parts: PlaceParts, packed: PackedState, there: Holdings, *, wound: bool) -> bool:
    """Place values in which other ranks differ outside of their loops. True if all are here.

    Before iterators are `wound` to their places, what generators were given may be missing. Raises
    NotReachable.
    """
    own, rank = parts.worker.runtime.own_modules, parts.worker.env.rank
    made = holdings([parts.sources.roots()], own, idle_hooks=False)
    everything = replace(there, held=[*there.held, *made.held])
    told = packed.manifest["constants"]
    missing = parts.executor.constants.learn(told, everything, own, rank)
    if missing and (wound or not missing.startswith(CALLED)):
        raise NotReachable(f"{missing} differs between ranks, and this process has none")
    sources = parts.worker.runtime.sources
    parts.sources.shares.learn(sources, parts.executor.constants.apart, own)
    return not missing


def put_attached(parts: PlaceParts, packed: PackedState, names: Mapping[str, Any]) -> None:
    """Follow attributes that the script has written to modules, by the names that they have on
    other ranks; `names` are those that are seen at the top.
    """
    here = module_paths(names, parts.worker.runtime.own_modules)
    ATTACHED.learn(packed.manifest["attached"], here)


def put_shares(parts: PlaceParts, packed: PackedState, visible: Mapping[str, Any]) -> None:
    """Place the shares of other ranks; this one has its own from its first lines. Raises
    NotReachable.
    """
    told = unpack(packed.manifest["shares"], packed.tensors)
    other = parts.executor.shares.learn(told, parts.worker.env.rank, visible)
    if other:
        raise NotReachable(f"{other} is another share of the data than it was in the lost process")


def put_variables(
    packed: PackedState, stack: list[LoopFrame], frame: FrameType, here: Sequence[torch.Tensor]
) -> None:
    """Place the variables that the loops of each function bind. `here`: see `packing.unpack`."""
    found, tensors = [], packed.tensors
    told = packed.manifest["frames"]
    for (loops, *values), mine in zip(told, frame_variables.read_all(stack, frame), strict=True):
        local, module = (
            {name: unpack(one, tensors, here=here) for name, one in names} for names in values
        )
        found.append(
            FrameVariables(tuple(loops), filled(mine.local, local), filled(mine.module, module))
        )
    frame_variables.write_all(found, stack, frame)


def put_iterators(packed: PackedState, frames: list[FrameType], hold: Hold) -> None:
    """Those that variables and attributes hold have given as many items as there. Raises
    NotReachable.
    """
    for told, frame in zip(packed.manifest["iterators"], frames, strict=True):
        for name, iterator in told:
            visible = {**frame.f_globals, **frame.f_locals}
            if not isinstance(name, str):
                present = at_path(tuple(name), visible)
                hold(HeldIterator.unpack(iterator), present, visible)
                continue
            present = frame.f_locals.get(name)
            held = hold(HeldIterator.unpack(iterator), present, visible)
            if held is not present:
                frame_variables.write(frame, {name: held})


def put_context(
    visible: Mapping[str, Any],
    here: Context,
    slot: Context,
    write: Callable[[str, Any], None],
    *,
    of_process: bool = False,
) -> None:
    """Values of the script's objects as they are `here`, with those of the slot where these
    differ. `write` gives a variable its value. With `of_process` also those that belong to one
    process, whose place this one takes.
    """
    told: dict[Key, Any] = dict(here.attributes.items())
    told.update(here.names)
    told.update(differing(slot, here))
    put_values(visible, told, write, of_process=of_process)


def without_own_objects(
    told: Context, visible: Mapping[str, Any], tensors: Iterable[Place], donor: int
) -> Context:
    """Leave out where the first lines of this process have made an object of this rank alone.

    Raises NotReachable if one of `tensors` is in there, as in an average of weights: what the lost
    process had there went with it.
    """
    kept: dict[Key, Any] = {}
    for key, value in told.values.items():
        if value is not None or not is_of_one_rank(shares.value_of(visible, key), value):
            kept[key] = value
            continue
        path = key if isinstance(key, str) else ".".join(key)
        if any(f"{one}.".startswith((f"{path}.", f"{path}[")) for one, _ in tensors):
            raise NotReachable(f"{path}: this process has one, and rank {donor} has none")
    return told.with_values(kept)


def own_values(packed: PackedState, visible: Mapping[str, Any]) -> dict[Key, Any]:
    """The values in which the slot differed from others when it was lost, as this process has them:
    with other samples nobody knows more of them.
    """
    keys = [key_of(said) for said in packed.manifest["apart"]]
    found = ((key, shares.value_of(visible, key)) for key in keys)
    return {key: copied(value) for key, value in found if value is not None}


def begun(told: Mapping[str, Any], own: Before) -> Before:
    """The state as the run began, for this rank; `own` is what its first lines have left.

    What the donor does not tell has not changed there since. So what this process has otherwise is
    what ranks do not have in common, and has not changed either.
    """
    changed = {(path, key) for kind in ("values", "rebound") for path, key, *_ in told[kind]}
    before = {(path, key): digest for path, key, digest in told["before"]}
    before |= {place: digest for place, digest in own.digests.items() if place not in changed}
    return replace(own, digests=before)


def put_values(
    visible: Mapping[str, Any],
    told: Mapping[Key, Any],
    write: Callable[[str, Any], None],
    *,
    of_process: bool = False,
) -> None:
    """Each where it belongs; `write` gives a variable its value."""
    for path, value in told.items():
        name: str = last(path)
        if name.endswith(("#", "[]")) or (belongs_to_process(name) and not of_process):
            continue  # marks of large data, the order of keys
        if isinstance(path, str):
            write(path, copied(value))
            continue
        owner = resolve(visible, path)
        if owner is None or name not in members(owner):
            continue
        if filled({name: members(owner)[name]}, {name: copied(value)}):
            put(members(owner), name, copied(value))


def filled(present: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Containers get their content where they lie. What is left."""
    return {name: value for name, value in values.items() if not fill(present.get(name), value)}


def without_own(
    mine: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor], late: frozenset[str]
) -> dict[str, torch.Tensor]:
    """Leave out modules that are the donor's own: rank 0 may average weights, say.

    It had them before anything was trained, unlike those of the names `late`, and the same first
    lines have made nothing of the kind for this rank.
    """
    here = set(map(held_tensors.outermost, mine))
    return {
        name: one
        for name, one in theirs.items()
        if name in late or held_tensors.outermost(name) in here
    }


def _fill(
    what: str, mine: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor], donor: int
) -> None:
    if odd := sorted(theirs.keys() - mine.keys()):
        raise NotReachable(f"{what}: rank {donor} has {odd[0]}, and this process has none")
    if odd := sorted(mine.keys() - theirs.keys()):
        raise NotReachable(f"{what}: this process has {odd[0]}, and rank {donor} has none")
    for name, target in mine.items():
        if target.shape != theirs[name].shape or target.dtype != theirs[name].dtype:
            raise NotReachable(f"{what}: {name} is of another shape or type on other ranks")
        target.copy_(theirs[name])


def put_gradients(made: MadeObjects, gradients: list[torch.Tensor | None]) -> None:
    """Put in place the gradients of all parameters of all optimizers."""
    for param, gradient in zip(held_tensors.trained(made), gradients, strict=False):
        if gradient is None:
            param.grad = None
        elif is_distributed(param):
            param.grad = held_tensors.like(param, gradient)
        else:
            param.grad = gradient


def _require_groups(optimizer: Any, theirs: Sequence[Mapping[str, Any]]) -> None:
    """Raises NotReachable where the others' optimizer has other groups than this one."""
    mine, others = (
        [len(one["params"]) for one in groups] for groups in (optimizer.param_groups, theirs)
    )
    if mine != others:
        raise NotReachable(
            f"{type(optimizer).__name__} of this process has groups of {mine} parameters, that of "
            f"the others of {others}"
        )


def _distributed(optimizer: Any, state: dict[str, Any]) -> dict[str, Any]:
    """Local parts are parts of a DTensor again, as the parameter is that they belong to."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    for number, entries in state["state"].items():
        for name, value in entries.items():
            if isinstance(value, LocalShard):
                entries[name] = held_tensors.like(params[number], value.tensor)
    return state
