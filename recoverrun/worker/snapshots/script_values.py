"""All that a snapshot looks at: what the script holds, and what is in its data sets and samplers,
whoever has written their classes. A data set that is read by row numbers may change as well: by a
curriculum, a buffer of replays, or labels that training corrects. No variable need lead to it: the
header of a loop may make its loader, or what a generator reads.
"""

import gc
from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from recoverrun.worker.arrival import generator_states, plain_values
from recoverrun.worker.arrival.generator_states import OF_LOOPS
from recoverrun.worker.arrival.iterator_places import BETWEEN
from recoverrun.worker.arrival.value_places import Place
from recoverrun.worker.context.object_graph import LONG, SMALL_BYTES, Holdings, Resting
from recoverrun.worker.context.values import is_numpy
from recoverrun.worker.data.generator_source import GeneratorSource
from recoverrun.worker.data.loader_iterator import LoaderIterator
from recoverrun.worker.data.object_copy import attributes_of
from recoverrun.worker.tracking.loop_iterator import LoopIterator
from recoverrun.worker.tracking.microbatches import LoopFrame

LOOKED_INTO: dict[type, tuple[str, ...]] = {
    Dataset: (),
    Sampler: (),
    DataLoader: ("dataset", "sampler", "batch_sampler", "collate_fn"),
}
"""Classes of libraries whose objects are looked into, and the attributes; () for all of them."""

DEPTH = 8
"""Of subsets of subsets."""


def found(
    frames: Iterable[FrameType],
    own: frozenset[str],
    resting: Resting | None = None,
    *,
    stack: Sequence[LoopFrame],
) -> Holdings:
    """All of it, in the loops of `stack`; see `plain_values.found`."""
    return plain_values.found(
        frames,
        own,
        resting,
        last=plain_values.bound_by(stack),
        looked_into=LOOKED_INTO,
        beside=[*of_headers(stack), *of_generators(stack, own)],
    )


def of_headers(stack: Sequence[LoopFrame]) -> Iterator[tuple[str, DataLoader[Any]]]:
    """The loaders from which loops take their items, by names that are alike in each process."""
    for number, one in enumerate(stack):
        for place, below in enumerate(iterators_below(one.items)):
            yield f"{OF_LOOPS}{number} loader {place}", below.loader


def of_generators(stack: Sequence[LoopFrame], own: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """The objects of the script's that generators hold from which loops take their items."""
    for number, one in enumerate(stack):
        for place, below in enumerate(generator_states.under(one.items, own).found):
            for name, value in generator_states.objects_of(below.one, own).items():
                yield f"{OF_LOOPS}{number} generator {place} {name}", value


def read_here(stack: Sequence[LoopFrame]) -> list[str]:
    """The loops whose items this process has read from data sets that are not torch's: what such a
    one gives may depend on what it gave before, so another process need not read the same. Named as
    in `generator_states`.
    """
    return [
        f"{OF_LOOPS}{number}"
        for number, one in enumerate(stack)
        if any(_may_count(below) for below in iterators_below(one.items))
    ]


def _may_count(below: LoaderIterator) -> bool:
    if below.loader.num_workers:
        return False
    data: Any = below.loader.dataset
    for _ in range(DEPTH):
        if type(data).__module__.partition(".")[0] != "torch":
            return data is not None
        data = getattr(data, "dataset", None)
    return True


def data_of_headers(there: Holdings, known: Container[Place]) -> frozenset[int]:
    """The ids of large values on which loaders of headers hang, and of which it is not `known` what
    they were before: they are taken for data that rest.
    """
    named = [one for one in there.holders if _is_of_header(one.path)]
    held = [(one.path, one.objects) for one in named]
    held += [(path, list(enumerate(one))) for path, one in there.tuples if _is_of_header(path)]
    values = [((path, name), one) for path, items in held for name, one in items]
    values += [((one.path, None), one.one) for one in named]
    return frozenset(id(one) for key, one in values if key not in known and _is_large(one))


def _is_of_header(path: str) -> bool:
    return path.startswith(OF_LOOPS)


def _is_large(one: Any) -> bool:
    if isinstance(one, torch.Tensor) or is_numpy(one):
        return bool(one.nbytes > SMALL_BYTES)
    return type(one) in (list, deque, dict) and len(one) > LONG


def iterators_below(items: Any) -> list[LoaderIterator]:
    """The iterators over loaders from which an iterator takes its items."""
    found, todo, seen = list[LoaderIterator](), [items], set[int]()
    while todo:
        one = todo.pop(0)
        kind = type(one)
        attributes = attributes_of(one) if hasattr(kind, "__next__") else None
        if id(one) in seen or (kind not in _BETWEEN and attributes is None):
            continue
        seen.add(id(one))
        if kind is LoaderIterator:
            found.append(one)
        elif kind is LoopIterator:
            todo.append(one.items)
        elif kind is GeneratorSource:
            todo.append(one.generator)
        elif attributes is not None:  # an iterator of a class of the script's, or of a library
            todo += [held for held in attributes.values() if hasattr(type(held), "__next__")]
        else:
            todo += gc.get_referents(one)
    return found


_BETWEEN = frozenset({*BETWEEN, LoaderIterator, LoopIterator})
