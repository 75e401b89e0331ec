"""Plain iterators of the script: `it = iter(batches)`, `zip(...)`, a generator expression.

Re-executed code that asks one for its next item would take it from the script itself. So copies are
made as a microbatch begins, and re-executed code gets those. What is below (a loader, say) answers
for itself and is shared. What cannot be copied rules re-execution out.
"""

import io
import itertools
import types
import zlib
from collections.abc import Mapping
from typing import Any

from recoverrun.worker.context.values import bits, is_simple
from recoverrun.worker.data import generator_wrapper
from recoverrun.worker.data.source import RankAware

BUILT_IN = frozenset({"builtins", "itertools"})
UNCOPIED = (types.GeneratorType, itertools.chain)
"""A chain keeps what is still to come in a tuple, where a copy would share it."""

SEQUENCES = tuple(type(iter(kind())) for kind in (list, tuple, str, bytes)) + (
    type(iter(range(0))),
    type(iter(range(1 << 70))),
)
"""Iterators that know at which item of their sequence they are."""


class Uncopyable:
    """Stands for the copy of an iterator that cannot be copied."""


def copied_iterators(names: Mapping[Any, Any]) -> dict[Any, Any]:
    """Copies of the iterators among the values; `Uncopyable` where there can be none."""
    return {k: copied_iterator(v) for k, v in plain_iterators(names).items()}


def plain_iterators(names: Mapping[Any, Any]) -> dict[Any, Any]:
    """The iterators among the values; most are none, and are not looked at further."""
    return {k: v for k, v in names.items() if hasattr(type(v), "__next__") and is_plain_iterator(v)}


def is_plain_iterator(value: Any) -> bool:
    """True of an iterator that knows nothing of ranks. A generator that is being executed is none
    for the code that it executes, which cannot ask it for anything.
    """
    if not hasattr(type(value), "__next__") or isinstance(value, RankAware):
        return False
    if isinstance(value, types.GeneratorType):
        wrapped = value.gi_code.co_filename == generator_wrapper.__file__  # a feed is behind those
        return not (wrapped or value.gi_running)
    if isinstance(value, io.IOBase):
        return not value.closed and value.readable()
    return type(value).__module__ in BUILT_IN


def copied_iterator(value: Any) -> Any:
    """Return an iterator that goes on as `value` would, or `Uncopyable`; `value` stays as it is."""
    if isinstance(value, RankAware) or not hasattr(type(value), "__next__"):
        return value
    if isinstance(value, types.GeneratorType) and not is_plain_iterator(value):
        return value
    if type(value).__module__ not in BUILT_IN or isinstance(value, UNCOPIED):
        return Uncopyable()
    try:
        make, arguments, *state = value.__reduce__()
    except TypeError:  # what itertools cannot tell any more (Python 3.14)
        return Uncopyable()
    parts = [copied_iterator(one) for one in arguments]
    if any(isinstance(one, Uncopyable) for one in parts):
        return Uncopyable()
    made = make(*parts)
    if state and state[0] is not None:
        kept = state[0]
        if isinstance(kept, tuple):
            kept = tuple(copied_iterator(one) for one in kept)
            if any(isinstance(one, Uncopyable) for one in kept):
                return Uncopyable()
        made.__setstate__(kept)
    return made


def iterator_digest(value: Any) -> int:
    """The digest of an iterator of Python's own: its place; of other parts, their types."""
    if is_simple(value) or type(value) is list and all(map(is_simple, value)):
        return zlib.crc32(bits(value))
    parts: Any = ()
    if type(value) in (tuple, list):
        parts = value
    elif type(value).__module__ in BUILT_IN and hasattr(type(value), "__next__"):
        try:
            parts = value.__reduce__()
        except TypeError:  # as for a generator, and in Python 3.14 for itertools
            parts = ()
    return zlib.crc32(repr([type(value).__name__, *map(iterator_digest, parts)]).encode())
