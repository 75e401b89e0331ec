"""A group of torch's that stands before another one, with a rank and a size of its own."""

from collections.abc import Sequence
from typing import Any

from ft_collectives.communicators.c10d import ProcessGroup, take_over


class WrappedGroup(ProcessGroup):
    """Has the backends and names of a native group.

    torch's `ProcessGroup` can be inherited from in Python (PyProcessGroup.hpp is its trampoline,
    which looks methods up under the names that C++ has for them).
    """

    def __init__(self, native: Any, ranks: Sequence[int], place: int) -> None:
        """`ranks` are global, `place` is ours among them. `native` may have this rank alone."""
        super().__init__(place, len(ranks))
        self.native = native
        self.ranks = tuple(ranks)
        self._place = place
        take_over(self, native)

    def getRank(self) -> int:
        """Our place. From torch 2.14 on `ProcessGroup` would ask the backend, as for the size."""
        return self._place

    def getSize(self) -> int:
        return len(self.ranks)

    def getBackendName(self) -> str:
        return str(self.native.name())

    def name(self) -> str:
        return str(self.native.name())

    def get_group_store(self) -> Any:
        return self.native.get_group_store()
