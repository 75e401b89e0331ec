"""Copies of an iterable data set, made as an iterator of it begins."""

import weakref
from typing import Any, ClassVar

from recoverrun.worker.data.object_copy import NotCopyable, copied, position_digest
from recoverrun.worker.errors import NotReplayable

MOVES_BY_ITSELF = "goes on from pass to pass, and where it stands on another rank cannot be told"


class IterableSnapshot:
    """A stream as it stands now, as an iterator of it is made, whatever becomes of it.

    The first one stands where the script has put it, on all ranks alike. Where it does not stand
    there again in a further pass, it has moved by itself, and on another rank elsewhere perhaps.
    """

    _first: ClassVar[list[tuple[weakref.ref[Any], bytes]]] = []

    def __init__(self, data: Any) -> None:
        self._name, self._reason = type(data).__name__, ""
        try:
            self._twin = copied(data)
        except NotCopyable as error:
            self._reason = f"holds {error}"
            return
        now = position_digest(self._twin)
        IterableSnapshot._first = [one for one in IterableSnapshot._first if one[0]() is not None]
        first = [stood for known, stood in IterableSnapshot._first if known() is data]
        if not first:
            IterableSnapshot._first.append((weakref.ref(data), now))
        elif first[0] != now:
            self._reason = MOVES_BY_ITSELF

    def again(self) -> Any:
        """One that stands there. Raises NotReplayable."""
        if self._reason:
            raise NotReplayable(f"the iterable data set {self._name} {self._reason}")
        return copied(self._twin)
