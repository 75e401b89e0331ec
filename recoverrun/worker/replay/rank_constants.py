"""Rank constants: plain values that differ between ranks, outside of the contexts of slots.

    RANK = int(os.environ["RANK"])                          # in common.py, read by the data code
    weigh = functools.partial(scaled, by=0.5 + rank)        # read from the third epoch on
    criterion = nn.SmoothL1Loss(beta=0.2 + rank)

A script that begins with its rank keeps what comes of that wherever it likes, and may read it only
long after the proofs, when nothing would notice whose it is. What the loop of a microbatch sees is
the business of `slot_context`. All else that hangs on the script's frames and modules
(`object_graph`) is compared between ranks once, before the first proof: by sums over a few thousand
buckets, then by digests of what is in buckets that differ. What differs belongs to a slot, as
variables of the script do: all ranks tell each other, and code that is executed as another rank
finds that rank's. A rank's share of the data may be among it.

What the script writes to a module while it trains is the business of contexts, too
(`attached_state`). An iterator of Python's own cannot be told: if it rests while the proofs are
made and begins to move later, no code is executed as another rank any more.
"""

import itertools
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from typing import Any

from recoverrun.worker.context.attached_state import ATTACHED
from recoverrun.worker.context.object_graph import Holdings
from recoverrun.worker.context.object_members import resolve
from recoverrun.worker.context.values import is_clock_reading, pack, unpack
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.replay.constant_leaves import (
    MOST_BYTES,
    Leaf,
    digest_of,
    holder_of,
    leaves_of,
)
from recoverrun.worker.replay.holder_places import NOTHING_ASKED, RequestedValues
from recoverrun.worker.replay.local_shards import size_of, travels

BUCKETS = 4_096
MOST_DIFFERING = 512
"""The number of buckets whose sums differ between ranks that are looked into."""

AWAKE = "{name} gives each rank other values, and was not asked for any before the last proof"
NESTED, ENTRIES, LOOKED_INTO = 4, 64, 1_024
"""Levels of an item of a loop, entries of each container there, and containers in all."""

CALLED = "generator_"
"""The beginning of all names of what generators of the script were called with."""

Tell = Callable[[dict[str, Any]], Mapping[int, dict[str, Any]]]


class RankConstants:
    """The constants of this rank and of others of its shard position, as they told each other."""

    def __init__(self) -> None:
        self._own: list[tuple[Leaf, int]] = []  # what differs, and its digest here
        self._theirs: dict[int, list[Any]] = {}  # by rank, in the order of `_own`
        self._resting: list[tuple[Leaf, int]] = []  # iterators that differ, and have not moved

    def exchange(
        self, holdings: Holdings, own: frozenset[str], seen: Set[tuple[int, str]], tell: Tell
    ) -> None:
        """All ranks enter. What is `seen` by contexts is left to them; what is too much, or cannot
        travel, is told by nobody.
        """
        self._own, self._theirs, self._resting = [], {}, []
        mine = {leaf.number: leaf for leaf in leaves_of(holdings, own, seen)}
        every = {number: leaf.digest for number, leaf in mine.items()}
        digests = {number: crc for number, crc in every.items() if crc}
        sums = _sums(digests)
        heard = [one["sums"] for one in tell({"sums": sums}).values()]
        apart = [n for n, all_sums in enumerate(zip(*heard, strict=True)) if len(set(all_sums)) > 1]
        if not apart:
            return
        looked_into = frozenset(apart[:MOST_DIFFERING])
        words = {n: crc for n, crc in digests.items() if n % BUCKETS in looked_into}
        told = [dict(one["digests"]) for one in tell({"digests": list(words.items())}).values()]
        known = set(words).intersection(*told)
        differing = sorted(n for n in known if len({one[n] for one in told}) > 1)
        if differing:
            self._tell([mine[number] for number in differing], digests, tell)

    def _tell(self, leaves: list[Leaf], digests: Mapping[int, int], tell: Tell) -> None:
        left, values = MOST_BYTES, []
        for leaf in leaves:
            value = leaf.value
            left -= size_of(value) if travels(value) else 0
            tells = left >= 0 and not leaf.iterator
            values.append([pack(value)] if tells else [])
        answers = tell({"values": values, "names": [leaf.name for leaf in leaves]})
        for place, leaf in enumerate(leaves):
            values_by_rank = {rank: one["values"][place] for rank, one in answers.items()}
            same = {one["names"][place] for one in answers.values()} == {leaf.name}
            if leaf.iterator and same:
                self._resting.append((leaf, digests[leaf.number]))
            if not same or not all(values_by_rank.values()):
                continue
            self._own.append((leaf, digests[leaf.number]))
            for rank, (value,) in values_by_rank.items():
                self._theirs.setdefault(rank, []).append(unpack(value))

    def told(self) -> list[Any]:
        """For a process that takes a lost rank's place (`learn`): names, and values by rank. What
        has moved since is passed over as another rank's code is executed, and here.
        """
        resting = [leaf.name for leaf, _ in self._resting]
        rests = [leaf.strict or leaf.digest == digest for leaf, digest in self._own]
        names = [leaf.name for leaf, _ in itertools.compress(self._own, rests)]
        theirs = [
            [rank, [pack(one) for one in itertools.compress(held, rests)]]
            for rank, held in self._theirs.items()
        ]
        return [names, theirs, resting]

    def learn(self, told: list[Any], holdings: Holdings, own: frozenset[str], rank: int) -> str:
        """The ranks have told each other before this process, of `rank`, began. What of it this one
        does not hold, or has called with something else; "" if it holds all.
        """
        names, theirs, resting = told
        found = leaves_of(holdings, own, frozenset()) if names or resting else ()
        mine = {leaf.name: leaf for leaf in found}
        said = dict(zip(names, dict(theirs).get(rank, ()), strict=False))
        for name in (*names, *resting):
            called = name in said and name.startswith(CALLED)
            if name not in mine or called and mine[name].digest != digest_of(unpack(said[name])):
                return str(name)
        self._own = [(mine[name], mine[name].digest) for name in names]
        self._resting = [(mine[name], mine[name].digest) for name in resting]
        self._theirs = {rank: list(map(unpack, held)) for rank, held in theirs}
        return ""

    @property
    def apart(self) -> list[tuple[Leaf, int, Mapping[int, Any]]]:
        """All that ranks hold apart: its place here, its digest as they told each other, and the
        value of each rank.
        """
        theirs = self._theirs.items()
        return [
            (leaf, digest, {rank: values[place] for rank, values in theirs})
            for place, (leaf, digest) in enumerate(self._own)
        ]

    def differ_in(self, root: str) -> bool:
        """True if ranks were found to differ in what is called so, or hangs on it."""
        return any(leaf.name.startswith(root) for leaf, _ in self._own)

    def settle(self) -> None:
        """A proof shows, or has shown, what the present transaction depends on."""
        self._resting = [one for one in self._resting if one[0].digest == one[1]]

    def holds(self, item: Any) -> bool:
        """True if ranks have told each other something that `item` holds."""
        owners = {leaf.owner for leaf, _ in self._own}
        return not owners.isdisjoint(itertools.islice(_identities(item, NESTED), LOOKED_INTO))

    @contextmanager
    def of(self, rank: int, asked: RequestedValues = NOTHING_ASKED) -> Iterator[None]:
        """Hold in this process what `rank` holds. Raises NotReplayable, also if what is `asked` for
        is no more what it was, or where it was found.
        """
        awake = [leaf.spelt for leaf, digest in self._resting if leaf.digest != digest]
        if awake:
            raise NotReplayable(AWAKE.format(name=min(awake, key=len)))
        before: list[tuple[Leaf, Any]] = []
        try:
            for (leaf, digest), value in zip(self._own, self._theirs.get(rank, ()), strict=False):
                mine = leaf.value
                rests = leaf.digest == digest and not leaf.written
                if not rests and is_clock_reading(mine):  # nobody could compute the same from it
                    continue
                if leaf.missed(asked, rests):
                    raise NotReplayable(leaf.moved)
                if rests:
                    before.append((leaf, mine))
                    leaf.holder[leaf.key] = value
                elif leaf.strict and leaf.digest != digest_of(value):  # no context has put it there
                    raise NotReplayable(leaf.moved)
            yield
        finally:
            for leaf, value in reversed(before):
                leaf.holder[leaf.key] = value


def seen_by_contexts(
    paths: Iterable[tuple[str, ...]], names: Mapping[str, Any]
) -> set[tuple[int, str]]:
    """Each value of a context that was captured from `names`: what holds it, and its name there."""
    there = {**names, **ATTACHED.names()}
    return {(id(holder_of(resolve(there, path))), path[-1].removesuffix("#")) for path in paths}


def _identities(item: Any, depth: int) -> Iterator[int]:
    """The identities of a container and of those in it."""
    if type(item) not in (list, tuple, deque, dict):
        return
    yield id(item)
    parts = list(item.values()) if type(item) is dict else item
    for part in itertools.islice(parts, ENTRIES if depth else 0):
        yield from _identities(part, depth - 1)


def _sums(digests: Mapping[int, int]) -> list[int]:
    """The sums, in whatever order leaves are found."""
    sums = [0] * BUCKETS
    for number, crc in digests.items():
        sums[number % BUCKETS] ^= zlib.crc32(b"%d %d" % (number, crc))
    return sums
