"""The known state of another rank at one of our points, and what executing as that rank needs."""

import zlib
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from recoverrun.worker.context.fingerprints import is_mark
from recoverrun.worker.context.member_views import ORDER
from recoverrun.worker.context.object_members import spelt
from recoverrun.worker.context.slot_context import (
    Context,
    Key,
    Path,
    belongs_to_process,
    host,
    key_of,
    last,
    told,
    unmarked,
)
from recoverrun.worker.context.values import bits, is_numpy, same
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.replay.poison import LARGE
from recoverrun.worker.rng.streams import tensor_bytes

NUMBERS_MOVE = (
    "random numbers of Python or numpy are drawn after a backward or between steps, and "
    "microbatches draw some, too: the position of another rank's stream is unknown"
)


UNTOLD = (
    "torch's random numbers are seeded anew between microbatches (or single normal numbers are "
    "drawn there, or tens of millions), and a microbatch draws some before it seeds them itself: "
    "the stream of another rank is unknown"
)


ABSENT = object()
"""Stands for the value of a key that a context does not have."""

OTHER = "other data"
"""The mark of a container that is known to hold other data than ours, and not which."""


@dataclass(frozen=True, slots=True)
class KnownState:
    """The known part of a rank's context at a point that this rank has passed, too."""

    context: Context
    unknown: frozenset[Key] = frozenset()  # variables, attributes, streams and generators
    torch_unknown: str = ""  # why torch's stream is not known
    assumed: bool = False  # it lies behind a microbatch that another survivor executes


Lacking = tuple[frozenset[Key], str]
"""The unknown parts of a state: `KnownState.unknown` and `KnownState.torch_unknown`."""


NOTHING_LACKING: Lacking = frozenset(), ""


def lacking(start: KnownState, after: Context) -> Lacking:
    """The unknown parts of `start` that are still unknown `after` the microbatch that began there:
    what it makes of unknown values is not known either.
    """
    began, ended = start.context.streams, after.streams
    rested = (began.torch_cpu, began.torch_cuda) == (ended.torch_cpu, ended.torch_cuda)
    return start.unknown, start.torch_unknown if rested else ""


def is_zero_or_empty(value: Any) -> bool:
    """True of a zero, a tensor of zeros and a container of these: counters begin so, and the state
    of a recurrent network.
    """
    if type(value) in (tuple, list):
        return all(map(is_zero_or_empty, value))
    several = isinstance(value, torch.Tensor) or is_numpy(value)
    return not bool(value.any()) if several else not value


def merged(
    before: Mapping[Any, Any],
    after: Mapping[Any, Any],
    theirs: Mapping[Any, Any],
    *,
    begins: Callable[[Any, Any], bool] = lambda key, now: False,
    alone: Container[Any] = (),
    restless: Container[Any] = (),
) -> tuple[dict[Any, Any], set[Any]]:
    """Follow another rank over a span: our values went from `before` to `after`, its own began as
    `theirs`. Return its values at the end of the span, and the keys of those that are unknown.

    A value that both ranks had in common goes the way that ours went, and one that stayed here
    stayed there. A value is unknown

    - if it differed between the ranks and moved here;
    - if its key is in `alone`, which holds what ranks are known not to share, and it moved here;
    - if its key is in `restless`, wherever it moved: it has just come to differ on that rank, which
      moves it whether or not this one does.

    A value that `begins` anew is known: all ranks had it as a microbatch began. A container that
    holds other values there than here gains other entries, too: those of ours are left out, and
    the mark of one that is too large to be told entry by entry becomes `OTHER`.
    """
    values: dict[Any, Any] = {}
    apart: set[Any] = set()
    unlike = _Unlike(before, theirs)
    for key, now in after.items():
        was, their = before.get(key, ABSENT), theirs.get(key, ABSENT)
        shared = same(their, was) and (key not in alone or same(was, now))
        if unlike.gains(key, was, now, their):
            if is_mark(last(key)):
                values[key] = OTHER
            elif their is not ABSENT:
                values[key] = their
                apart.add(key)
        elif their is ABSENT or shared:
            values[key] = now  # common to all, or not there yet
        elif same(was, now):
            values[key] = their
            if key in restless:
                apart.add(key)
        elif begins(key, now):
            values[key] = now
        else:
            values[key] = their
            apart.add(key)
    return values, apart


class _Unlike:
    """Finds containers that hold other values on another rank than here, by the known entries."""

    def __init__(self, mine: Mapping[Any, Any], theirs: Mapping[Any, Any]) -> None:
        self._mine, self._theirs = mine, theirs
        self._known: dict[Key, bool] = {}

    def gains(self, key: Any, was: Any, now: Any, their: Any) -> bool:
        """True if `key` tells of something that such a container has gained: an entry that was not
        there, the mark of its content, or another order of its keys.
        """
        if was is their is ABSENT:
            if is_mark(last(key)):
                return self._is_unlike(unmarked(key))
            return not isinstance(key, str) and key[-1][:1] == "[" and self._is_unlike(key[:-1])
        ordered = not isinstance(key, str) and key[-1] == ORDER and their is not ABSENT
        return ordered and not same(was, now) and self._is_unlike(key[:-1])

    def _is_unlike(self, whole: Key) -> bool:
        inside = (whole,) if isinstance(whole, str) else whole
        if inside not in self._known:
            self._known[inside] = any(
                last(key) != ORDER and _is_part(key, inside) and not same(value, self._theirs[key])
                for key, value in self._mine.items()
                if key in self._theirs
            )
        return self._known[inside]


def _is_part(key: Key, whole: Path) -> bool:
    """True of a value or an entry of the container `whole`, and of itself."""
    if isinstance(key, str):
        return (key,) == whole
    return key == whole or (key[:-1] == whole and key[-1][:1] == "[")


def _is_small_here(key: Key, ours: Mapping[Key, Any]) -> bool:
    """True if `key` is the mark of a container that is large on another rank, while here it is
    small enough to be told entry by entry.
    """
    if not is_mark(last(key)):
        return False
    whole = unmarked(key)
    inside = (whole,) if isinstance(whole, str) else whole
    return any(_is_part(one, inside) for one in ours)


def differing(theirs: Context, mine: Context) -> dict[Key, Any]:
    """The values in which another rank's context differs from ours at the same point, marks
    included.
    """
    ours = mine.values
    return {
        key: value
        for key, value in theirs.values.items()
        if (key in ours or _is_new(key, ours) or _is_small_here(key, ours))
        and not same(value, ours.get(key, ABSENT))
        and not belongs_to_process(last(key))
    }


def ended_otherwise(
    told: Context,
    began: Context,
    truth: Context,
    matters: Callable[[Key, Any], bool],
    *,
    talked: bool,
) -> list[Key]:
    """The keys of values that came out wrong where a microbatch was executed for another rank.

    It `began` at that rank's context and ended at `told`; the rank itself ended at `truth`. A value
    counts if the rank moved it and a later microbatch may read it (`matters`). What the rank did
    not move is what it was believed to be before. If collectives were answered with made-up values
    (`talked`), a number may be wrong for that reason alone, and does not count.
    """
    found = []
    for key, value in differing(truth, told).items():
        had, first = told.values.get(key, ABSENT), began.values.get(key, ABSENT)
        # An attribute that an execution does not move may be one that it is kept from moving: what
        # it would log in Lightning, say.
        if same(truth.values.get(key, ABSENT), first) or (
            not isinstance(key, str) and same(had, first)
        ):
            continue
        if matters(key, value) and not (talked and _may_be_an_answer(had)):
            found.append(key)
    return sorted(found, key=str)


def _may_be_an_answer(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        figures = value.is_floating_point() or value.is_complex()
        return value.numel() <= 1 or (figures and not bool((value.abs() < LARGE / 100).all()))
    if type(value) in (tuple, list):
        return any(map(_may_be_an_answer, value))
    return not is_numpy(value) and not isinstance(value, str)


def _is_new(key: Key, ours: Mapping[Key, Any]) -> bool:
    """True if `key` is an entry that this rank lacks, of a dict that it has."""
    return not isinstance(key, str) and (*key[:-1], ORDER) in ours


def require(
    state: KnownState, mine: Context, moved: "StreamMoves", matters: Callable[[Key, Any], bool]
) -> None:
    """Raises NotReplayable if a microbatch that begins at `state` may need what is not known.

    `mine` is our own context there, `moved` what our own microbatch drew from.
    """
    values = state.context.values
    apart = [
        key
        for key in sorted(state.unknown, key=str)
        if key in values and not is_mark(last(key)) and matters(key, values[key])
    ]
    if apart:
        raise NotReplayable(differing_words(apart, "between steps"))
    if any(key in state.unknown for key in moved.hosts):
        raise NotReplayable(NUMBERS_MOVE)
    untold = [key for key in moved.generators if generator_key(key) in state.unknown]
    theirs = state.context.generators
    # One that we had not either is made by the microbatch itself.
    missing = [key for key in moved.generators if key in mine.generators and key not in theirs]
    if untold or missing:
        raise NotReplayable(
            f"the generator of random numbers made at {(untold or missing)[0]} stands elsewhere on "
            "another rank, and where is unknown"
        )
    if state.torch_unknown and moved.torch and not moved.seeded:
        raise NotReplayable(state.torch_unknown)


@dataclass(frozen=True, slots=True)
class StreamMoves:
    """The streams that a microbatch of ours drew from, up to its backward."""

    torch: bool
    seeded: bool  # torch's streams, before it drew
    hosts: tuple[tuple[str, str], ...]
    generators: tuple[str, ...]

    @staticmethod
    def between(top: Context, after: Context, seeded: bool) -> "StreamMoves":
        began, ended = top.streams, after.streams
        return StreamMoves(
            torch=(began.torch_cpu, began.torch_cuda) != (ended.torch_cpu, ended.torch_cuda),
            seeded=seeded,
            hosts=tuple(
                host(name) for name, state in began.hosts.items() if ended.hosts[name] != state
            ),
            generators=tuple(
                key
                for key, state in after.generators.items()
                if not same(state, top.generators.get(key, ABSENT))
            ),
        )


def digest_of(context: Context, matters: Callable[[Key, Any], bool]) -> int:
    """The digest of a start: of all streams, and of the values that may matter.

    A microbatch that draws nothing may begin at any state of a stream, but whoever executes the
    next one begins at the state in which this one ends.
    """
    streams = context.streams
    known = {"torch": streams.torch_cpu + b"".join(streams.torch_cuda), **streams.hosts}
    crc = 0
    for name, state in sorted({**context.generators, **known}.items()):
        crc = zlib.crc32(name.encode(errors="replace"), crc)
        crc = zlib.crc32(tensor_bytes(state) if isinstance(state, torch.Tensor) else state, crc)
    for key, value in sorted(context.values.items(), key=lambda pair: str(pair[0])):
        if not belongs_to_process(last(key)) and matters(key, value):
            crc = zlib.crc32(str(key).encode(errors="replace") + bits(value), crc)
    return crc


def generator_key(key: str) -> Key:
    return ("the generator made at", key)


def differing_words(keys: Iterable[Key], where: str) -> str:
    """The clause that the first few of `keys` differ between ranks and move there, for people."""
    names = [named(key) for key in keys]
    first = ", ".join(names[:3]) + (" and more" if names[3:] else "")
    s = "s" if len(names) == 1 else ""
    return f"{first} differ{s} between ranks and move{s} {where}"


def named(key: Key) -> str:
    return key if isinstance(key, str) else spelt(key)


PackedLacking = tuple[list[str | list[str]], str]
"""`Lacking` as plain values for msgpack."""


def pack_lacking(unknown: frozenset[Key], torch_unknown: str) -> PackedLacking:
    return [told(key) for key in sorted(unknown, key=str)], torch_unknown


def unpack_lacking(packed: PackedLacking) -> Lacking:
    return frozenset(map(key_of, packed[0])), packed[1]
