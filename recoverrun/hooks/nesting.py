"""Whether a call is the outermost of its kind.

A class, not a generator under `contextmanager`: it is entered for every microbatch.
"""

from types import TracebackType


class Nesting:
    """`with nesting as outermost:`; one object serves all calls of a kind, in one thread."""

    __slots__ = ("_depth",)

    def __init__(self) -> None:
        self._depth = 0

    def __enter__(self) -> bool:
        self._depth += 1
        return self._depth == 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._depth -= 1
