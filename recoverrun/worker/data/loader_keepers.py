"""Objects of the script's below a loader that may keep a state from one item to the next: samplers,
and an iterable data set that is read in this process.
"""

import copy
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from recoverrun.worker.data.object_copy import IMMUTABLE, MAX_ITEMS, attributes_of
from recoverrun.worker.data.samplers import samplers_of
from recoverrun.worker.errors import NotReplayable

KNOWN = frozenset({"torch", "torchdata"})
"""Packages whose samplers have no state but generators."""

CONTAINERS = (list, deque, dict, set)

OTHERS = "a loader has {} objects of its own that may keep a state, and {} here"


def keepers_of(loader: "DataLoader[Any]") -> list[Any]:
    """They are told in the same order in each process."""
    found = [one for one in samplers_of(loader) if not _is_known(one)]
    if isinstance(loader.dataset, IterableDataset) and not loader.num_workers:
        found.append(loader.dataset)
    return found


def held_by(keeper: Any) -> dict[str, Any]:
    """The plain values among its attributes, and copies of small containers of such ones."""
    held = attributes_of(keeper) or {}
    return {
        name: value if type(value) in IMMUTABLE else copy.copy(value)
        for name, value in held.items()
        if type(value) in IMMUTABLE or _is_small(value)
    }


def give(keepers: Sequence[Any], held: Sequence[Mapping[str, Any]]) -> None:
    """Let them hold that, containers where they lie. Raises NotReplayable if they are others."""
    if len(keepers) != len(held):
        raise NotReplayable(OTHERS.format(len(held), len(keepers)))
    for keeper, values in zip(keepers, held, strict=True):
        present = attributes_of(keeper) or {}
        for name, value in values.items():
            if not refilled(present.get(name), value):
                present[name] = copy.copy(value)


def refilled(present: Any, content: Any) -> bool:
    """Give a container of that kind its content where it lies; False if it is none."""
    kind: Any = next((one for one in CONTAINERS if isinstance(content, one)), None)
    if kind is None or type(present) is not type(content):
        return False
    if present is not content:
        kind.clear(present)
        (kind.extend if kind in (list, deque) else kind.update)(present, content)
    return True


def _is_small(value: Any) -> bool:
    if type(value) not in CONTAINERS or len(value) > MAX_ITEMS:
        return False
    parts = value.values() if type(value) is dict else value
    return IMMUTABLE.issuperset(map(type, parts))


def _is_known(sampler: Any) -> bool:
    return type(sampler).__module__.partition(".")[0] in KNOWN
