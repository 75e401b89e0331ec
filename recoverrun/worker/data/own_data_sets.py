"""Iterable data sets of the script, of which each rank may have cut its share as it made them.

    class Lines(IterableDataset):
        def __init__(self, files, rank, world):
            self.files = files[rank::world]

While code is executed as another rank, attributes in which ranks differ hold that rank's values
(`rank_constants`). A snapshot from the beginning of a pass has ours, and gets these, but for what
has moved in the pass: tokens that were read and not given yet, a counter.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from torch.utils.data import IterableDataset

from recoverrun.worker.data.iterable_snapshot import IterableSnapshot
from recoverrun.worker.data.loader_iterator import LoaderIterator
from recoverrun.worker.data.source import Source
from recoverrun.worker.data.weak_source import WeakSource


def own_data_sets(sources: Iterable[Source]) -> dict[str, Any]:
    """Those that loaders go through now, by names that all ranks have."""
    found: dict[str, Any] = {}
    for source in sources:
        held = source.held if isinstance(source, WeakSource) else source
        data = held.loader.dataset if isinstance(held, LoaderIterator) else None
        if isinstance(data, IterableDataset) and not any(data is one for one in found.values()):
            found[f"{type(data).__name__}_{len(found)}"] = data
    return found


def attributes_of(sources: Iterable[Source]) -> dict[int, dict[str, Any]]:
    """Their attributes, by their identities."""
    return {id(one): dict(vars(one)) for one in own_data_sets(sources).values()}


def put_in_place(data: Any, ours: Mapping[str, Any], begun: IterableSnapshot) -> dict[str, Any]:
    """The attributes of a data set that are others now than `ours` were, and that had not moved
    since it was `begun`.
    """
    return {
        name: value
        for name, value in vars(data).items()
        if ours.get(name) is not value and begun.holds(name, ours.get(name))
    }
