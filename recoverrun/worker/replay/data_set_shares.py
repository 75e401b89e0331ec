"""Shares of the data, in iterable data sets that the script makes anew for each epoch.

    for epoch in range(9):
        for x in DataLoader(Lines(files[rank::world], epoch)):

Ranks have told each other what they hold apart in the data sets that loaders went through then
(`rank_constants`). In one that is made later, an attribute that holds here what it held then holds
on a lost rank what that one told. If it holds something else here, nobody knows the other.
"""

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch.utils.data import IterableDataset

from recoverrun.worker.data.object_copy import EPOCH_NAMES, attributes_of
from recoverrun.worker.data.own_data_sets import LONGEST, identities_in, loaders_of
from recoverrun.worker.data.samplers import RANK_NAMES
from recoverrun.worker.data.source import Source
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.replay.constant_leaves import Leaf, digest_of
from recoverrun.worker.replay.loader_parts import parts_of

ANEW = (
    "the data set {kind} was made anew with another {name} than it had as ranks told each other of "
    "their shares: a lost rank's is unknown"
)

Apart = tuple[Leaf, int, Mapping[int, Any]]
"""A value that ranks hold apart: its place here, its digest here, and the value of each rank."""


@dataclass(frozen=True, slots=True)
class _Share:
    """One attribute of a data set. Digest 0: the share is somewhere within it."""

    digest: int
    theirs: Mapping[int, Any]


class DataSetShares:
    """The shares of all ranks, by the kind of data set and its attribute."""

    def __init__(self) -> None:
        self._known: list[weakref.ref[Any]] = []
        self._shares: dict[type, dict[str, _Share]] = {}
        self._alike: dict[type, dict[str, set[int]]] = {}  # digests of what all hold alike

    def learn(
        self, sources: Iterable[Source], apart: Collection[Apart], own: Collection[str] = ()
    ) -> None:
        """Ranks have just told each other what they hold `apart`, also in data sets that these
        sources go through. `own` are the modules of the script.
        """
        self._known, self._shares, self._alike = [], {}, {}
        for loader in loaders_of(sources):
            data = loader.dataset
            parts = filter(_is_referred_to, [data, *parts_of(loader, own)])
            self._known += map(weakref.ref, parts)
            held = attributes_of(data) or {}
            alike = self._alike.setdefault(type(data), {})
            for name, value in held.items():
                alike.setdefault(name, set()).add(_digest_of(value))
            if not isinstance(data, IterableDataset):
                continue
            within = {name: identities_in(value) for name, value in held.items()}
            shares = self._shares.setdefault(type(data), {})
            for leaf, digest, theirs in apart:
                if leaf.owner in (id(held), id(data)):
                    if leaf.key not in RANK_NAMES:  # each copy of a data set has these replaced
                        shares[leaf.key] = _Share(digest, theirs)
                    continue
                inside = [name for name, places in within.items() if leaf.owner in places]
                shares.update((name, _Share(0, {})) for name in inside)

    def knows(self, part: Any) -> bool:
        """True of a part of a loader that was there as ranks told each other."""
        return any(known() is part for known in self._known)

    def of(
        self, rank: int, data: Any, then: Mapping[str, Any], owns: Callable[[str], bool]
    ) -> dict[str, Any]:
        """The attributes of `rank` for `data` that this rank has made since, and that held `then`
        as its pass began. Raises NotReplayable if they are unknown: also where one that all held
        alike is another now, and a rank `owns` what it is made of.
        """
        if self.knows(data):
            return {}
        found, shares = {}, self._shares.get(type(data), {})
        for name, digests in self._alike.get(type(data), {}).items():
            alone = name not in then or name in {*shares, *RANK_NAMES, *EPOCH_NAMES}
            if not alone and _digest_of(then[name]) not in {0, *digests} and owns(name):
                raise NotReplayable(ANEW.format(kind=type(data).__name__, name=name))
        for name, share in shares.items():
            if not share.digest or digest_of(then.get(name)) != share.digest:
                raise NotReplayable(ANEW.format(kind=type(data).__name__, name=name))
            if rank in share.theirs:
                found[name] = share.theirs[rank]
        return found


def _digest_of(value: Any) -> int:
    """The same as `digest_of`, but 0 for what takes long to look at."""
    return 0 if isinstance(value, list) and len(value) > LONGEST else digest_of(value)


def _is_referred_to(part: Any) -> bool:
    """True of what weak references may be made to."""
    return type(part).__weakrefoffset__ != 0
