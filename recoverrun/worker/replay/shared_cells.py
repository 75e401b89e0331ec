"""Variables that the code around a loop shares with functions that it has made (cells).

    net.register_forward_hook(lambda module, inputs, output: output * share)
    for x, y in loader:
        share = 1 - x.mean().item()
        loss = criterion(net(x), y)

A body that is executed again runs in a dict (`loop_body`), in which `share` is a variable like any
other; the hook reads the cell. So cells are filled with what the iteration began with, what the
body binds is put into the cell, too, and what functions put there is what the body reads.
"""

import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType
from typing import Any, cast

from recoverrun.worker.context.slot_context import owners_of
from recoverrun.worker.tracking.microbatches import Top
from recoverrun.worker.tracking.python_frames import find_frame

EMPTY = object()

Cells = dict[str, CellType]


class SharedNames(MutableMapping[str, Any]):
    """The variables `names` of an executed body, of which some are in `cells`."""

    def __init__(self, names: dict[str, Any], cells: Cells) -> None:
        self._names, self._cells = names, cells

    def __getitem__(self, name: str) -> Any:
        if name not in self._cells:
            return self._names[name]
        value = _content(self._cells[name])
        if value is EMPTY:
            raise KeyError(name)
        return value

    def __setitem__(self, name: str, value: Any) -> None:
        self._names[name] = value
        if name in self._cells:
            self._cells[name].cell_contents = value

    def __delitem__(self, name: str) -> None:
        del self._names[name]
        if name in self._cells:
            _put(self._cells[name], EMPTY)

    def settled(self) -> dict[str, Any]:
        """The variables, with what functions have put into the cells."""
        self._names.update((name, self[name]) for name in self._cells if name in self)
        return self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@contextmanager
def shared(
    top: Top, names: dict[str, Any], own_modules: frozenset[str]
) -> Iterator[MutableMapping[str, Any]]:
    """The variables in which the body of an iteration is executed: `names`, and the cells. Of
    `names` the item of the loop alone is not in its cells yet (`fill`).
    """
    cells = cells_of(top, own_modules)
    if not cells:
        yield names
        return
    local = SharedNames(names, cells)
    for name in cells.keys() & names.keys() & top.loop.targets:
        local[name] = names[name]
    try:
        yield local
    finally:
        local.settled()


def settled(local: MutableMapping[str, Any]) -> dict[str, Any]:
    """The variables of a body that is executed, as they are now."""
    return local if isinstance(local, dict) else cast(SharedNames, local).settled()


@dataclass(frozen=True, slots=True)
class FilledCell:
    """One cell that was filled."""

    name: str
    cell: CellType
    before: Any
    value: Any

    def follow(self, names: dict[str, Any]) -> None:
        """Fill it anew if the variable has become another one in `names` since then: what has been
        put into the cell itself stays there else.
        """
        if names.get(self.name, EMPTY) is not self.value:
            _put(self.cell, names.get(self.name, EMPTY))

    def put_back(self) -> None:
        """Let it hold what it held."""
        _put(self.cell, self.before)


def fill(top: Top, names: dict[str, Any], own_modules: frozenset[str]) -> list[FilledCell]:
    """Fill the cells around an iteration with these `names`, where they have a value there."""
    done = []
    for name, cell in cells_of(top, own_modules).items():
        done.append(FilledCell(name, cell, _content(cell), names.get(name, EMPTY)))
        if name in names:
            _put(cell, names[name])
    return done


def cells_of(top: Top, own_modules: frozenset[str]) -> Cells:
    """The cells of the function around an iteration, as functions have them that it has made and
    that are found from its variables, hooks and objects.
    """
    frame = None if top.loop.module_level else find_frame(top.frame_id, sys._getframe(1))
    if frame is None or not (frame.f_code.co_cellvars or frame.f_code.co_freevars):
        return {}
    code = frame.f_code
    scopes = dict(_scopes(code, frozenset(code.co_cellvars + code.co_freevars)))
    found: Cells = {}
    for _, owner in owners_of({**top.globals, **top.names}, own_modules):
        if type(owner) is FunctionType and owner.__code__ in scopes:
            held = zip(owner.__code__.co_freevars, owner.__closure__ or (), strict=True)
            found.update((n, cell) for n, cell in held if n in scopes[owner.__code__])
    return found


def _scopes(code: CodeType, names: frozenset[str]) -> Iterator[tuple[CodeType, frozenset[str]]]:
    """The functions that `code` makes, and those that they make, each with those of `names` that
    mean in it what they mean in `code`.
    """
    for inner in code.co_consts:
        if isinstance(inner, CodeType) and (same := names.intersection(inner.co_freevars)):
            yield inner, same
            yield from _scopes(inner, same)


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it was not given anything yet, or no more
        return EMPTY


def _put(cell: CellType, value: Any) -> None:
    if value is not EMPTY:
        cell.cell_contents = value
    elif _content(cell) is not EMPTY:
        del cell.cell_contents
