"""The values of the script as the first loop that trains is about to begin.

What has changed since is told in a snapshot. The rest is made anew by the script's own first lines,
which a process runs before it goes back to where a snapshot was taken.
"""

from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

from recoverrun.worker.arrival import loose_values, plain_values, rebound_variables
from recoverrun.worker.arrival.loose_values import Key, Mark
from recoverrun.worker.arrival.plain_values import Place
from recoverrun.worker.snapshots import lost_entries, moved_sources
from recoverrun.worker.snapshots.rank_tensors import ModuleNames


class Before:
    """The former values of one process."""

    def __init__(
        self,
        digests: Mapping[Place, int],
        names: ModuleNames,
        marks: Mapping[Key, Mark],
        sources: Mapping[moved_sources.Key, moved_sources.Mark],
        keys: lost_entries.Keys,
    ) -> None:
        self.digests = digests  # of plain values
        self.names = names
        self.marks = marks  # of loose values
        self.sources = sources  # marks of them
        self.keys = keys  # of dicts

    @staticmethod
    def seen(frames: Sequence[FrameType], own: frozenset[str]) -> "Before":
        """Now; `own` are the script's modules."""
        there = plain_values.found(frames, own)
        spaces = loose_values.spaces_of(frames, own)
        digests = plain_values.digests(there, of_process=True)
        digests |= rebound_variables.digests(spaces, of_process=True)
        marks = loose_values.marks(there, spaces)
        keys = lost_entries.keys_of(there)
        return Before(digests, ModuleNames(there), marks, moved_sources.marks(there), keys)

    def of(self, told: Sequence[Sequence[Any]]) -> "Before":
        """The same with digests that another process has taken."""
        digests = {(path, key): digest for path, key, digest in told}
        return Before(digests, self.names, self.marks, self.sources, self.keys)

    def shared_with(self, told: Sequence[Sequence[Any]]) -> "Before":
        """The same with those digests alone that another rank has taken as well: in all other
        values the two may have differed from the beginning, and they count as changed.
        """
        theirs = {(path, key): digest for path, key, digest in told}
        digests = {
            place: digest for place, digest in self.digests.items() if theirs.get(place) == digest
        }
        return Before(digests, self.names, self.marks, self.sources, self.keys)

    def pack(self) -> list[list[Any]]:
        """The part that another process can use: plain values for msgpack."""
        return [[*place, digest] for place, digest in self.digests.items()]
