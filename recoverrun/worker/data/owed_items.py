"""The items of one of the script's generators, of which the script gets as many as it would have.

As a lost rank, or for other data in a lost rank's place, a generator may be asked for items that
are not the script's own. Ranks that make up unequally many must still leave their loops together:

- Other data are read ahead: the script gets these items, too, in their turn.
- A generator that draws random numbers is resumed as a lost rank, where a proof has shown that its
  items do not depend on how many it gave. When it has come to its end, the script is owed as many
  items as others got: another generator of the same call gives these.
"""

from collections import deque
from collections.abc import Generator
from contextlib import suppress
from typing import Any

from recoverrun.worker.data.generator_wrapper import Make
from recoverrun.worker.data.object_copy import ObjectCopier
from recoverrun.worker.rng.registry import REGISTRY
from recoverrun.worker.rng.streams import read_streams, restore_streams

READ_AHEAD = 8
"""The most items that are read ahead; then the first of them is given once more."""


class OwedItems:
    """The items that a `generator`, which `make` makes anew, owes the script."""

    def __init__(self, generator: Generator[Any, Any, Any], make: Make | None) -> None:
        self.generator = generator
        self._make = make
        self._unread: deque[Any] = deque()  # read ahead
        self._raises: Exception | None = None  # once those are read
        self._others = 0  # items that others got, and the script did not
        self._ends: StopIteration | None = None  # once the one that the script has made is over
        self._end = 0  # so many items the script would have got of it
        self._next_ahead = 0  # the number of the next item to be given as other data

    def own(self, count: int, value: Any) -> Any:
        """The script's own next item after `count`; `value` is sent for it."""
        if self._unread:
            return self._unread.popleft()
        if self._raises is not None:
            error, self._raises = self._raises, None
            raise error
        return self._asked(count, count, value)

    def of_another(self, count: int, index: int, value: Any) -> Any:
        """Item `index` as the lost rank gets it as which code runs now; the script got `count`."""
        item = self._asked(index, count, value)
        self._others += 1
        return item

    def ahead(self, count: int) -> Any:
        """A copy of an item that the script is still to get after `count`, another one each time.
        Raises StopIteration if there is none.
        """
        at = max(self._next_ahead - count, 0) % READ_AHEAD
        while len(self._unread) <= at and self._raises is None:
            try:
                self._unread.append(self._asked(count + len(self._unread), count, None))
            # Protects made-up work from what the script's code raises: it comes in its turn.
            except Exception as error:
                self._raises = error
        if not self._unread:
            raise StopIteration
        at = min(at, len(self._unread) - 1)
        self._next_ahead = count + at + 1
        return ObjectCopier(strict=False).of(self._unread[at])

    def close(self) -> None:
        """The script is owed nothing any more."""
        self.generator.close()
        self._unread.clear()
        self._raises, self._ends, self._end = None, StopIteration(), 0

    def _asked(self, index: int, count: int, value: Any) -> Any:
        if self._ends is None:
            try:
                return self.generator.send(value)
            except StopIteration as ends:
                self._ends, self._end = ends, count + len(self._unread) + self._others
        if index >= self._end or self._make is None:
            raise self._ends
        with suppress(StopIteration):
            return next(self.generator)
        self.generator = self._begun(self._make)
        return next(self.generator)

    @staticmethod
    def _begun(make: Make) -> Generator[Any, Any, Any]:
        """One that has given its first item: what it draws to begin with is drawn already."""
        streams, generators = read_streams(), REGISTRY.states()
        made = make()
        next(made)
        REGISTRY.restore(generators)
        restore_streams(streams)
        return made
