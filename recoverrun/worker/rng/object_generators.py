"""Generators of random numbers that the script keeps in objects of its own, as plain values.

`torch.Generator`, `random.Random`, and numpy's `Generator`, `RandomState` and bit generators where
the script has imported numpy. How many numbers a call takes of them only its code knows (`choice`
may draw again), so they are never jumped ahead: their states are captured, put in place, and moved
along by running code (`lost_rank`). The streams of the process are found by `rng`.
"""

import random
import sys
import weakref
from collections.abc import Iterable
from types import FunctionType, ModuleType
from typing import Any

import msgpack
import torch

from recoverrun.worker.rng import host_streams

State = torch.Tensor | bytes
"""What goes into a context: torch's own tensor, or the packed state of another kind."""

SEARCH_DEPTH = 3
"""So deep in a data set a generator is looked for."""

NOT_SEARCHED = type | ModuleType | FunctionType | torch.nn.Module
"""In these no generator is looked for."""

PLAIN_KINDS = (torch.Generator, random.Random)

_known_kinds: dict[tuple[type[Any], bool], bool] = {}  # by type, and whether numpy's could be known

_memos: weakref.WeakKeyDictionary[random.Random, host_streams.Memo] = weakref.WeakKeyDictionary()

_INT, _ARRAY = "i", "a"


def _kinds() -> tuple[type[Any], ...]:
    """Types of generators; numpy's only while it is there, wholly imported."""
    numpy = sys.modules.get("numpy.random")
    if numpy is None:
        return PLAIN_KINDS
    names = ("Generator", "RandomState", "BitGenerator")
    found = (getattr(numpy, name, None) for name in names)
    return (*PLAIN_KINDS, *(kind for kind in found if isinstance(kind, type)))


def is_generator(value: Any) -> bool:
    """One whose state can be read: not `random.SystemRandom`, which has none.

    Asked of each variable at the top of each iteration, by far most often in vain.
    """
    kind = type(value), "numpy.random" in sys.modules
    known = _known_kinds.get(kind)
    if known is None:
        known = _known_kinds[kind] = _is_kind(kind[0])
    return known


def _is_kind(kind: type[Any]) -> bool:
    if not issubclass(kind, _kinds()):
        return False
    return not issubclass(kind, random.Random) or kind.getstate is random.Random.getstate


def state_of(generator: Any) -> State:
    if type(generator) is random.Random:
        memo = _memos.get(generator)
        if memo is None:
            memo = _memos[generator] = host_streams.Memo()
        return host_streams.python_bytes(generator, memo)
    if isinstance(generator, random.Random):
        return host_streams.pack_python(generator.getstate())
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    return bytes(msgpack.packb(_plain(_numpy_state(generator)), use_bin_type=True))


def put_state(generator: Any, state: Any) -> None:
    """Make the numbers that followed `state` follow, in place. Raises ValueError if it is none of
    this kind of generator.
    """
    if isinstance(generator, torch.Generator):
        if not isinstance(state, torch.Tensor):
            raise ValueError("not the state of a torch.Generator")
        generator.set_state(state)
        return
    if not isinstance(state, bytes):
        raise ValueError(f"not the state of a {type(generator).__name__}")
    if isinstance(generator, random.Random):
        if len(state) not in host_streams.PYTHON_BYTES:
            raise ValueError("not the state of a random.Random")
        generator.setstate(host_streams.unpack_python(state))
        return
    try:
        _set_numpy_state(generator, _unplain(msgpack.unpackb(state, raw=False)))
    except (LookupError, TypeError, msgpack.UnpackException) as error:
        raise ValueError(f"not the state of a {type(generator).__name__}: {error!r}") from error


def is_at(generator: Any, state: State) -> bool:
    now = state_of(generator)
    if isinstance(now, torch.Tensor):
        return isinstance(state, torch.Tensor) and torch.equal(now, state)
    return now == state


def generators_in(owner: Any, depth: int = SEARCH_DEPTH) -> list[Any]:
    """Generators among the attributes of `owner` and of the objects in it."""
    found: dict[int, Any] = {}
    for value in list(getattr(owner, "__dict__", {}).values()):
        if is_generator(value):
            found[id(value)] = value
        elif depth and not isinstance(value, NOT_SEARCHED):
            found.update((id(one), one) for one in generators_in(value, depth - 1))
    return list(found.values())


def states_of(generators: Iterable[Any]) -> list[tuple[Any, State]]:
    return [(one, state_of(one)) for one in generators]


# ----------------------------------------------------------------------------- numpy's


def _numpy_state(generator: Any) -> dict[str, Any]:
    """Of a `RandomState` with the normal number that it keeps for later."""
    if hasattr(generator, "get_state"):
        state: dict[str, Any] = generator.get_state(legacy=False)
        return state
    state = getattr(generator, "bit_generator", generator).state
    return state


def _set_numpy_state(generator: Any, state: dict[str, Any]) -> None:
    """numpy checks the kind and the sizes. Raises ValueError, TypeError or LookupError."""
    if hasattr(generator, "set_state"):
        generator.set_state(state)
    else:
        getattr(generator, "bit_generator", generator).state = state


def _plain(state: Any) -> Any:
    """Numbers of 128 bits and arrays are marked, since msgpack knows neither."""
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.items()}
    if isinstance(state, str | float):
        return state
    if hasattr(state, "dtype") and state.ndim:
        return [_ARRAY, state.dtype.str, state.tobytes()]
    return [_INT, hex(int(state))]


def _unplain(packed: Any) -> Any:
    if isinstance(packed, dict):
        return {name: _unplain(value) for name, value in packed.items()}
    if not isinstance(packed, list):
        return packed
    kind, *parts = packed
    if kind == _INT:
        return int(parts[0], 16)
    numpy: Any = sys.modules["numpy"]
    return numpy.frombuffer(parts[1], dtype=parts[0]).copy()
