"""Plain variables that functions rebind while the script trains, beside its loops: a counter of
steps in a module (`global done`), a flag in a function around.

What a loop binds comes by itself (`frame_variables`), what lists, dicts and objects hold as well
(`plain_values`). Of the rest a newcomer gets what has changed in a survivor since the run began:
not what was made once and may be the rank's own, nor what ranks are known not to have in common.
Where somebody follows the lost rank, what its microbatches read is put in place of that afterwards.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

import torch

from recoverrun.worker.arrival import frame_variables
from recoverrun.worker.arrival.container_contents import WHOLE
from recoverrun.worker.arrival.packing import CannotTravel, Packing, unpack
from recoverrun.worker.arrival.plain_values import LONG_CONTAINER, PackedValue, entry_of
from recoverrun.worker.arrival.value_kinds import is_value
from recoverrun.worker.arrival.value_places import Place, Spaces
from recoverrun.worker.context.object_members import DICTS
from recoverrun.worker.context.object_views import PLAIN
from recoverrun.worker.context.slot_context import belongs_to_process


def digests(spaces: Spaces, *, of_process: bool = False) -> dict[Place, int]:
    """The digest of each, by its space and its name; with `of_process` also of what belongs to this
    process alone.
    """
    return {entry.place: entry.digest for entry, _ in _entries(spaces, of_process)}


def changed(
    spaces: Spaces,
    before: Mapping[Place, int],
    bound: Container[str],
    apart: Container[Any] = (),
    *,
    packing: Packing,
    of_process: bool = False,
) -> list[list[Any]]:
    """Plain values for msgpack; tensors, as in a tuple, are in `packing`. Left out are names that
    loops have `bound`, those by which ranks are `apart`, and what was not there `before`.
    """
    return [
        [*entry.place, packing.pack(value, str(entry.place[1]))]
        for entry, value in _entries(spaces, of_process)
        if before.get(entry.place, entry.digest) != entry.digest
        and entry.place[1] not in bound
        and entry.place[1] not in apart
        and entry.place not in apart
    ]


def containers(
    spaces: Spaces, before: Mapping[Place, int], bound: Container[str], packing: Packing
) -> list[list[Any]]:
    """The same of lists, dicts and sets in place of a plain value (`best = None`): `plain_values`
    tells only of those that are there in each process. Very long ones are data.
    """
    told: list[list[Any]] = []
    for space, variables in spaces:
        for name, value in list(variables.items()):
            kind: Any = type(value)
            if (space, name) not in before or name in bound or kind not in (*WHOLE, *DICTS):
                continue
            if len(value) <= LONG_CONTAINER:
                with suppress(CannotTravel):
                    told.append([space, name, packing.pack(value, name)])
    return told


def put(
    told: Sequence[Sequence[Any]],
    tensors: Sequence[torch.Tensor],
    spaces: Spaces,
    frames: Sequence[FrameType],
    here: Sequence[torch.Tensor] = (),
) -> None:
    """Put them where they are in this process; `frames` are those of the first of `spaces`. `here`:
    see `packing.unpack`.
    """
    values = ((space, name, unpack(packed, tensors, here=here)) for space, name, packed in told)
    bind(values, spaces, frames)


def bind(told: Iterable[tuple[str, Any, Any]], spaces: Spaces, frames: Sequence[FrameType]) -> None:
    """Give variables, by their spaces and names, other values, where this process has them."""
    of_frames = {space: frame for (space, _), frame in zip(spaces, frames, strict=False)}
    variables = dict(spaces)
    for space, name, value in told:
        if name not in variables.get(space, ()):
            continue
        if space in of_frames:
            frame_variables.write(of_frames[space], {name: value})
        else:
            vars_of_module = variables[space]
            assert isinstance(vars_of_module, dict), "the namespace of a module"
            vars_of_module[name] = value


def bind_one(
    space: str, name: str, value: Any, spaces: Spaces, frames: Sequence[FrameType]
) -> None:
    bind([(space, name, value)], spaces, frames)


def _entries(spaces: Spaces, of_process: bool) -> Iterator[tuple[PackedValue, Any]]:
    for space, variables in spaces:
        for name, value in list(variables.items()):
            if not (type(value) in PLAIN or is_value(type(value))) or name.startswith("__"):
                continue
            if belongs_to_process(name) and not of_process:
                continue
            entry = entry_of((space, name), value)
            if entry is not None:
                yield entry, value
