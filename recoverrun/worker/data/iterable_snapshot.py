"""Copies of an iterable data set, made as an iterator of it begins."""

import weakref
from typing import Any, ClassVar

from recoverrun.worker.data import object_copy
from recoverrun.worker.errors import NotReplayable

ON = "goes on from pass to pass, and where it stands on another rank cannot be told"


class Kept:
    """A stream as it stands now, as an iterator of it is made, whatever becomes of it.

    The first one stands where the script has put it, on all ranks alike. Where it does not stand
    there again in a further pass, it has moved by itself, and on another rank elsewhere perhaps.
    """

    _first: ClassVar[list[tuple[weakref.ref[Any], bytes]]] = []

    def __init__(self, data: Any) -> None:
        self._name, self._reason = type(data).__name__, ""
        try:
            self._twin = object_copy.copied(data)
        except object_copy.Unmovable as error:
            self._reason = f"holds {error}"
            return
        now = object_copy.stands(self._twin)
        Kept._first = [one for one in Kept._first if one[0]() is not None]
        first = [stood for known, stood in Kept._first if known() is data]
        if not first:
            Kept._first.append((weakref.ref(data), now))
        elif first[0] != now:
            self._reason = ON

    def again(self) -> Any:
        """One that stands there. Raises NotReplayable."""
        if self._reason:
            raise NotReplayable(f"the iterable data set {self._name} {self._reason}")
        return object_copy.copied(self._twin)
