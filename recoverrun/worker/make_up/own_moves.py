"""Values that ranks had in common as one was lost, and that each moves by what it computes itself.

    weights = balanced(costs)               # as an epoch begins
    scores[rows] = losses.detach()          # behind the backward

Nobody runs code of a lost rank between a backward and the next iteration, and what all had in
common is taken to move there as it moves here. By the script's text some of it comes of a loss, or
of what is known to differ (`own_results`): that moves otherwise on each rank. Large data, of which
contexts hold nothing, are watched here as long as a rank is lost.
"""

import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from ft_collectives.communicators.script_modes import aside
from recoverrun.worker.context.fingerprints import is_mark, mark_of
from recoverrun.worker.context.member_views import MOST_ENTRIES
from recoverrun.worker.context.namespaces import modules_in
from recoverrun.worker.context.object_members import contents
from recoverrun.worker.context.slot_context import AFTER, Context, Key, last, owners_of
from recoverrun.worker.context.values import same
from recoverrun.worker.data.numpy_arrays import is_plain_array
from recoverrun.worker.replay.executor import Executor
from recoverrun.worker.replay.known_state import ABSENT, KnownState, differing, named
from recoverrun.worker.replay.lost_rank import LostRank

OWN = (
    "{name} comes of what each rank computes for itself, and moves between steps while rank {rank} "
    "is lost: that rank's is unknown"
)

MOST_BYTES = 1 << 24
"""The size of the largest array that is looked at as a whole."""

CONTAINERS = frozenset({list, dict, deque})
FIXED = frozenset({tuple, str, bytes})
FEW = 1_024
"""Entries of a container that are looked at."""


class OwnMoves:
    """The watch of this survivor over its own values while a rank is lost."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._moving: set[Key] = set()  # differs between ranks, and moves
        self._held: dict[Key, _Held] = {}  # large data, as the last transaction ended

    @aside
    def rests(self) -> None:
        """A transaction is over: what moves from here on is moved by nobody for a lost rank."""
        self._held = dict(self._watched())

    def forget(self) -> None:
        """Nobody is lost: nothing is compared with later."""
        self._held = {}

    @aside
    def found(self, here: Context, lost: Iterable[LostRank]) -> str:
        """The reason why a microbatch of a lost rank is unknown from our top `here` on, or ""."""
        for one in lost:
            state = one.states.get(here.point)
            if state is not None and (key := self._parted(here, state, one)):
                return OWN.format(name=named(key), rank=one.rank)
            for key in self._changed(here):
                return OWN.format(name=named(key), rank=one.rank)
        return ""

    def _parted(self, here: Context, state: KnownState, lost: LostRank) -> Key | None:
        """One of the values that are taken for common, have moved since the last backward, and are
        a rank's own by the text.
        """
        points = [one for one in self._executor.captures.points if one.point < here.point]
        before = points[-1] if points and points[-1].kind == "after" else None
        first = next((one for one in points if one.loop == here.loop), None)
        began = None if before is None else lost.states.get((*before.point[:2], AFTER, 0))
        if before is None or first is None or began is None:
            return None
        theirs, mine, were = state.context.values, here.values, before.values
        self._moving |= {
            key
            for key in differing(state.context, here)
            if not is_mark(last(key)) and not same(first.values.get(key, ABSENT), mine.get(key))
        }
        had, told = began.context.values, began.context.behind
        moved = (
            key
            for key, value in mine.items()
            if not same(were.get(key, ABSENT), value)
            and same(had.get(key, ABSENT), were.get(key, ABSENT))
            and same(theirs.get(key, ABSENT), value)
            and not is_mark(last(key))
            and key not in told
        )
        own = self._executor.influence.own_results
        read = (key for key in moved if self._is_read(key, mine[key]))
        return next((key for key in read if own(self._moving, key)), None)

    def _is_read(self, key: Key, value: Any) -> bool:
        """True if a microbatch may read it as it is at the top of the iteration."""
        influence = self._executor.influence
        variable = key if isinstance(key, str) else key[0]
        if influence.top is not None and variable in influence.top.loop.made:
            return False  # the iteration binds it before it reads it
        return influence.matters(key, value)

    def _changed(self, here: Context) -> Iterator[Key]:
        """Large data that are others than as the last transaction ended."""
        for key, now in self._watched():
            held = self._held.get(key)
            if held is None or key in here.values or held.is_like(now):
                continue
            if self._executor.influence.own_results(self._moving, key):
                yield key

    def _watched(self) -> Iterator[tuple[Key, "_Held"]]:
        """The data that no context may hold, by their keys."""
        top, modules = self._executor.influence.top, self._executor.runtime.own_modules
        if top is None:
            return
        visible = {**top.globals, **top.names}
        spaces: list[tuple[tuple[str, ...], Mapping[str, Any]]] = [((), visible)]
        spaces += [(path, contents(owner)) for path, owner in owners_of(visible, modules)]
        spaces += [((type(one).__name__,), one._buffers) for one in modules_in(visible, modules)]
        for path, held in spaces:
            for name, value in list(held.items()):
                key: Key = (*path, name) if path else name
                if name[:2] != "__" and _is_data(value) and self._is_read(key, value):
                    yield key, _Held(value)


class _Held:
    """An object, and what tells whether its content is another one."""

    def __init__(self, value: Any) -> None:
        self._value, self._mark = value, _mark(value)  # the object: its identity may go to others

    def is_like(self, other: "_Held") -> bool:
        same_object = self._value is other._value or type(self._value) in CONTAINERS
        return same_object and self._mark == other._mark


def _is_data(value: Any) -> bool:
    """True of what holds data, and is no parameter."""
    kind: Any = type(value)
    if kind is torch.Tensor:
        return not value.requires_grad and not value.is_inference()
    if kind is dict and len(value) <= MOST_ENTRIES:
        return False  # its entries are looked at, each by itself
    return kind in CONTAINERS or kind in FIXED or is_plain_array(value)


def _mark(value: Any) -> Any:
    """A change of the content changes it; objects in a container count as they are."""
    kind: Any = type(value)
    if kind is torch.Tensor:
        return value._version
    if is_plain_array(value):
        whole = value.nbytes <= MOST_BYTES and not value.dtype.hasobject
        return zlib.crc32(value.tobytes()) if whole else mark_of(value)
    if kind in FIXED:
        return None
    held = dict(value) if kind is dict else list(value)  # in one go, beside other threads
    parts = [*held, *held.values()] if isinstance(held, dict) else held
    return len(parts), [(id(one), _version(one)) for one in parts[:FEW]]


def _version(one: Any) -> int:
    return one._version if type(one) is torch.Tensor and not one.is_inference() else 0
