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
from recoverrun.worker.snapshots.references import References
from recoverrun.worker.tracking.script_runtime import ScriptRuntime, changing_modules


class Before:
    """The former values of one process."""

    def __init__(
        self,
        digests: Mapping[Place, int],
        names: ModuleNames,
        marks: Mapping[Key, Mark],
        sources: Mapping[moved_sources.Key, moved_sources.Mark],
        keys: lost_entries.Keys,
        references: References,
    ) -> None:
        self.digests = digests  # of plain values
        self.names = names
        self.marks = marks  # of loose values
        self.sources = sources  # marks of them
        self.keys = keys  # of dicts
        self.references = references

    @staticmethod
    def seen(frames: Sequence[FrameType], runtime: ScriptRuntime) -> "Before":
        """Now."""
        own = changing_modules(runtime)
        there = plain_values.found(frames, own)
        spaces = loose_values.spaces_of(frames, own)
        digests = plain_values.digests(there, of_process=True)
        digests |= rebound_variables.digests(spaces, of_process=True)
        marks = loose_values.marks(there, spaces)
        keys = lost_entries.keys_of(there)
        sources, references = (
            moved_sources.marks(there),
            References(there, spaces, runtime.own_modules),
        )
        return Before(digests, ModuleNames(there), marks, sources, keys, references)

    def of(self, told: Sequence[Sequence[Any]]) -> "Before":
        """The same with digests that another process has taken."""
        return self._with({(path, key): digest for path, key, digest in told})

    def shared_with(self, told: Sequence[Sequence[Any]]) -> "Before":
        """The same with those digests alone that another rank has taken as well: in all other
        values the two may have differed from the beginning, and they count as changed.
        """
        theirs = {(path, key): digest for path, key, digest in told}
        return self._with(
            {place: one for place, one in self.digests.items() if theirs.get(place) == one}
        )

    def _with(self, digests: Mapping[Place, int]) -> "Before":
        return Before(digests, self.names, self.marks, self.sources, self.keys, self.references)

    def pack(self) -> list[list[Any]]:
        """The part that another process can use: plain values for msgpack."""
        return [[*place, digest] for place, digest in self.digests.items()]
