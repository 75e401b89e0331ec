"""A driver as strategies see it, with a reducer that only keeps what is registered."""

from types import SimpleNamespace
from typing import Any

from ft_collectives.step.reducer import Bucket


class Reducer:
    """Keeps what is registered."""

    def __init__(self) -> None:
        self.buckets: dict[Any, Bucket] = {}
        self.order: list[Any] = []

    def register(self, bucket: Bucket) -> Bucket:
        self.buckets[bucket.key] = bucket
        return bucket

    def include(self, keys: Any) -> None:
        self.order += keys

    def forget(self) -> None:
        self.buckets.clear()
        self.order.clear()

    @property
    def sizes(self) -> list[int]:
        return [bucket.size for bucket in self.buckets.values()]


class Host:
    """A driver with one reducer, in the transaction after the first."""

    def __init__(self) -> None:
        self.watching: Any = None
        self.reducer = Reducer()
        self.worker = SimpleNamespace(env=SimpleNamespace(exact=False),
            left_buffers=SimpleNamespace(leave=lambda *_: None),
            strategy=None, refusal="", acting=False, machine=None, step=1, lost=False,
            runtime=SimpleNamespace(active=True, microbatches=[], begin_step=lambda: None),
            failpoints=SimpleNamespace(armed=False),
        )  # fmt: skip

    in_schedule = False

    def watched_by(self, strategy: Any) -> None:
        self.watching = strategy

    def serve(self, strategy: Any, layout: Any, over: Any) -> bool:
        self.worker.strategy = strategy
        return True

    def begin(self) -> None:
        self.worker.machine = object()
        self.worker.strategy.protect()

    def settle(self) -> None:
        """Nobody else is there."""

    def new_reducer(self) -> Reducer:
        return self.reducer

    def final_in(self) -> int:
        return 0

    def bucket_reached(self) -> None:
        """No fault strikes here."""

    def forward_begins(self, values: Any) -> None:
        """Nobody notes it."""
