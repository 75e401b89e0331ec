"""Iterators of Python's own from which a generator of the script's takes its items: those of its
loops, and what these go over. Each tells how far it has come, and a fresh one is brought there.

One over a list is given the items as well: the function may have shuffled them. One that cannot be
brought there is a reason not to go on.
"""

import gc
import operator
from collections.abc import Iterator, Sequence
from types import GeneratorType
from typing import Any

import msgpack
import torch

from recoverrun.worker.arrival.packing import CannotTravel, Packing
from recoverrun.worker.context.iterator_copy import BUILT_IN, SEQUENCES
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.tracking.loop_iterator import LoopIterator

UNKNOWN = -1

ELSEWHERE = "a {} of a generator's cannot be brought to where it was"


def parts(one: Any) -> Iterator[Any]:
    """The objects to which an iterator of Python's own refers. `zip` keeps them in a tuple."""
    for part in gc.get_referents(one):
        if type(part) is tuple:
            yield from part
        else:
            yield part


def below(one: Any) -> list[Iterator[Any]]:
    """Those from which a generator, or an iterator of a class of the script's, takes its items, in
    an order that is the same in each process.
    """
    held = gc.get_referents(one) if isinstance(one, GeneratorType) else list(vars(one).values())
    todo: list[Any] = held[::-1]
    found: list[Iterator[Any]] = []
    seen: set[int] = set()
    while todo:
        part: Any = todo.pop()
        if isinstance(part, LoopIterator):
            part = part.items
        kind: Any = type(part)
        if id(part) in seen or kind.__module__ not in BUILT_IN or not hasattr(kind, "__next__"):
            continue
        if isinstance(part, GeneratorType):
            continue  # it has a state of its own
        seen.add(id(part))
        found.append(part)
        if kind not in SEQUENCES:
            todo += reversed(list(parts(part)))
    return found


def place_of(iterator: Any) -> list[Any]:
    """The number of items to come, if that is known, the place, and of a sequence all items."""
    if type(iterator) is enumerate:
        return [UNKNOWN, iterator.__reduce__()[1][1], None]
    left = operator.length_hint(iterator, UNKNOWN)
    state: Any = iterator.__reduce__() if type(iterator) in SEQUENCES else ()
    if len(state) < 3 or type(state[1][0]) is range:
        return [left, None, None]
    return [left, state[2], state[1][0]]


def move(iterator: Any, place: Sequence[Any]) -> None:
    """Bring a fresh one to a place. Raises NotReachable if that cannot be."""
    left, at, items = place
    if type(iterator) in SEQUENCES and at is not None:
        sequence = iterator.__reduce__()[1][0]
        if items is not None and not _filled(sequence, items):
            raise NotReachable(ELSEWHERE.format(type(iterator).__name__))
        iterator.__setstate__(at)
    else:
        ahead = operator.length_hint(iterator, UNKNOWN) - left
        for _ in range(ahead):
            next(iterator)
        if ahead < 0 and type(iterator) in SEQUENCES:
            _go_back(iterator, -ahead)
    here_left, here_at, _ = place_of(iterator)
    if here_at != at or (at is None and here_left != left):
        raise NotReachable(ELSEWHERE.format(type(iterator).__name__))


def _go_back(iterator: Any, count: int) -> None:
    """Of a range, which from Python 3.12 on forgets what it has given: there it stays."""
    state: Any = iterator.__reduce__()
    if len(state) > 2 and type(state[2]) is int and state[2] >= count:
        iterator.__setstate__(state[2] - count)


def _filled(sequence: Any, items: Any) -> bool:
    """Give a sequence these items. False if it has others and cannot be given any."""
    if same(sequence, items):
        return True  # others may know those that are there
    if type(sequence) is list:
        sequence[:] = items
    elif type(sequence) is tuple and type(items) is tuple:
        with torch.no_grad():
            for mine, theirs in zip(sequence, items, strict=False):
                if isinstance(mine, torch.Tensor) and mine.shape == getattr(theirs, "shape", None):
                    mine.detach().copy_(theirs)
    return same(sequence, items)


def same(one: Any, other: Any) -> bool:
    """True if the two are alike, wherever they lie."""
    mine: list[torch.Tensor] = []
    theirs: list[torch.Tensor] = []
    if one is other:
        return True
    try:
        packed = [Packing(mine).pack(one), Packing(theirs).pack(other)]
    except CannotTravel:
        return False
    first, second = (msgpack.packb(plain, use_bin_type=True) for plain in packed)
    return bool(first == second) and equal(mine, theirs)


def equal(mine: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> bool:
    """True if they hold the same bits."""
    return len(mine) == len(theirs) and all(map(_equal, mine, theirs))


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    return torch.equal(_bits(one), _bits(other))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.contiguous().reshape(-1).view(torch.uint8)
