"""Dicts of the script whose keys are trained parameters, or their `id`s: momenta, slow weights,
errors that are fed back.

No name leads to what they hold, as a key is another object, and another number, in each process. So
they travel whole, by their paths, with the number of each parameter among those that all processes
hold. The state of torch's own optimizers comes with these.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from recoverrun.worker.arrival import held_tensors
from recoverrun.worker.arrival.packing import CannotTravel, Packing, unpack
from recoverrun.worker.arrival.sharded_tensors import LocalShard
from recoverrun.worker.context.made_objects import MadeObjects
from recoverrun.worker.context.object_graph import Holdings
from recoverrun.worker.context.object_members import DICTS


def told(there: Holdings, made: MadeObjects, packing: Packing) -> list[list[Any]]:
    """Plain values for msgpack, and tensors beside them. Values of other kinds (a module) are those
    of the newcomer's own first lines.
    """
    found = []
    for path, one in _found(there, made, packing):
        if all(packing.is_here(key) for key in one if isinstance(key, torch.Tensor)):
            trial = Packing([], packing.here)
            itself: dict[Any, Any] = {}
            by_id: dict[torch.Tensor, Any] = {}
            for key, value in one.items():
                if _can_travel(value, trial):
                    named = packing.with_id(key)
                    if named is None:
                        itself[key] = value
                    else:
                        by_id[named] = value
            found.append([path, packing.pack(itself, path), packing.pack(by_id, path)])
    return found


def put(
    there: Holdings,
    here: Sequence[torch.Tensor],
    said: Sequence[Sequence[Any]],
    tensors: Sequence[torch.Tensor],
) -> None:
    """Put them into the dicts of these paths. One that nothing here holds is another rank's own.
    `here`: see `packing.unpack`.
    """
    holders: dict[str, Any] = {path: one for path, one in there.held if path}
    for path, itself, by_id in said:
        present: Any = holders.get(path)
        if type(present) in DICTS:
            content = unpack(itself, tensors, here=here)
            present.update({key: _whole(key, value) for key, value in content.items()})
            content = unpack(by_id, tensors, here=here)
            present.update({id(key): _whole(key, value) for key, value in content.items()})


def _found(
    there: Holdings, made: MadeObjects, packing: Packing
) -> Iterator[tuple[str, Mapping[Any, Any]]]:
    own = {id(vars(one).get("state")) for one in made.of("optimizers")}
    for path, one in there.held:
        if path and type(one) in DICTS and id(one) not in own:
            kinds = set(map(type, one))
            if any(issubclass(kind, torch.Tensor) for kind in kinds):
                yield path, one
            elif int in kinds and any(packing.with_id(key) is not None for key in list(one)):
                yield path, one


def _can_travel(value: Any, trial: Packing) -> bool:
    try:
        trial.pack(value)
    except CannotTravel:
        return False
    return True


def _whole(param: Any, value: Any) -> Any:
    """Local parts are parts of a DTensor again, as the parameter is that they belong to."""
    if isinstance(value, LocalShard):
        return held_tensors.like(param, value.tensor)
    if type(value) in DICTS:
        value.update({name: _whole(param, one) for name, one in value.items()})
    return value
