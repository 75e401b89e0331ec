"""The values that hang on the script's frames and modules, by names that all ranks have.

So `rank_constants` compares ranks: plain values, small tensors, arrays and data, each with what
holds it. What a loop sees is left to contexts (`slot_context`).
"""

import os
import sys
import zlib
from collections import ChainMap, Counter, UserDict, UserList, deque
from collections.abc import Iterable, Iterator, MutableMapping, Set
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import nn

from recoverrun.worker.context.attached_state import ATTACHED
from recoverrun.worker.context.fingerprints import FEW, mark_of
from recoverrun.worker.context.iterator_copy import iterator_digest
from recoverrun.worker.context.member_views import ModuleVariables
from recoverrun.worker.context.object_graph import LONG, Holdings, inside
from recoverrun.worker.context.object_members import members
from recoverrun.worker.context.object_views import PLAIN, is_view, named_in
from recoverrun.worker.context.slot_context import CODE, belongs_to_process, owners_of
from recoverrun.worker.context.values import FIXED, bits, is_simple
from recoverrun.worker.replay.holder_places import RequestedValues, has_moved, names_of
from recoverrun.worker.replay.local_shards import size_of, travels

MOST_BYTES = 16 << 20
"""The size of all values that one rank tells."""

MOVED = "{name} differs between ranks, and is not what it was as they told each other"
LONG_MOVED = (
    "{place} differs between ranks, and has changed since they told each other: with more than "
    "{most} entries it is not followed ({name})"
)
OWN_PLACE = frozenset({"RANK", "LOCAL_RANK"})
"""Environment variables of a rank's own, which `rank_environment` sets for executed code."""

SMALL_BYTES = 1 << 12
"""The size of the largest tensor or array that is told, unless it is a variable of a module."""

WRAPPERS = UserDict, UserList, ChainMap
"""Classes of Python whose objects are containers with attributes of their own."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One value, in a mapping that shows what an object holds."""

    name: str  # on all ranks alike
    holder: MutableMapping[Any, Any]
    key: Any
    strict: bool = False  # no code is executed as another rank without that rank's
    module: nn.Module | None = None  # whose attribute or buffer it is, until the script writes it
    iterator: bool = False
    owner: int = 0  # the identity of what `holder` shows
    place: str = ""  # the name of that
    names: tuple[str, ...] = ()  # by which the script's text may come to it

    @property
    def value(self) -> Any:
        return self.holder.get(self.key)

    @property
    def digest(self) -> int:
        return iterator_digest(self.value) if self.iterator else digest_of(self.value)

    @property
    def written(self) -> bool:
        """True once it is in contexts."""
        return self.module is not None and self.key in ATTACHED.written(self.module)

    @property
    def spelt(self) -> str:
        return self.name.removeprefix("__main__.")

    @property
    def moved(self) -> str:
        """The sentence on a value that is not what it was."""
        place = self.place.removeprefix("__main__.")
        long = type(self.key) is int and len(self.holder) > FEW
        return (LONG_MOVED if long else MOVED).format(name=self.spelt, place=place, most=FEW)

    def missed(self, asked: RequestedValues, rests: bool) -> bool:
        """True if it is not what it was, or not where it was found, and is `asked` for."""
        moved = not (rests or self.strict) or has_moved(self.place, self.owner, asked.variables)
        return moved and bool(self.place) and asked.wants(self.names, self.place)

    @property
    def number(self) -> int:
        return zlib.crc32(self.name.encode(errors="replace"))


def leaves_of(
    holdings: Holdings, own: frozenset[str], seen: Set[tuple[int, str]]
) -> Iterator[Leaf]:
    """Plain values, and data, each by a name that other ranks have for it, too; none twice."""
    spaces = [
        (name, vars(sys.modules[name])) for name in sorted(own - {"__main__"} & sys.modules.keys())
    ]
    strict, in_contexts = {id(names) for _, names in spaces}, {held for held, _ in seen}
    for _, names in spaces:
        for _, owner in owners_of(names, own):
            held = id(holder_of(owner))
            if type(owner).__module__ != "__main__" and held not in in_contexts:
                strict.add(held)
    looked_at = {id(os.environ)}
    for _, module in holdings.modules:
        looked_at |= {id(vars(module)), id(module._buffers)}
    leaves = [
        *(Leaf(path, {0: one}, 0, iterator=True) for path, one in holdings.iterators if path),
        *_of_modules(holdings.modules),
        *_of_environment(),
    ]
    unnamed = _unnamed(holdings)
    for path, one in [*spaces, *holdings.held]:
        if path and id(one) not in looked_at and is_view(one) and not _is_plain_list(one):
            found = _of(path, one, id(one) in strict, seen)
            leaves += [replace(leaf, names=names_of(leaf.name, unnamed)) for leaf in found]
    often = Counter(leaf.number for leaf in leaves)
    return (leaf for leaf in leaves if often[leaf.number] == 1)


def _unnamed(holdings: Holdings) -> frozenset[str]:
    """The paths of containers and functions: the script's text need not name what they hold."""
    attributes = {one for one, kind in holdings.owners.items() if not issubclass(kind, WRAPPERS)}
    held = [
        path for path, one in holdings.held if _needs_no_names(one) and id(one) not in attributes
    ]
    return frozenset([*held, *(path for path, _ in holdings.tuples)])


def _needs_no_names(one: Any) -> bool:
    return isinstance(one, dict | list | deque | FunctionType | partial)


def _of(path: str, one: Any, strict: bool, seen: Set[tuple[int, str]]) -> Iterator[Leaf]:
    named = named_in(one)
    if len(named) > LONG:
        return
    most = MOST_BYTES if strict else SMALL_BYTES
    for key in list(named):
        text = key.name if isinstance(key, ContextVar) else key
        name = inside(path, text)
        dunder = isinstance(key, str) and key.startswith("__")
        if not name or dunder or (id(one), text) in seen or (id(one), f"[{text!r}]") in seen:
            continue
        if _tells(str(text), named.get(key), most):
            yield Leaf(name, named, key, strict, owner=id(one), place=path)


def _is_plain_list(one: Any) -> bool:
    """True of a list that is a value itself, in what holds it, or data."""
    return isinstance(one, list | deque) and all(type(entry) in PLAIN for entry in list(one))


def _of_environment() -> Iterator[Leaf]:
    """Variables that the script has set; those that it was started with belong to this node."""
    try:
        given = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return
    for name, value in os.environ.items():
        put = os.fsencode(f"{name}={value}") not in given and name not in OWN_PLACE
        if put and not belongs_to_process(name):
            yield Leaf(inside("os.environ", name), os.environ, name)


def _of_modules(modules: Iterable[tuple[str, nn.Module]]) -> Iterator[Leaf]:
    """Attributes; and buffers, but not of what trains, whose buffers follow what it sees."""
    usual = vars(nn.Module())
    training = {
        id(inner)
        for _, module in modules
        if next(module.parameters(), None) is not None
        for inner in module.modules()
    }
    for path, module in modules:
        parts = [vars(module), *([] if id(module) in training else [module._buffers])]
        for held in parts if path else ():
            for key, value in held.items():
                if key not in usual and _is_state(value) and not belongs_to_process(key):
                    yield Leaf(inside(path, key), held, key, module=module)


def _is_state(value: Any) -> bool:
    if type(value) is torch.Tensor:
        return value.numel() * value.element_size() <= SMALL_BYTES and not value.is_meta
    return type(value) in FIXED


def _tells(name: str, value: Any, most: int) -> bool:
    if type(value) in CODE or belongs_to_process(name):
        return False
    return is_simple(value) or travels(value) and size_of(value) <= most


def holder_of(owner: Any) -> Any:
    """The object that `object_graph` has for an owner: the dict of its attributes, or itself."""
    if isinstance(owner, ModuleVariables):
        return owner.variables
    held = members(owner)
    return held if type(held) is dict else owner


def digest_of(value: Any) -> int:
    """The digest of a plain value or of data; 0 where it is neither. Large data are sampled."""
    if is_simple(value):
        return zlib.crc32(bits(value)) or 1
    if not travels(value):
        return 0
    if size_of(value) > SMALL_BYTES or isinstance(value, list):
        return zlib.crc32(mark_of(value).encode()) or 1
    return zlib.crc32(repr((value.dtype, tuple(value.shape))).encode() + bits(value)) or 1
