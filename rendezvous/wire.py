"""Messages as bytes and back: one msgpack map per message, checked against the annotations.

The annotations in `messages` are the schema. Each class is compiled once, at import, into a tuple
of (field, check); `decode` builds nothing before every field has passed. What comes off a wire was
written by somebody else: every size is bounded before memory is spent on it, unknown fields are
ignored so that a newer peer can say more, and all else that differs is refused with one sentence.
"""

import math
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from operator import attrgetter
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

import msgpack

from rendezvous.messages import Message

FRAME_BYTES = 8 << 20
ITEMS = 65536
TEXT_BYTES = 65536
DEPTH = 8
"""Nesting that is tolerated where the schema does not say: inside fields we do not know."""

KIND = "k"
INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1

Check = Callable[[object], bool]


class RemoteProtocolError(Exception):
    """The peer sent what is no message of ours. The text is one sentence."""


class LocalProtocolError(Exception):
    """We tried to send what no peer may accept: a mistake in this program."""


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    check: Check
    expected: str
    required: bool


@dataclass(frozen=True, slots=True)
class _Schema:
    kind: str
    build: Callable[..., Message]
    fields: tuple[_Field, ...]
    names: tuple[str, ...]
    values: Callable[[object], tuple[object, ...]]


def encode(message: Message) -> bytes:
    """The frame of `message`. Raises LocalProtocolError if it is larger than a peer accepts."""
    schema = _BY_CLASS[type(message)]
    content = dict(zip(schema.names, schema.values(message), strict=True))
    try:
        frame = cast(bytes, msgpack.packb(content, use_bin_type=True))
    except (TypeError, ValueError, OverflowError) as error:
        raise LocalProtocolError(f"{schema.kind} cannot be sent: {error}") from error
    if len(frame) > FRAME_BYTES:
        raise LocalProtocolError(f"{schema.kind} has {len(frame)} bytes, {FRAME_BYTES} are allowed")
    return frame


def decode(frame: bytes) -> Message:
    """The message in `frame`, or RemoteProtocolError."""
    content = _unpack(frame)
    kind = content.pop(KIND, None)
    schema = _BY_KIND.get(kind) if isinstance(kind, str) else None
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
            arguments[field.name] = value
        elif field.required:
            raise RemoteProtocolError(f"{schema.kind} came without its field {field.name!r}")
    for name, value in content.items():
        if not _harmless(value, DEPTH):
            raise RemoteProtocolError(f"{schema.kind} has a field {_shown(name)} beyond all limits")
    return schema.build(**arguments)


# ------------------------------------------------------------------------------------- msgpack


def _unpack(frame: bytes) -> dict[str, object]:
    if len(frame) > FRAME_BYTES:
        raise RemoteProtocolError(f"a frame of {len(frame)} bytes is larger than {FRAME_BYTES}")
    try:
        content = msgpack.unpackb(
            frame,
            raw=False,
            use_list=False,
            strict_map_key=True,
            object_pairs_hook=_unique,
            ext_hook=_no_extension,
            max_str_len=TEXT_BYTES,
            max_bin_len=FRAME_BYTES,
            max_array_len=ITEMS,
            max_map_len=ITEMS,
            max_ext_len=0,
        )
    # The decoder's own errors share no base class; nothing of ours runs in this try.
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        why = str(error) or type(error).__name__
        raise RemoteProtocolError(f"a frame is not msgpack as we speak it: {why}") from error
    if not isinstance(content, dict):
        raise RemoteProtocolError(f"a frame holds {_shown(content)} and not a map")
    return content


def _unique(pairs: list[tuple[object, object]]) -> dict[object, object]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a map has a key twice")
    if not all(isinstance(key, str) for key in content):
        raise ValueError("a map has a key that is not text")
    return content


def _no_extension(code: int, _data: bytes) -> object:
    raise ValueError(f"extension type {code} is not used here")


def _harmless(value: object, depth: int) -> bool:
    """Whether a value of unknown meaning is plain data of bounded depth."""
    if isinstance(value, tuple | dict):
        items = value.values() if isinstance(value, dict) else value
        return depth > 0 and all(_harmless(item, depth - 1) for item in items)
    return value is None or isinstance(value, str | bytes | bool | int | float)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}… ({type(value).__name__})"


# ------------------------------------------------------------------------------------- the schema


def _is_int(value: object) -> bool:
    return type(value) is int and INT_MIN <= value <= INT_MAX


def _is_float(value: object) -> bool:
    # An int is a good float, as it is in Python; a NaN or an infinity is a good nothing.
    return (type(value) is float and math.isfinite(value)) or _is_int(value)


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
        check, expected = _check_of(hints[field.name])
        required = field.default is MISSING and field.default_factory is MISSING
        described.append(_Field(field.name, check, expected, required))
    names = tuple(field.name for field in described)
    # The kind comes out of the instance like any field: encoding has no case of its own for it.
    values = cast(Callable[[object], tuple[object, ...]], attrgetter("__class__.__name__", *names))
    return _Schema(kind.__name__, kind, tuple(described), (KIND, *names), values)


_BY_CLASS = {kind: _schema_of(kind) for kind in get_args(Message)}
_BY_KIND = {schema.kind: schema for schema in _BY_CLASS.values()}
