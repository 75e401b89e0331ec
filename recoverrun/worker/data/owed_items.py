"""Items of a generator of the script, which others use as well: the script must not miss any.

A survivor may ask a generator for items that are not the script's own: as a lost rank, or to have
other samples for a lost microbatch. Ranks that make up unequal numbers of microbatches must still
leave their loops together, so the script gets as many items as without the loss:

- Items that serve as other samples are read ahead: the script gets them, too, in their turn.
- A generator that draws random numbers is resumed as a lost rank, if a proof has shown that its
  items do not depend on how many it has given. These items are lost to the script: once the
  generator has ended, another one, made by the same call, gives as many to the script instead.
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
        self._raises: Exception | None = None  # behind those that were read ahead
        self._given_away = 0  # items that the script did not get
        self._exhausted: StopIteration | None = None  # once the script's own generator has ended
        self._length = 0  # so many items the script would have got of it alone
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
        """Item `index` of the lost rank as which code runs now; the script itself got `count`."""
        item = self._asked(index, count, value)
        self._given_away += 1
        return item

    def ahead(self, count: int) -> Any:
        """A copy of an item that the script, which got `count`, is still to get; each call gives
        another one. Raises StopIteration if there is none.
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
        self._raises, self._exhausted, self._length = None, StopIteration(), 0

    def _asked(self, index: int, count: int, value: Any) -> Any:
        if self._exhausted is None:
            try:
                return self.generator.send(value)
            except StopIteration as ending:
                given = count + len(self._unread) + self._given_away
                self._exhausted, self._length = ending, given
        if index >= self._length or self._make is None:
            raise self._exhausted
        with suppress(StopIteration):
            return next(self.generator)
        self.generator = self._begun(self._make)
        return next(self.generator)

    @staticmethod
    def _begun(make: Make) -> Generator[Any, Any, Any]:
        """A fresh generator that has given its first item. What it drew for that is undone: the
        script's own generator has drawn the same before.
        """
        streams, generators = read_streams(), REGISTRY.states()
        made = make()
        next(made)
        REGISTRY.restore(generators)
        restore_streams(streams)
        return made
