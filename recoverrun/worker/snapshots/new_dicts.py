"""Dicts in places where the run began without one, and that hold objects or functions.

Their plain values are told one by one, and objects by their places: another process needs the dict
first. It is told like a reference: by its place, and its kind.
"""

from collections.abc import Collection, Iterator
from typing import Any

from recoverrun.worker.arrival import dict_kinds
from recoverrun.worker.arrival.packing import Packing, Plain
from recoverrun.worker.arrival.value_places import Place, Spaces
from recoverrun.worker.context.object_graph import Holdings
from recoverrun.worker.context.object_members import DICTS

NEW_DICT = "dict"
"""The way of one."""


def paths_of(there: Holdings) -> frozenset[str]:
    return frozenset(path for path, one in there.held if type(one) in DICTS)


def told(
    paths: Collection[str], there: Holdings, spaces: Spaces, before: Collection[str]
) -> list[list[Plain]]:
    """Plain values for msgpack, of those at these paths that were not there `before`, and of what
    is around them: paths or spaces, names, the way, kinds.
    """
    rows: list[list[Plain]] = []
    todo = set(paths) - set(before)
    new = {path: one for path, one in reversed(there.held) if path in todo}
    wanted = {id(one): path for path, one in new.items() if type(one) in DICTS}
    wanted = {number: path for number, path in wanted.items() if number not in there.owners}
    if not wanted:
        return rows
    around: set[str] = set()
    for (path, name), value in _all(there, spaces):
        if wanted.pop(id(value), None) is not None:
            rows.append([path, name, NEW_DICT, Packing([]).pack(dict_kinds.empty(value))])
            around.add(path)
    return [*told(around - set(paths), there, spaces, before), *rows]


def _all(there: Holdings, spaces: Spaces) -> Iterator[tuple[Place, Any]]:
    for space, variables in spaces:
        for name, value in list(variables.items()):
            if type(value) in DICTS and not name.startswith("__"):
                yield (space, name), value
    for path, _, _, objects in there.holders:
        for name, value in objects:
            if type(value) in DICTS and type(name) in (int, str):
                yield (path, name), value
