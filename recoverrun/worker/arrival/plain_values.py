"""Values that the script has changed beside its loops: histories, counters of its modules, meters,
caches.

All that hangs on its frames and modules is walked through (`object_graph`). As the run begins a
digest is taken of each plain list, and of each plain value that an object or a dict holds. What has
changed since is told to a newcomer, by the path on which it was found, and put there in place. What
never changes is not told: it may be the rank's own. Entries that a dict has lost are not missed.
An object that the newcomer does not have is made if its class is the script's, and all that it
holds is plain.
"""

import ast
import zlib
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import FrameType
from typing import Any

import msgpack
import torch

from recoverrun.worker.arrival import dict_kinds, new_objects
from recoverrun.worker.arrival.container_contents import WHOLE, fill
from recoverrun.worker.arrival.elements import fill_elements
from recoverrun.worker.arrival.new_objects import DICT
from recoverrun.worker.arrival.packing import CannotTravel, Packing, unpack
from recoverrun.worker.arrival.value_kinds import is_value
from recoverrun.worker.arrival.value_places import Place
from recoverrun.worker.context.object_graph import (
    LONG,
    OF_HOOKS,
    HeldObject,
    Holdings,
    Items,
    Resting,
    holdings,
)
from recoverrun.worker.context.object_members import DICTS
from recoverrun.worker.context.object_views import PLAIN, named_in
from recoverrun.worker.context.slot_context import belongs_to_process
from recoverrun.worker.context.values import is_numpy, is_small_data, is_small_tensor
from recoverrun.worker.data.batch_substitution import holds_part
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.rng.streams import tensor_bytes
from recoverrun.worker.tracking.microbatches import LoopFrame

QUICK = (bool, float, type(None))
SAME = (bool, int, float, str, type(None))
"""Values of one of these kinds that are equal are the same, but for zeros that have a sign."""

SHORT_TEXT = 64
"""Characters of a text whose digest is remembered."""

LARGE = 1 << 63
"""These are packed as they are, smaller integers too."""

LONG_CONTAINER = 1 << 14
MOST_BYTES = 1 << 18
"""Of one container: a larger one is data."""

ALL_BYTES = 1 << 24

MUCH = "more than {} MiB of plain values have changed since the run began"

OF_MODULES = (".vars._parameters", ".vars._buffers", ".vars._modules")
"""The ends of the paths of dicts that each module of torch has, beside those of hooks."""

NOTED = {*vars(torch.nn.Module()), *torch.optim.Optimizer.__annotations__}

HOOKS = tuple(f".{name}" for name in sorted(NOTED) if name.endswith(OF_HOOKS))
"""The ends of the paths of dicts of hooks, and of notes on them, in modules and optimizers: those
of another process have other numbers.
"""

KEYS = (int, str)

DEPTH = 8
"""Dicts within dicts that are looked into."""

NOT_OURS = ("os.environ", "context variables")

Holder = str | tuple[str, str, int]
"""The holder of a value: "dict", or module and name of an object's class and how many attributes it
has, or "" for anything else.
"""


@dataclass(frozen=True, slots=True)
class PackedValue:
    """One value, packed."""

    place: Place
    packed: bytes
    tensors: tuple[torch.Tensor, ...]
    holder: Holder = ""

    @property
    def digest(self) -> int:
        crc = zlib.crc32(self.packed)
        for tensor in self.tensors:
            crc = zlib.crc32(tensor_bytes(tensor.detach()), crc)
        return crc


def found(
    frames: Iterable[FrameType],
    own: frozenset[str],
    resting: Resting | None = None,
    *,
    last: frozenset[str],
    **others: Any,
) -> Holdings:
    """All that hangs on the variables of `frames`, and on the script's modules, `own`. What hangs
    on the variables `last`, those `bound_by` the loops under way, goes by another name, if it has
    any. For `others` see `holdings`.
    """
    variables = [dict(frame.f_locals) for frame in frames]
    return holdings(variables, own, idle_hooks=False, resting=resting, last=last, **others)


def bound_by(stack: Iterable[LoopFrame]) -> frozenset[str]:
    """The variables that these loops bind: what one holds at a top may be left of the iteration
    before, and a process that comes there has made none.
    """
    return frozenset(name for one in stack for name in one.loop.rebinds)


def digests(there: Holdings, *, of_process: bool = False) -> dict[Place, int]:
    """The digests of everything, as it is now; with `of_process` also of what belongs to this
    process alone.
    """
    return {entry.place: entry.digest for entry in _entries(there, of_process)}


def changed(
    there: Holdings,
    before: Mapping[Place, int],
    data: frozenset[int] = frozenset(),
    *,
    of_process: bool = False,
    whole: set[str] | None = None,
    every: bool = False,
) -> Iterator[PackedValue]:
    """The values that have changed or are new. Left out is what holds one of these parts of `data`:
    those are this rank's. To `whole` are added the paths of lists, and of such dicts, that nobody
    else has to tell.

    What is too much in all is left out, too: with `every`, NotReachable is raised.
    """
    left = ALL_BYTES
    for entry in _entries(there, of_process, data, before):
        told = before.get(entry.place) != entry.digest
        if told:
            left -= len(entry.packed) + sum(one.nbytes for one in entry.tensors)
            if left < 0 and every:
                raise NotReachable(MUCH.format(ALL_BYTES >> 20))
            if left < 0:
                continue
        is_list = entry.place[1] is None and entry.holder != DICT
        if whole is not None and is_list and entry.place in before:
            whole.add(entry.place[0])  # a list that another process has, too
        if told:
            yield entry


def pack(entries: Iterable[PackedValue], packing: Packing) -> list[Any]:
    """Plain values for msgpack, and tensors beside them. What a dict holds under the `id` of a
    parameter comes with such dicts (`values_by_parameter`): it would have another key there.
    """
    told = []
    for entry in entries:
        if packing.with_id(entry.place[1]) is not None:
            continue
        plain = msgpack.unpackb(entry.packed, raw=False)
        if entry.tensors:  # which have other numbers there
            plain = packing.pack(unpack(plain, entry.tensors))
        told.append([*entry.place, entry.holder, plain])
    return told


def put(
    told: Sequence[list[Any]],
    tensors: Sequence[torch.Tensor],
    there: Holdings,
    here: Sequence[torch.Tensor] = (),
    lie: Container[Place] = (),
) -> None:
    """Put it where it was found; what nothing in this process holds is left out. Tensors and arrays
    at the places `lie` get their elements where these lie. `here`: see `packing.unpack`.
    """
    by_path = {path: one for path, one in there.held if path}
    sizes = Counter(path for path, key, *_ in told if key is not None)
    for path, key, holder, packed in told:
        value = unpack(packed, tensors, here=here)
        if path not in by_path:
            parent, name = place_of(path)
            made = value if key is None else new_objects.made(holder, sizes[path])
            if parent not in by_path or (key is not None and made is None):
                continue
            if not new_objects.add(by_path[parent], name, made):
                continue
            by_path[path] = vars(made) if new_objects.is_object(holder) else made
        if key is None and holder == DICT:  # of one that is there each entry is told
            parent, name = place_of(path)
            around = by_path.get(parent)
            by_path[path] = dict_kinds.of_kind(by_path[path], value, around, name)
        elif key is None:
            fill(by_path[path], value)
        elif (path, key) not in lie or not fill_elements(named_in(by_path[path]).get(key), value):
            named_in(by_path[path])[key] = value


def place_of(path: str) -> tuple[str, Any]:
    """The path of the holder, and the name, key or place there: the inverse of
    `object_graph.inside`; a path of "" where the text does not say so.
    """
    if not path.endswith("]"):
        around, _, name = path.rpartition(".")
        return around, name
    around, _, written = path.rpartition("[")
    try:
        return around, ast.literal_eval(written[:-1])
    except (SyntaxError, ValueError):
        return "", None


def put_early(told: Iterable[list[Any]], there: Holdings) -> None:
    """Put what holds no tensor, before items of a loop are passed: a generator of the script's that
    gives them may look at what the loop's body has changed. What that code does to it is undone by
    `put`, which follows.
    """
    put([one for one in told if _needs_nothing(one[-1])], (), there)


def _needs_nothing(packed: Any) -> bool:
    try:
        unpack(packed, ())
    except ValueError:  # a tensor
        return False
    return True


def _entries(
    there: Holdings,
    of_process: bool,
    data: frozenset[int] = frozenset(),
    before: Mapping[Place, int] | None = None,
) -> Iterator[PackedValue]:
    """Most plain values are what they were `before`: of these not all are among it."""
    whole: set[str] = set()  # lists, and such dicts, of which all that is in them is told
    for holder in there.holders:
        path, one, items, _ = holder
        if path in NOT_OURS or path.endswith(HOOKS) or is_within(path, whole):
            continue
        if data and type(one) in WHOLE and holds_part(one, data):
            whole.add(path)
            continue
        whole_kind = type(one) in WHOLE or _is_told_whole(holder, there)
        entry = entry_of((path, None), one) if whole_kind else None
        if entry is not None:
            whole.add(path)
            yield entry
        elif items or type(one) in DICTS:
            owner = there.owners.get(id(one))
            if owner is None and type(one) in DICTS and not path.endswith(OF_MODULES):
                yield from _kind_of(path, one, items, data, before or {})
            if items:
                yield from _values(holder, owner, of_process, data, before or {})


def _is_told_whole(holder: HeldObject, there: Holdings) -> bool:
    """True of a dict that has keys by which no single value is told, or too many."""
    _, one, items, _ = holder
    if type(one) not in DICTS:
        return False
    many = len(one) > LONG and id(one) not in there.owners
    return many or not all(type(key) in KEYS for key, _ in items)


def _kinds(items: Items) -> Iterator[Any]:
    return (type(value) for _, value in items)


def _kind_of(
    path: str, one: Any, items: Items, data: frozenset[int], before: Mapping[Place, int]
) -> Iterator[PackedValue]:
    """The kind of a dict, as an empty one. A dict that is told by its values is a plain one."""
    told = any(map(_is_told, _kinds(items)))
    if told and type(one) is dict and (path, None) not in before:
        return
    if told or _is_all_told(one, data):
        yield from filter(None, [entry_of((path, None), dict_kinds.empty(one), DICT)])


def _is_all_told(one: Any, data: frozenset[int], depth: int = DEPTH) -> bool:
    """True of a dict of which nothing is missing once all that can be told of it is."""
    if not depth or len(one) > LONG or id(one) in data:
        return False
    for value in list(one.values()):
        kind: Any = type(value)
        if kind in DICTS:
            told = _is_all_told(value, data, depth - 1)
        elif kind in WHOLE:
            told = entry_of(("", None), value) is not None and not holds_part(value, data)
        else:
            told = _is_told(kind) or (is_small_data(value) and id(value) not in data)
        if not told:
            return False
    return True


def _values(
    held: HeldObject,
    owner: Any,
    of_process: bool,
    data: frozenset[int],
    before: Mapping[Place, int],
) -> Iterator[PackedValue]:
    """`owner` is the class of the object whose attributes this holder is, if it is that."""
    path, holder, named, _ = held
    kind_of_holder: Holder = DICT if type(holder) in DICTS else ""
    if owner is not None:
        kind_of_holder = owner.__module__, owner.__qualname__, len(named)
    for key, value in named:
        kind: Any = type(value)
        if kind in SAME and type(key) in KEYS and _has_rested(value, before.get((path, key))):
            continue  # there are thousands
        if not (_is_told(kind) or issubclass(kind, torch.Tensor) or is_numpy(value)):
            continue
        if type(key) not in KEYS or (type(key) is str and _is_private(key, of_process)):
            continue
        if _is_told(kind) or (is_small_data(value) and id(value) not in data):
            entry = entry_of((path, key), value, kind_of_holder)
            if entry is not None and not (kind is tuple and entry.tensors):  # `loose_values`
                yield entry


@lru_cache(maxsize=1 << 14)
def _is_told(kind: Any) -> bool:
    """True of kinds whose values are told. Asked of each value."""
    return kind in PLAIN or is_value(kind)


@lru_cache(maxsize=1 << 14)
def _is_private(name: str, of_process: bool) -> bool:
    """True of attributes that are not told. Asked of each attribute of each object."""
    return name.startswith("__") or (belongs_to_process(name) and not of_process)


def is_within(path: str, lists: set[str]) -> bool:
    """True of what lies in one of these lists."""
    at = path.find("[") if lists else -1
    while at > 0:
        if path[:at] in lists:
            return True
        at = path.find("[", at + 1)
    return False


def _has_rested(value: Any, before: int | None) -> bool:
    """True if it is known to have the digest that it had `before`."""
    if before is None or (type(value) is str and len(value) > SHORT_TEXT):
        return False
    return (bool(value) or type(value) is not float) and before == _digest_of(value)


@lru_cache(maxsize=1 << 14, typed=True)
def _digest_of(value: Any) -> int:
    entry = entry_of(("", None), value)
    return -1 if entry is None else entry.digest


def entry_of(place: Place, value: Any, holder: Holder = "") -> PackedValue | None:
    """None if it is no plain value, or data."""
    kind = type(value)
    if (kind in WHOLE or kind in DICTS) and len(value) > LONG_CONTAINER:
        return None
    if kind in QUICK or (kind is int and abs(value) < LARGE):  # there are thousands
        return PackedValue(place, msgpack.packb(value), (), holder)
    tensors: list[torch.Tensor] = []
    packing = Packing(tensors)
    try:
        packed = bytes(msgpack.packb(packing.pack(value), use_bin_type=True))
    except (CannotTravel, ValueError):
        return None
    if packing.sharded:  # a list of parameters, say: they come with the model
        return None
    size = len(packed) + sum(one.nbytes for one in tensors)
    large = size > MOST_BYTES or not all(map(is_small_tensor, tensors))
    return None if large else PackedValue(place, packed, tuple(tensors), holder)
