"""A snapshot of an iterable data set, taken when an iterator of it begins.

Such a data set may keep its position in itself. Another rank's iterator must begin where this
rank's began, whatever becomes of the data set meanwhile.
"""

import weakref
from typing import Any, ClassVar

from recoverrun.worker.data.object_copy import NotCopyable, copied, position_digest
from recoverrun.worker.errors import NotReplayable

MOVES_BY_ITSELF = "goes on from pass to pass, and its position on another rank is unknown"


class IterableSnapshot:
    """The state of an iterable data set now.

    At its first pass a data set is where the script put it, alike on all ranks. If it is somewhere
    else at a later pass, it moves by itself, and may be somewhere else again on another rank.
    """

    _first: ClassVar[list[tuple[weakref.ref[Any], bytes]]] = []

    def __init__(self, data: Any) -> None:
        self._name, self._reason = type(data).__name__, ""
        try:
            self._copy = copied(data)
        except NotCopyable as error:
            self._reason = f"holds {error}"
            return
        now = position_digest(self._copy)
        IterableSnapshot._first = [
            pair for pair in IterableSnapshot._first if pair[0]() is not None
        ]
        first = [digest for known, digest in IterableSnapshot._first if known() is data]
        if not first:
            IterableSnapshot._first.append((weakref.ref(data), now))
        elif first[0] != now:
            self._reason = MOVES_BY_ITSELF

    @property
    def attributes(self) -> dict[str, Any] | None:
        """Its attributes then; None if that is unknown."""
        return None if self._reason else vars(self._copy)

    def restored(self) -> Any:
        """Return a data set in that state. Raises NotReplayable."""
        if self._reason:
            raise NotReplayable(f"the iterable data set {self._name} {self._reason}")
        return copied(self._copy)
