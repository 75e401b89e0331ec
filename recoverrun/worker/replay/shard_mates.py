"""Ranks of one replica that execute a microbatch together, where not all of them come to its end.

Their forward passes need each other. An execution that ends on one rank alone in the midst of that
(an error in its part of the batch, a wait that was interrupted) leaves the others in collectives
that nobody enters any more: whatever this rank executes next, its first collective would meet
theirs, and shards of one layer would be taken for those of another. If all have left it at the same
place, they go on together. If not, this process ends, and its replica is a loss like any other.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Never

import msgpack

from ft_collectives.communicators.c10d import DistStoreError, Store
from ft_collectives.process_group.elastic import ElasticGroup
from recoverrun.worker.errors import NotReplayable
from rendezvous.protocol.layout import Layout

APART_S = 5.0
"""So long after one rank the others leave an execution, or they wait in it."""

APART = "{}; and its replica cannot go on, as {} {} elsewhere in the same forward and backward"

Counts = dict[str, int]
"""Operations that were begun, by group."""


class ShardMates:
    """Those of one rank. `layout` and `store` are asked once they are needed."""

    def __init__(
        self,
        rank: int,
        leave: Callable[[str], Never],
        layout: Callable[[], Layout | None],
        store: Callable[[], Store],
    ) -> None:
        """`leave` ends this process, for a reason in words. Keys of `store` outlive generations."""
        self._rank, self._leave, self._pid = rank, leave, os.getpid()
        self._layout, self._make_store = layout, store
        self._store: Store | None = None
        self._left = 0  # executions that all have left in their midst

    @contextmanager
    def together(self) -> Iterator[None]:
        """Around one execution. Raises what it raises; where mates are in it still, never returns.

        In a forked child (a proof) nobody is met: it is given up as a whole.
        """
        layout = self._layout()
        alone = layout is None or layout.shards == 1 or os.getpid() != self._pid
        if alone or layout is None:
            yield
            return
        mates = layout.replicas[layout.slot(self._rank)]
        groups = [one for one in ElasticGroup.instances if set(one.ranks) <= set(mates)]
        before = _counts(groups)
        try:
            yield
        except NotReplayable as reason:
            begun = {name: count - before[name] for name, count in _counts(groups).items()}
            if any(begun.values()):
                self._require_alike([one for one in mates if one != self._rank], begun, reason)
            raise

    def _require_alike(self, mates: list[int], begun: Counts, reason: NotReplayable) -> None:
        """All have left at the same place, or this process ends."""
        if self._store is None:
            self._store = self._make_store()
        store, number = self._store, self._left
        store.set(_key(number, self._rank), msgpack.packb(begun))
        if number > 1:  # who has written the next one has read it
            store.delete_key(_key(number - 2, self._rank))
        keys = [_key(number, mate) for mate in mates]
        try:
            store.wait(keys, timedelta(seconds=APART_S))
        except DistStoreError:
            within = [mate for mate, key in zip(mates, keys, strict=True) if not store.check([key])]
            self._leave(apart(reason, within or mates))
        theirs = {mate: msgpack.unpackb(store.get(_key(number, mate))) for mate in mates}
        elsewhere = [mate for mate, counts in theirs.items() if not alike(begun, counts)]
        if elsewhere:
            self._leave(apart(reason, elsewhere))
        self._left += 1


def alike(mine: Counts, theirs: Counts) -> bool:
    """True if two ranks have begun as many operations in each group that both are in."""
    return all(mine[name] == theirs[name] for name in mine.keys() & theirs.keys())


def apart(reason: NotReplayable, mates: list[int]) -> str:
    """The reason why this process ends, where `mates` have not left at the same place as it has."""
    plural = len(mates) > 1
    who = f"rank{'s' * plural} {', '.join(map(str, mates))}"
    return APART.format(reason, who, "are" if plural else "is")


def _counts(groups: list[ElasticGroup]) -> Counts:
    """The number of operations begun in each, between two ranks as well; c10d counts them for its
    debug output.
    """
    return {
        f"{one.native.group_name}/{one.ranks[0]}": one.native._get_sequence_number_for_group()
        for one in groups
    }


def _key(number: int, rank: int) -> str:
    return f"left in its midst/{number}/{rank}"
