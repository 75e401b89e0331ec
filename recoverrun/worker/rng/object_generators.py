"""States of random generators that the script keeps in its own objects, as plain values.

These are `torch.Generator`, `random.Random`, and numpy's `Generator`, `RandomState` and bit
generators if the script has imported numpy. How many numbers a call draws is known only to its code
(`choice` may draw again), so these generators are not skipped ahead by counting: their states are
captured, put in place, and moved on by running code. The streams of the process itself are in
`streams`.
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
"""A state: torch's own tensor, or the packed state of another kind of generator."""

SEARCH_DEPTH = 3
"""How deep in a data set generators are searched for."""

NOT_SEARCHED = type | ModuleType | FunctionType | torch.nn.Module
"""Objects of these types are not searched for generators."""

PLAIN_KINDS = (torch.Generator, random.Random)

# Memos: whether a type (and with numpy imported or not) is one of generators, and packed states.
_known_kinds: dict[tuple[type[Any], bool], bool] = {}
_memos: weakref.WeakKeyDictionary[random.Random, host_streams.Memo] = weakref.WeakKeyDictionary()

_INT, _ARRAY = "i", "a"


def _kinds() -> tuple[type[Any], ...]:
    """Return the types of generators; numpy's only once it is wholly imported."""
    numpy = sys.modules.get("numpy.random")
    if numpy is None:
        return PLAIN_KINDS
    names = ("Generator", "RandomState", "BitGenerator")
    kinds = (getattr(numpy, name, None) for name in names)
    return (*PLAIN_KINDS, *(kind for kind in kinds if isinstance(kind, type)))


def is_generator(value: Any) -> bool:
    """True for a generator whose state can be read: not for `random.SystemRandom`, which has none.

    This is asked of each variable at the top of each iteration, and is mostly false.
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
    """Put `generator` into `state`. Raises ValueError if it is no state of its kind."""
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
    """True if `generator` is in `state`."""
    now = state_of(generator)
    if isinstance(now, torch.Tensor):
        return isinstance(state, torch.Tensor) and torch.equal(now, state)
    return now == state


def generators_in(owner: Any, depth: int = SEARCH_DEPTH) -> list[Any]:
    """Return the generators among the attributes of `owner` and of the objects in it."""
    generators: dict[int, Any] = {}
    for value in list(getattr(owner, "__dict__", {}).values()):
        if is_generator(value):
            generators[id(value)] = value
        elif depth and not isinstance(value, NOT_SEARCHED):
            generators.update((id(held), held) for held in generators_in(value, depth - 1))
    return list(generators.values())


def states_of(generators: Iterable[Any]) -> list[tuple[Any, State]]:
    return [(generator, state_of(generator)) for generator in generators]


# ----------------------------------------------------------------------------- numpy's


def _numpy_state(generator: Any) -> dict[str, Any]:
    """Return the state; that of a `RandomState` includes its cached normal number."""
    if hasattr(generator, "get_state"):
        state: dict[str, Any] = generator.get_state(legacy=False)
        return state
    state = getattr(generator, "bit_generator", generator).state
    return state


def _set_numpy_state(generator: Any, state: dict[str, Any]) -> None:
    """Raises ValueError, TypeError or LookupError: numpy checks the kind and the sizes."""
    if hasattr(generator, "set_state"):
        generator.set_state(state)
    else:
        getattr(generator, "bit_generator", generator).state = state


def _plain(state: Any) -> Any:
    """Return `state` for msgpack, which knows no numbers of 128 bits and no arrays."""
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
