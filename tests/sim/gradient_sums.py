"""The gradients of one simulated rank in one step: added up here, then summed by collectives.

The gradient is a canary: every microbatch adds weight 1 to its identity, so a bucket's sum says
what went into it and how often.
"""

from collections import Counter
from collections.abc import Mapping

from rendezvous.protocol.layout import Layout
from rendezvous.protocol.views import Identity, View
from tests.sim.plane import Key, Plane


class GradientSums:
    def __init__(self, plane: Plane, rank: int, layout: Layout, buckets: int) -> None:
        self.views: dict[int, View] = {}  # by generation: who takes part in its collectives
        self._plane = plane
        self._rank = rank
        self._layout = layout
        self._buckets = buckets
        self._added: Counter[tuple[int, int, int]] = Counter()
        self._launched: dict[int, Key] = {}  # by bucket
        self._complete: dict[int, Key] = {}
        self._serials: Counter[tuple[str, int]] = Counter()

    def add(self, step: int, identity: Identity) -> None:
        """A microbatch was computed."""
        self._added[(step, *identity)] += 1

    @property
    def content(self) -> Mapping[tuple[int, int, int], int]:
        """The sum of what was added here."""
        return dict(self._added)

    def drop(self) -> None:
        """Forget what was added up."""
        self._added.clear()

    def clear(self) -> None:
        """The next step begins."""
        self._added.clear()
        self._launched.clear()
        self._complete.clear()

    def enter(
        self, kind: str, generation: int, scope: int, members: tuple[int, ...], value: object
    ) -> Key:
        """Enter the next collective of this kind."""
        serial = self._serials[(kind, generation)]
        self._serials[(kind, generation)] += 1
        key = Key(kind, generation, scope, serial)
        self._plane.enter(key, members, self._rank, value)
        return key

    def launch(self, generation: int) -> None:
        """Have all buckets summed that are not on their way in this generation."""
        for bucket in range(self._buckets):
            key = self._launched.get(bucket)
            if key is None or key.generation != generation:
                self._launch(bucket, generation, self._added)

    def launch_early(self, many: int, generation: int, coming: tuple[int, int, int]) -> None:
        """Have `many` buckets summed with a microbatch in them that is about to be added."""
        for bucket in range(many):
            self._launch(bucket, generation, self._added + Counter({coming: 1}))

    def _launch(self, bucket: int, generation: int, value: Counter[tuple[int, int, int]]) -> None:
        live = self.views[generation].live or self._layout.slots
        shard = self._layout.place(self._rank)[1]
        members = tuple(self._layout.replicas[slot][shard] for slot in live)
        kind = f"bucket {bucket}"
        self._launched[bucket] = self.enter(kind, generation, shard, members, dict(value))

    def take(self, bucket: int, key: Key) -> bool:
        """A collective is complete; return True if it is the newest of its bucket."""
        newest = self._launched.get(bucket) == key
        if newest:
            self._complete[bucket] = key
        return newest

    def whole(self, generation: int) -> bool:
        """True if all buckets are complete, in this generation."""
        generations = {key.generation for key in self._complete.values()}
        return len(self._complete) == self._buckets and generations == {generation}

    @property
    def keys(self) -> tuple[Key, ...]:
        """The collectives that are complete."""
        return tuple(self._complete[bucket] for bucket in sorted(self._complete))
