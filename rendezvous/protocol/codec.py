"""Messages as bytes and back: one msgpack map per message, checked against the annotations.

The annotations in `messages` are the schema. Each class is compiled once, at import, into a tuple
of (field, check); `decode` builds nothing before every field has passed. What comes off a wire was
written by somebody else: every size is bounded before memory is spent on it, unknown fields are
ignored so that a newer peer can say more, and all else that differs is refused with one sentence.

Numbers have bounds (`number_bounds`). Whether a rank exists in this job is not known here: that is
the coordinator host's to refuse.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from itertools import pairwise
from operator import attrgetter, sub
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

import msgpack

from rendezvous.protocol.messages import Message
from rendezvous.protocol.number_bounds import BOUNDS, INT_MAX, INT_MIN, SPAN_MOST_S

PROTOCOL = 11
"""Raised by a change that an older peer would misunderstand; peers of two numbers never talk."""

FRAME_BYTES = 8 << 20
TEXT_BYTES = 65536
ITEMS = 65536
"""Items of one list: the ranks of the largest world."""

FRAME_ITEMS = 1 << 18
"""Items of all lists and maps of a frame: an item costs up to 72 times its bytes in memory."""

FRAME_MAPS = 4096
"""Maps of a frame, of which no message of ours has more than itself: each costs 2 us to check."""

DEPTH, STRANGE_ITEMS = 4, 4096
"""Nesting and items that are tolerated inside a field that we do not know."""

KIND, VERSION = "k", "v"

RUNS = frozenset({"live", "live_ranks"})
"""Fields with as many integers as there are replicas or ranks. Nearly all follow each other, and a
view goes to everybody: on the wire they are runs, (first, how many) after (first, how many)."""

Check = Callable[[object], bool]


class RemoteProtocolError(Exception):
    """The peer sent what is no message of ours. The text is one sentence."""


class VersionMismatch(RemoteProtocolError):
    """The peer is a launcher of another protocol."""


class LocalProtocolError(Exception):
    """We tried to send what no peer may accept: a mistake in this program."""


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    check: Check
    expected: str
    required: bool
    runs: bool


@dataclass(frozen=True, slots=True)
class _Schema:
    kind: str
    build: Callable[..., object]
    fields: tuple[_Field, ...]
    names: tuple[str, ...]
    values: Callable[[object], tuple[object, ...]]
    runs: tuple[str, ...]  # names of the fields that are written as runs


def encode(message: object, known: "Schemas | None" = None) -> bytes:
    """The frame of `message`. Raises LocalProtocolError if it is larger than a peer accepts.

    `known`: of messages that only some processes hold.
    """
    schema = (known or _KNOWN).by_class[type(message)]
    content = dict(zip(schema.names, schema.values(message), strict=True))
    content[VERSION] = PROTOCOL
    for name in schema.runs:
        content[name] = _runs(cast(tuple[int, ...], content[name]))
    try:
        frame = cast(bytes, msgpack.packb(content, use_bin_type=True))
    except (TypeError, ValueError, OverflowError) as error:
        raise LocalProtocolError(f"{schema.kind} cannot be sent: {error}") from error
    if len(frame) > FRAME_BYTES:
        raise LocalProtocolError(f"{schema.kind} has {len(frame)} bytes, {FRAME_BYTES} are allowed")
    return frame


def decode(frame: bytes) -> Message:
    """The message in `frame`, or RemoteProtocolError."""
    return cast(Message, decode_known(frame, _KNOWN))


def decode_known(frame: bytes, known: "Schemas") -> object:
    """The same of other messages."""
    content = _unpack(frame)
    _check_version(content.pop(VERSION, None))
    kind = content.pop(KIND, None)
    schema = known.by_kind.get(kind) if isinstance(kind, str) else None
    if schema is None:
        raise RemoteProtocolError(f"there is no message of kind {_shown(kind)}")
    arguments = {}
    for field in schema.fields:
        if field.name in content:
            value = content.pop(field.name)
            if not field.check(value):
                raise RemoteProtocolError(
                    f"{schema.kind}.{field.name} must be {field.expected}, not {_shown(value)}"
                )
            arguments[field.name] = _spread(cast(tuple[int, ...], value)) if field.runs else value
        elif field.required:
            raise RemoteProtocolError(f"{schema.kind} came without its field {field.name!r}")
    for name, value in content.items():
        if _size(value, DEPTH) > STRANGE_ITEMS:
            raise RemoteProtocolError(f"{schema.kind} has a field {_shown(name)} beyond all limits")
    return schema.build(**arguments)


def _check_version(theirs: object) -> None:
    if type(theirs) is not int:
        raise RemoteProtocolError(f"a message must name its protocol, not {_shown(theirs)}")
    if theirs != PROTOCOL:
        raise VersionMismatch(
            f"VERSION_MISMATCH: the other side speaks protocol {theirs}, this one protocol "
            f"{PROTOCOL}: all nodes need the same version of recoverrun"
        )


# ------------------------------------------------------------------------------------- msgpack


def _unpack(frame: bytes) -> dict[str, object]:
    if len(frame) > FRAME_BYTES:
        raise RemoteProtocolError(f"a frame of {len(frame)} bytes is larger than {FRAME_BYTES}")
    budget = _Budget()
    try:
        content = msgpack.unpackb(
            frame,
            raw=False,
            use_list=False,
            strict_map_key=True,
            object_pairs_hook=budget.map,
            list_hook=budget.list,
            ext_hook=_no_extension,
            max_str_len=TEXT_BYTES,
            max_bin_len=FRAME_BYTES,
            max_array_len=ITEMS,
            max_map_len=STRANGE_ITEMS,
            max_ext_len=0,
        )
    # The decoder's own errors share no base class; nothing of ours runs in this try.
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        why = str(error) or type(error).__name__
        raise RemoteProtocolError(f"a frame is not msgpack as we speak it: {why}") from error
    if not isinstance(content, dict):
        raise RemoteProtocolError(f"a frame holds {_shown(content)} and not a map")
    return content


class _Budget:
    """Counts the items of one frame while they are unpacked, and ends that when it is enough."""

    def __init__(self) -> None:
        self._left, self._maps = FRAME_ITEMS, FRAME_MAPS

    def map(self, pairs: list[tuple[object, object]]) -> dict[object, object]:
        self._spend(len(pairs))
        self._maps -= 1
        if self._maps < 0:
            raise ValueError(f"a frame has more than {FRAME_MAPS} maps")
        content = dict(pairs)
        if len(content) != len(pairs):
            raise ValueError("a map has a key twice")
        if not all(isinstance(key, str) for key in content):
            raise ValueError("a map has a key that is not text")
        return content

    def list(self, items: Sequence[object]) -> Sequence[object]:
        self._spend(len(items))
        return items

    def _spend(self, items: int) -> None:
        # One more for the container itself: an empty one is not free.
        self._left -= items + 1
        if self._left < 0:
            raise ValueError(f"a frame has more than {FRAME_ITEMS} items")


def _no_extension(code: int, _data: bytes) -> object:
    raise ValueError(f"extension type {code} is not used here")


def _size(value: object, depth: int) -> int:
    """The number of items in an unknown value; more than allowed if it is no plain data."""
    if isinstance(value, tuple | dict):
        items = value.values() if isinstance(value, dict) else value
        counted = 1 if depth and len(items) <= STRANGE_ITEMS else STRANGE_ITEMS + 1
        for item in items:
            if counted > STRANGE_ITEMS:
                break
            counted += _size(item, depth - 1)
        return counted
    plain = value is None or isinstance(value, str | bytes | bool | int) or _is_float(value)
    return 1 if plain else STRANGE_ITEMS + 1


def _runs(numbers: Sequence[int]) -> tuple[int, ...]:
    """`numbers` as (first, how many) of each stretch in which every one is one more."""
    if not numbers:
        return ()
    # By the steps between them, all at once: a view of thousands is written for each loss.
    steps = map(sub, numbers[1:], numbers)
    edges = [0, *(at for at, step in enumerate(steps, 1) if step != 1), len(numbers)]
    return tuple(n for a, b in pairwise(edges) for n in (numbers[a], b - a))


def _spread(runs: Sequence[int]) -> tuple[int, ...]:
    pairs = zip(runs[::2], runs[1::2], strict=True)
    return tuple(number for first, many in pairs for number in range(first, first + many))


def _are_runs(value: object) -> bool:
    if not _many(_is_int)(value):
        return False
    numbers = cast(tuple[int, ...], value)
    counts = numbers[1::2]
    return len(numbers) % 2 == 0 and all(n > 0 for n in counts) and sum(counts) <= ITEMS


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}… ({type(value).__name__})"


# ------------------------------------------------------------------------------------- the schema


def _is_int(value: object) -> bool:
    return type(value) is int and INT_MIN <= value <= INT_MAX


def _is_float(value: object) -> bool:
    # An int is a good float, as it is in Python; a NaN or an infinity is a good nothing.
    return (type(value) is float and math.isfinite(value)) or _is_int(value)


def _is_span(value: object) -> bool:
    return _is_float(value) and 0 <= cast(float, value) <= SPAN_MOST_S


def _is_str(value: object) -> bool:
    return type(value) is str


def _is_bytes(value: object) -> bool:
    return type(value) is bytes


def _is_bool(value: object) -> bool:
    return type(value) is bool


_SCALARS: dict[object, tuple[Check, str]] = {
    int: (_is_int, "a 64-bit integer"),
    float: (_is_float, "a finite number"),
    str: (_is_str, "text"),
    bytes: (_is_bytes, "bytes"),
    bool: (_is_bool, "true or false"),
}


def _check_of(annotation: Any) -> tuple[Check, str]:
    """The check for one annotation and the words for what it wants."""
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    arguments = get_args(annotation)
    if get_origin(annotation) is Literal:
        return _one_of(frozenset(arguments)), f"one of {', '.join(map(str, arguments))}"
    assert get_origin(annotation) is tuple, f"the wire has no schema for {annotation}"
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        check, words = _check_of(arguments[0])
        return _many(check), f"a list, each item {words}"
    checks = [_check_of(argument) for argument in arguments]
    words = ", ".join(words for _check, words in checks)
    return _fixed(tuple(check for check, _words in checks)), f"({words})"


def _described(name: str, annotation: Any) -> tuple[Check, str]:
    """The check for a field, which may be narrower than its annotation."""
    if name in RUNS:
        return _are_runs, f"runs of at most {ITEMS} numbers"
    if annotation is int and name in BOUNDS:
        least, most = BOUNDS[name]
        return _within(least, most), f"an integer from {least} to {most}"
    if annotation == tuple[int, ...] and name in BOUNDS:
        least, most = BOUNDS[name]
        return _many(_within(least, most)), f"integers from {least} to {most}"
    if annotation is float and name.endswith("_s"):
        return _is_span, f"seconds from 0 to {SPAN_MOST_S:g}"
    return _check_of(annotation)


def _within(least: int, most: int) -> Check:
    return lambda value: type(value) is int and least <= value <= most


def _one_of(allowed: frozenset[str]) -> Check:
    return lambda value: type(value) is str and value in allowed


def _many(check: Check) -> Check:
    return lambda value: type(value) is tuple and all(map(check, value))


def _fixed(checks: tuple[Check, ...]) -> Check:
    def is_record(value: object) -> bool:
        if type(value) is not tuple or len(value) != len(checks):
            return False
        return all(check(item) for check, item in zip(checks, value, strict=True))

    return is_record


def _schema_of(kind: type) -> _Schema:
    hints = get_type_hints(kind)
    described = []
    for field in fields(kind):
        check, expected = _described(field.name, hints[field.name])
        required = field.default is MISSING and field.default_factory is MISSING
        described.append(_Field(field.name, check, expected, required, field.name in RUNS))
    names = tuple(field.name for field in described)
    # The kind comes out of the instance like any field: encoding has no case of its own for it.
    values = cast(Callable[[object], tuple[object, ...]], attrgetter("__class__.__name__", *names))
    if not names:  # of a single attribute it makes no tuple
        values = _kind_alone
    runs = tuple(name for name in names if name in RUNS)
    return _Schema(kind.__name__, kind, tuple(described), (KIND, *names), values, runs)


def _kind_alone(message: object) -> tuple[object, ...]:
    return (type(message).__name__,)


class Schemas:
    """Those of some kinds of messages."""

    def __init__(self, kinds: tuple[type, ...]) -> None:
        self.by_class = {kind: _schema_of(kind) for kind in kinds}
        self.by_kind = {schema.kind: schema for schema in self.by_class.values()}


_KNOWN = Schemas(get_args(Message))
