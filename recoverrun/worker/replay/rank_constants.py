"""Rank constants: plain values that differ between ranks, outside of the contexts of slots.

    RANK = int(os.environ["RANK"])                          # in common.py, read by the data code
    weigh = functools.partial(scaled, by=0.5 + rank)        # read from the third epoch on
    criterion = nn.SmoothL1Loss(beta=0.2 + rank)

A script that begins with its rank keeps what comes of that wherever it likes, and may read it only
long after the proofs, when nothing would notice whose it is. What the loop of a microbatch sees is
the business of `slot_context`. All else that hangs on the script's frames and modules
(`object_graph`) is compared between ranks once, before the first proof: by sums over a few thousand
buckets, then by digests of what is in buckets that differ. What differs belongs to a slot, as
variables of the script do: all ranks tell each other, and code that is executed as another rank
finds that rank's. A rank's share of the data may be among it.

What the script writes to a module while it trains is the business of contexts, too
(`attached_state`). An iterator of Python's own cannot be told: if it rests while the proofs are
made and begins to move later, no code is executed as another rank any more.
"""

import itertools
import os
import sys
import zlib
from collections import ChainMap, Counter, UserDict, UserList, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Set
from contextlib import contextmanager
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
from recoverrun.worker.context.object_members import members, resolve
from recoverrun.worker.context.object_views import PLAIN, is_view, named_in
from recoverrun.worker.context.slot_context import CODE, belongs_to_process, owners_of
from recoverrun.worker.context.values import FIXED, bits, is_clock_reading, is_simple, pack, unpack
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.replay.holder_places import NOTHING_ASKED, Asked, has_moved, names_of
from recoverrun.worker.replay.local_shards import size_of, travels

BUCKETS = 4_096
MOST_DIFFERING = 512
"""The number of buckets whose sums differ between ranks that are looked into."""

MOST_BYTES = 16 << 20
"""The size of all values that one rank tells."""

MOVED = "{name} differs between ranks, and is not what it was as they told each other"
LONG_MOVED = (
    "{place} differs between ranks, and has changed since they told each other: with more than "
    "{most} entries it is not followed ({name})"
)
AWAKE = "{name} gives each rank other values, and was not asked for any before the last proof"
OWN_PLACE = frozenset({"RANK", "LOCAL_RANK"})
"""Environment variables of a rank's own, which `rank_environment` sets for executed code."""

SMALL_BYTES = 1 << 12
"""The size of the largest tensor or array that is told, unless it is a variable of a module."""

WRAPPERS = UserDict, UserList, ChainMap
"""Classes of Python whose objects are containers with attributes of their own."""

NESTED, ENTRIES, LOOKED_INTO = 4, 64, 1_024
"""Levels of an item of a loop, entries of each container there, and containers in all."""

CALLED = "generator_"
"""The beginning of all names of what generators of the script were called with."""

Tell = Callable[[dict[str, Any]], Mapping[int, dict[str, Any]]]


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
        return iterator_digest(self.value) if self.iterator else _digest(self.value)

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

    def missed(self, asked: Asked, rests: bool) -> bool:
        """True if it is not what it was, or not where it was found, and is `asked` for."""
        moved = not (rests or self.strict) or has_moved(self.place, self.owner, asked.variables)
        return moved and bool(self.place) and asked.wants(self.names, self.place)

    @property
    def number(self) -> int:
        return zlib.crc32(self.name.encode(errors="replace"))


class RankConstants:
    """The constants of this rank and of others of its shard position, as they told each other."""

    def __init__(self) -> None:
        self._own: list[tuple[Leaf, int]] = []  # what differs, and its digest here
        self._theirs: dict[int, list[Any]] = {}  # by rank, in the order of `_own`
        self._resting: list[tuple[Leaf, int]] = []  # iterators that differ, and have not moved

    def exchange(
        self, holdings: Holdings, own: frozenset[str], seen: Set[tuple[int, str]], tell: Tell
    ) -> None:
        """All ranks enter. What is `seen` by contexts is left to them; what is too much, or cannot
        travel, is told by nobody.
        """
        self._own, self._theirs, self._resting = [], {}, []
        mine = {leaf.number: leaf for leaf in _found(holdings, own, seen)}
        every = {number: leaf.digest for number, leaf in mine.items()}
        digests = {number: crc for number, crc in every.items() if crc}
        sums = _sums(digests)
        heard = [one["sums"] for one in tell({"sums": sums}).values()]
        apart = [n for n, all_sums in enumerate(zip(*heard, strict=True)) if len(set(all_sums)) > 1]
        if not apart:
            return
        looked_into = frozenset(apart[:MOST_DIFFERING])
        words = {n: crc for n, crc in digests.items() if n % BUCKETS in looked_into}
        told = [dict(one["digests"]) for one in tell({"digests": list(words.items())}).values()]
        known = set(words).intersection(*told)
        differing = sorted(n for n in known if len({one[n] for one in told}) > 1)
        if differing:
            self._tell([mine[number] for number in differing], digests, tell)

    def _tell(self, leaves: list[Leaf], digests: Mapping[int, int], tell: Tell) -> None:
        left, values = MOST_BYTES, []
        for leaf in leaves:
            value = leaf.value
            left -= size_of(value) if travels(value) else 0
            tells = left >= 0 and not leaf.iterator
            values.append([pack(value)] if tells else [])
        answers = tell({"values": values, "names": [leaf.name for leaf in leaves]})
        for place, leaf in enumerate(leaves):
            values_by_rank = {rank: one["values"][place] for rank, one in answers.items()}
            same = {one["names"][place] for one in answers.values()} == {leaf.name}
            if leaf.iterator and same:
                self._resting.append((leaf, digests[leaf.number]))
            if not same or not all(values_by_rank.values()):
                continue
            self._own.append((leaf, digests[leaf.number]))
            for rank, (value,) in values_by_rank.items():
                self._theirs.setdefault(rank, []).append(unpack(value))

    def told(self) -> list[Any]:
        """For a process that takes a lost rank's place (`learn`): names, and values by rank. What
        has moved since is passed over as another rank's code is executed, and here.
        """
        resting = [leaf.name for leaf, _ in self._resting]
        rests = [leaf.strict or leaf.digest == digest for leaf, digest in self._own]
        names = [leaf.name for leaf, _ in itertools.compress(self._own, rests)]
        theirs = [
            [rank, [pack(one) for one in itertools.compress(held, rests)]]
            for rank, held in self._theirs.items()
        ]
        return [names, theirs, resting]

    def learn(self, told: list[Any], holdings: Holdings, own: frozenset[str], rank: int) -> str:
        """The ranks have told each other before this process, of `rank`, began. What of it this one
        does not hold, or has called with something else; "" if it holds all.
        """
        names, theirs, resting = told
        found = _found(holdings, own, frozenset()) if names or resting else ()
        mine = {leaf.name: leaf for leaf in found}
        said = dict(zip(names, dict(theirs).get(rank, ()), strict=False))
        for name in (*names, *resting):
            called = name in said and name.startswith(CALLED)
            if name not in mine or called and mine[name].digest != _digest(unpack(said[name])):
                return str(name)
        self._own = [(mine[name], mine[name].digest) for name in names]
        self._resting = [(mine[name], mine[name].digest) for name in resting]
        self._theirs = {rank: list(map(unpack, held)) for rank, held in theirs}
        return ""

    def differ_in(self, root: str) -> bool:
        """True if ranks were found to differ in what is called so, or hangs on it."""
        return any(leaf.name.startswith(root) for leaf, _ in self._own)

    def settle(self) -> None:
        """A proof shows, or has shown, what the present transaction depends on."""
        self._resting = [one for one in self._resting if one[0].digest == one[1]]

    def holds(self, item: Any) -> bool:
        """True if ranks have told each other something that `item` holds."""
        owners = {leaf.owner for leaf, _ in self._own}
        return not owners.isdisjoint(itertools.islice(_identities(item, NESTED), LOOKED_INTO))

    @contextmanager
    def of(self, rank: int, asked: Asked = NOTHING_ASKED) -> Iterator[None]:
        """Hold in this process what `rank` holds. Raises NotReplayable, also if what is `asked` for
        is no more what it was, or where it was found.
        """
        awake = [leaf.spelt for leaf, digest in self._resting if leaf.digest != digest]
        if awake:
            raise NotReplayable(AWAKE.format(name=min(awake, key=len)))
        before: list[tuple[Leaf, Any]] = []
        try:
            for (leaf, digest), value in zip(self._own, self._theirs.get(rank, ()), strict=False):
                mine = leaf.value
                rests = leaf.digest == digest and not leaf.written
                if not rests and is_clock_reading(mine):  # nobody could compute the same from it
                    continue
                if leaf.missed(asked, rests):
                    raise NotReplayable(leaf.moved)
                if rests:
                    before.append((leaf, mine))
                    leaf.holder[leaf.key] = value
                elif leaf.strict and leaf.digest != _digest(value):  # no context has put it there
                    raise NotReplayable(leaf.moved)
            yield
        finally:
            for leaf, value in reversed(before):
                leaf.holder[leaf.key] = value


def seen_by_contexts(
    paths: Iterable[tuple[str, ...]], names: Mapping[str, Any]
) -> set[tuple[int, str]]:
    """Each value of a context that was captured from `names`: what holds it, and its name there."""
    there = {**names, **ATTACHED.names()}
    return {(id(_holder(resolve(there, path))), path[-1].removesuffix("#")) for path in paths}


# ------------------------------------------------------------------------------- what there is


def _found(holdings: Holdings, own: frozenset[str], seen: Set[tuple[int, str]]) -> Iterator[Leaf]:
    """Plain values, and data, each by a name that other ranks have for it, too; none twice."""
    spaces = [
        (name, vars(sys.modules[name])) for name in sorted(own - {"__main__"} & sys.modules.keys())
    ]
    strict, in_contexts = {id(names) for _, names in spaces}, {held for held, _ in seen}
    for _, names in spaces:
        for _, owner in owners_of(names, own):
            held = id(_holder(owner))
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


def _identities(item: Any, depth: int) -> Iterator[int]:
    """The identities of a container and of those in it."""
    if type(item) not in (list, tuple, deque, dict):
        return
    yield id(item)
    parts = list(item.values()) if type(item) is dict else item
    for part in itertools.islice(parts, ENTRIES if depth else 0):
        yield from _identities(part, depth - 1)


def _holder(owner: Any) -> Any:
    """The object that `object_graph` has for an owner: the dict of its attributes, or itself."""
    if isinstance(owner, ModuleVariables):
        return owner.variables
    held = members(owner)
    return held if type(held) is dict else owner


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
    """A value itself, in what holds it, or data."""
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


# ------------------------------------------------------------------------------- on the wire


def _sums(digests: Mapping[int, int]) -> list[int]:
    """The sums, in whatever order leaves are found."""
    sums = [0] * BUCKETS
    for number, crc in digests.items():
        sums[number % BUCKETS] ^= zlib.crc32(b"%d %d" % (number, crc))
    return sums


def _digest(value: Any) -> int:
    """The digest of a plain value or of data; 0 where it is neither. Large data are sampled."""
    if is_simple(value):
        return zlib.crc32(bits(value)) or 1
    if not travels(value):
        return 0
    if size_of(value) > SMALL_BYTES or isinstance(value, list):
        return zlib.crc32(mark_of(value).encode()) or 1
    return zlib.crc32(repr((value.dtype, tuple(value.shape))).encode() + bits(value)) or 1
