"""The result of a worker process of a loader: an item, and its draws."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class WorkerItem:
    """An item as a worker process gives it."""

    item: Any
    drew: bool  # numbers for it or an item before it, that follow from the worker's seed
    inherited: bool  # numbers from a generator of the process that began the worker
    made: bool  # the data set made a generator since the worker began
    state: bytes  # digest of all generators except inherited ones


@dataclass(frozen=True, slots=True)
class GeneratorTrace:
    """The generators of a worker process after item `index`."""

    index: int
    state: bytes
    drew: bool
    made: bool  # the data set made one of them in that process
    by_rows: bool = False  # the process began at that item: what earlier ones drew is not in it

    @staticmethod
    def of(index: int, read: WorkerItem, *, by_rows: bool) -> "GeneratorTrace":
        return GeneratorTrace(index, read.state, read.drew, read.made, by_rows)

    def pack(self) -> list[Any]:
        """Plain values for msgpack, in the order of the fields."""
        return [self.index, self.state, self.drew, self.made, self.by_rows]
