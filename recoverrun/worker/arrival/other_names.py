"""Variables that loops bind to objects which have another name: the last one of a loop over meters.

No object travels, but a fresh process has made one in the same place. A variable is told by that
place: an entry of a container, an attribute, or a variable that no loop binds.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import torch

from recoverrun.worker.arrival.frame_variables import FrameVariables
from recoverrun.worker.arrival.value_kinds import is_value
from recoverrun.worker.arrival.value_places import Place, Spaces
from recoverrun.worker.context.object_graph import CONTAINERS, Holdings
from recoverrun.worker.context.object_views import PLAIN, named_in

Told = list[Any]
"""Of one frame: ids of its loops, and of each variable its name, True if it is one of the module,
the place and the kind of the object.
"""


def told(
    read: Iterable[FrameVariables], there: Holdings, spaces: Spaces, bound: Container[str]
) -> list[Told]:
    """Tell of each frame the variables of loops, as they were `read`; `bound` are all of these."""
    frames = [(one, [*_objects(one.local, False), *_objects(one.module, True)]) for one in read]
    wanted = {id(value) for _, objects in frames for _, _, value in objects}
    places: dict[int, Place] = {}
    for key, value in _places(there, spaces) if wanted else ():
        if id(value) in wanted and not (key[0].startswith("<") and key[1] in bound):
            places.setdefault(id(value), key)
    return [
        [
            list(one.loops),
            [
                [name, of_module, *places[id(value)], _kind(value)]
                for name, of_module, value in objects
                if id(value) in places
            ],
        ]
        for one, objects in frames
    ]


def found(told: Sequence[Told], there: Holdings, spaces: Spaces) -> list[FrameVariables]:
    """The variables as this process has them, but for those whose place holds another kind here."""
    holders: dict[str, Any] = {path: one for path, one in reversed(there.held) if path}
    variables: dict[str, Any] = dict(reversed(spaces))
    read = []
    for loops, names in told:
        one = FrameVariables(tuple(loops), {}, {})
        for name, of_module, path, key, kind in names:
            held = variables.get(path)
            if held is None and path in holders:
                held = named_in(holders[path])
            value = None if held is None else held.get(key)
            if value is not None and _kind(value) == kind:
                (one.module if of_module else one.local)[name] = value
        read.append(one)
    return read


def _objects(values: Mapping[str, Any], of_module: bool) -> Iterable[tuple[str, bool, Any]]:
    return [(name, of_module, one) for name, one in values.items() if _is_object(one)]


def _is_object(value: Any) -> bool:
    """True of what cannot travel, and is neither the present batch nor an iterator."""
    kind: Any = type(value)
    if kind in PLAIN or is_value(kind) or issubclass(kind, (torch.Tensor, *CONTAINERS, type)):
        return False
    return not hasattr(kind, "__next__")


def _places(there: Holdings, spaces: Spaces) -> Iterable[tuple[Place, Any]]:
    for space, variables in spaces:
        yield from (((space, name), value) for name, value in list(variables.items()))
    for path, _, _, objects in there.holders:
        yield from (((path, name), value) for name, value in objects if type(name) in (int, str))


def _kind(value: Any) -> str:
    kind: Any = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"
