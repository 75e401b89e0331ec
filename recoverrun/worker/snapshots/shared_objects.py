"""Lists, dicts, sets and objects of the script's that several places hold.

What the script makes while it trains is told by one place, or by each: in another process two would
be there in place of one (`self.current = self.episodes[-1]`), and what is added to the one would be
missing in the other. So the places that hold the same are told, and hold the same again.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from recoverrun.worker.arrival.container_contents import WHOLE
from recoverrun.worker.arrival.generator_states import OF_LOOPS
from recoverrun.worker.arrival.plain_values import HOOKS, KEYS, NOT_OURS, OF_MODULES
from recoverrun.worker.arrival.value_places import Place, Spaces
from recoverrun.worker.context.object_graph import Holdings, inside
from recoverrun.worker.context.object_members import DICTS
from recoverrun.worker.context.object_views import named_in


def told(there: Holdings, spaces: Spaces, own: frozenset[str]) -> list[list[Any]]:
    """For each that several places hold these places, by paths or spaces and names: first the one
    by which its content is told.
    """
    places: dict[int, list[Place]] = defaultdict(list)
    members: dict[int, int] = {}
    for place, value in _all(there, spaces, own):
        places[id(value)].append(place)
        members[id(value)] = id(getattr(value, "__dict__", value))
    paths = {id(one): path for path, one in there.held}
    groups: list[list[Any]] = []
    for number, found in places.items():
        if len(found) > 1:
            path = paths.get(number, paths.get(members[number], ""))
            groups.append([[*one] for one in sorted(found, key=lambda one: _path(one) != path)])
    return groups


def put(
    told: Sequence[Sequence[Sequence[Any]]], there: Holdings, spaces: Spaces, own: frozenset[str]
) -> list[tuple[str, Any, Any]]:
    """Have these places hold the same. Returns the values of variables, by spaces and names."""
    here = dict(_all(there, spaces, own))
    holders, variables = {path: one for path, one in there.held if path}, dict(spaces)
    anew: list[tuple[str, Any, Any]] = []
    for places in told:
        known = [(path, name) for path, name in places if (path, name) in here]
        for path, name in known[1:]:
            one, other = here[known[0]], here[path, name]
            if one is other or type(one) is not type(other):
                continue
            if path in variables:
                anew.append((path, name, one))
            else:
                named_in(holders[path])[name] = one
    return anew


def _path(place: Place) -> str:
    path, name = place
    return str(name) if path.startswith("<") else inside(path, name)


def _all(there: Holdings, spaces: Spaces, own: frozenset[str]) -> Iterator[tuple[Place, Any]]:
    for path, _, _, objects in there.holders:
        if not (path.endswith((*OF_MODULES, *HOOKS)) or path.startswith((OF_LOOPS, *NOT_OURS))):
            for name, value in objects:
                if type(name) in KEYS and _is_told(type(value), own):
                    yield (path, name), value
    for space, variables in spaces:
        for name, value in list(variables.items()):
            if not name.startswith("__") and _is_told(type(value), own):
                yield (space, name), value


def _is_told(kind: Any, own: frozenset[str]) -> bool:
    return kind in WHOLE or kind in DICTS or kind.__module__ in own
