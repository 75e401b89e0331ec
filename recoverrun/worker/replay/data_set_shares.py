"""Shares of the data, in iterable data sets that the script makes anew for each epoch.

    for epoch in range(9):
        for x in DataLoader(Lines(files[rank::world], epoch)):

Ranks have told each other what they hold apart in the data sets that loaders went through then
(`rank_constants`). In one that is made later, an attribute that holds here what it held then holds
on a lost rank what that one told. If it holds something else here, nobody knows the other.
"""

import weakref
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from recoverrun.worker.data.object_copy import attributes_of
from recoverrun.worker.data.own_data_sets import identities_in, own_data_sets
from recoverrun.worker.data.rank_substitution import RANK_NAMES
from recoverrun.worker.data.source import Source
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.replay.constant_leaves import Leaf, digest_of

ANEW = (
    "the data set {kind} was made anew with another {name} than it had as ranks told each other of "
    "their shares: a lost rank's is unknown"
)

Apart = tuple[Leaf, int, Mapping[int, Any]]
"""A value that ranks hold apart: its place here, its digest here, and the value of each rank."""


@dataclass(frozen=True, slots=True)
class _Share:
    """One attribute of a data set. Without a digest it has the share somewhere within."""

    digest: int
    theirs: Mapping[int, Any]


class DataSetShares:
    """The shares of all ranks, by the kind of data set and its attribute."""

    def __init__(self) -> None:
        self._known: list[weakref.ref[Any]] = []
        self._shares: dict[type, dict[str, _Share]] = {}

    def learn(self, sources: Iterable[Source], apart: Collection[Apart]) -> None:
        """Ranks have just told each other what they hold `apart`, also in data sets that these
        sources go through.
        """
        self._known, self._shares = [], {}
        for data in own_data_sets(sources).values():
            self._known.append(weakref.ref(data))
            held = attributes_of(data) or {}
            within = {name: identities_in(value) for name, value in held.items()}
            shares = self._shares.setdefault(type(data), {})
            for leaf, digest, theirs in apart:
                if leaf.owner in (id(held), id(data)):
                    if leaf.key not in RANK_NAMES:  # each copy of a data set has these replaced
                        shares[leaf.key] = _Share(digest, theirs)
                    continue
                inside = [name for name, places in within.items() if leaf.owner in places]
                shares.update((name, _Share(0, {})) for name in inside)

    def of(self, rank: int, data: Any, then: Mapping[str, Any]) -> dict[str, Any]:
        """The attributes of `rank` for `data` that this rank has made since, and that held `then`
        as its pass began. Raises NotReplayable if they are unknown.
        """
        if any(known() is data for known in self._known):
            return {}
        found = {}
        for name, share in self._shares.get(type(data), {}).items():
            if not share.digest or digest_of(then.get(name)) != share.digest:
                raise NotReplayable(ANEW.format(kind=type(data).__name__, name=name))
            if rank in share.theirs:
                found[name] = share.theirs[rank]
        return found
