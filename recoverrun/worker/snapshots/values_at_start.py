"""The values of the script as the first loop that trains is about to begin.

What has changed since is told in a snapshot. The rest is made anew by the script's own first lines,
which a process runs before it goes back to where a snapshot was taken.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from recoverrun.worker.arrival import (
    loose_values,
    lost_entries,
    memory_places,
    plain_values,
    rebound_variables,
    structure,
)
from recoverrun.worker.arrival.contents import Before
from recoverrun.worker.arrival.structure import Structure
from recoverrun.worker.arrival.value_marks import Mark
from recoverrun.worker.arrival.value_places import Place
from recoverrun.worker.context.made_objects import MadeObjects
from recoverrun.worker.snapshots import (
    key_orders,
    large_values,
    moved_sources,
    script_values,
)
from recoverrun.worker.snapshots.rank_tensors import ModuleNames
from recoverrun.worker.snapshots.references import References
from recoverrun.worker.snapshots.resting_modules import RestingModules
from recoverrun.worker.snapshots.whole_values import WholeValues
from recoverrun.worker.tracking.script_runtime import ScriptRuntime, changing_modules


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuesAtStart:
    """The former values of one process."""

    digests: Mapping[Place, int]  # of plain values
    names: ModuleNames
    marks: Mapping[Place, Mark]  # of loose values
    addresses: Mapping[Place, int]  # of tensors and arrays
    large: Mapping[Place, large_values.Mark]  # marks of those that are no plain values
    whole: WholeValues
    sources: Mapping[moved_sources.Key, moved_sources.Mark]  # marks of them
    keys: lost_entries.Keys  # of dicts
    orders: key_orders.Orders
    references: References
    resting: RestingModules
    structure: Structure

    @staticmethod
    def seen(
        frames: Sequence[FrameType], runtime: ScriptRuntime, made: MadeObjects
    ) -> "ValuesAtStart":
        """Now: in the outermost loop, or before it. What a variable holds that this loop binds goes
        by another name, if it has any: in another process it may hold another object.
        """
        own = changing_modules(runtime)
        bound = plain_values.bound_by(runtime.stack[:1])
        there = script_values.found(frames, own, stack=runtime.stack[:1])
        spaces = loose_values.spaces_of(frames, own)
        digests = plain_values.digests(there, of_process=True)
        digests |= rebound_variables.digests(spaces, of_process=True)
        return ValuesAtStart(
            digests=digests,
            names=ModuleNames(there),
            marks=loose_values.marks(there, spaces),
            addresses=memory_places.seen(there, spaces),
            large=large_values.marks(there, spaces),
            whole=WholeValues(there, spaces),
            sources=moved_sources.marks(there),
            keys=lost_entries.keys_of(there),
            orders=key_orders.orders_of(there),
            references=References(
                there,
                spaces,
                runtime.own_modules,
                optimizers=made.of("optimizers"),
                bound=bound,
            ),
            resting=RestingModules(there.modules),
            structure=structure.seen(there, spaces, own),
        )

    def of(self, told: Sequence[Sequence[Any]]) -> "ValuesAtStart":
        """The same with digests that another process has taken."""
        return self._with({(path, key): digest for path, key, digest in told})

    def shared_with(self, told: Sequence[Sequence[Any]]) -> "ValuesAtStart":
        """The same with those digests alone that another rank has taken as well: in all other
        values the two may have differed from the beginning, and they count as changed.
        """
        theirs = {(path, key): digest for path, key, digest in told}
        common = {place: one for place, one in self.digests.items() if theirs.get(place) == one}
        return self._with(common)

    def _with(self, digests: Mapping[Place, int]) -> "ValuesAtStart":
        """Nothing rests that had another value then."""
        other = {path for (path, _), _ in self.digests.items() ^ digests.items()}
        return replace(self, digests=digests, resting=self.resting.but_for(other))

    def for_returns(self) -> Before:
        """The part that a process needs to give others their places."""
        return Before(self.digests, self.names.paths, self.marks, self.structure)

    def pack(self) -> list[list[Any]]:
        """The part that another process can use: plain values for msgpack."""
        return [[*place, digest] for place, digest in self.digests.items()]
