"""Iterable data sets of the script, of which each rank may have cut its share as it made them.

    class Lines(IterableDataset):
        def __init__(self, files, rank, world):
            self.files = files[rank::world]

While code is executed as another rank, what ranks told each other of such shares is in the place of
ours (`rank_constants`): an attribute, or one entry of a list of lists that an attribute holds. A
snapshot from the beginning of a pass has ours, and gets these, but for what has moved in the pass:
tokens that were read and not given yet, a counter.
"""

import copy
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from recoverrun.worker.data.iterable_snapshot import IterableSnapshot
from recoverrun.worker.data.loader_iterator import LoaderIterator
from recoverrun.worker.data.object_copy import attributes_of, is_foreign, position_digest
from recoverrun.worker.data.shallow_copy import shallow_copy
from recoverrun.worker.data.source import Source
from recoverrun.worker.data.weak_source import WeakSource

DEEPEST, LOOKED_INTO, LONGEST = 5, 1_024, 1_000
"""Levels, containers in all, and entries of each, that are looked into."""

Contents = dict[int, dict[Any, Any]]
"""The entries of containers and objects, by their identities."""


def loaders_of(sources: Iterable[Source]) -> Iterator["DataLoader[Any]"]:
    """The loaders that are gone through now."""
    for source in sources:
        held = source.held if isinstance(source, WeakSource) else source
        if isinstance(held, LoaderIterator):
            yield held.loader


def own_data_sets(sources: Iterable[Source]) -> dict[str, Any]:
    """Those that loaders go through now, by names that all ranks have."""
    found: dict[str, Any] = {}
    for loader in loaders_of(sources):
        data = loader.dataset
        if isinstance(data, IterableDataset) and not any(data is one for one in found.values()):
            found[f"{type(data).__name__}_{len(found)}"] = data
    return found


def identities_in(value: Any) -> set[int]:
    """The identities of the containers and objects in a value, and of what holds attributes."""
    found = {id(one) for one, _ in _walk([value])}
    return found | {id(attributes_of(one)) for one, _ in _walk([value]) if hasattr(one, "__dict__")}


def contents_of(sources: Iterable[Source]) -> Contents:
    """The contents of these data sets, and of containers and objects in them."""
    return {id(one): dict(held) for one, held in _walk(own_data_sets(sources).values())}


def _walk(values: Iterable[Any]) -> Iterator[tuple[Any, Mapping[Any, Any]]]:
    """Each container or object, from the outside inwards, with its entries."""
    seen: set[int] = set()
    inner = list(values)
    for _ in range(DEEPEST):
        over, inner = inner, []
        for one in over:
            held = _held(one)
            if held is None or id(one) in seen or len(seen) == LOOKED_INTO:
                continue
            seen.add(id(one))
            yield one, held
            inner += held.values()


def put_in_place(data: Any, ours: Contents, begun: IterableSnapshot) -> dict[str, Any]:
    """The attributes of a data set in which there is something else now than in `ours`, as they
    were when it was `begun`. What had moved by then stays as it was.
    """
    then = begun.attributes
    if then is None:
        return {}
    replaced = ((name, _replaced(data, name, ours, then)) for name in then)
    return {name: value for name, value in replaced if value is not then[name]}


def _replaced(owner: Any, key: Any, ours: Contents, then: Mapping[Any, Any]) -> Any:
    """The entry `key` of `owner` for what was `then`: theirs, if another one is there now."""
    known, now, old = ours.get(id(owner), {}), _held(owner) or {}, then[key]
    if key not in known or key not in now:
        return old
    mine, there = known[key], now[key]
    if there is not mine:
        return there if position_digest(mine) == position_digest(old) else old
    entries = _held(old)
    if id(mine) not in ours or entries is None or type(mine) is not type(old):
        return old
    changes = {
        inner: value
        for inner in entries
        if (value := _replaced(mine, inner, ours, entries)) is not entries[inner]
    }
    return _with(old, changes) if changes else old


def _held(one: Any) -> Mapping[Any, Any] | None:
    """The entries of a container or a plain object; None for all else, and what is long."""
    if isinstance(one, list | deque):
        return dict(enumerate(one)) if len(one) <= LONGEST else None
    held = one if isinstance(one, dict) else None if is_foreign(type(one)) else attributes_of(one)
    return held if held is not None and len(held) <= LONGEST else None


def _with(old: Any, changes: Mapping[Any, Any]) -> Any:
    plain = isinstance(old, list | deque | dict)
    made = copy.copy(old) if plain else shallow_copy(old)
    held = made if plain else vars(made)
    for key, value in changes.items():
        held[key] = value
    return made
