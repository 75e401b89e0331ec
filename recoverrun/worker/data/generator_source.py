"""Generator functions of the script as data sources, such as one that repeats a data loader:

    def endless(loader):
        while True:
            yield from loader

A generator cannot be resumed as another rank: its state would change, and an exception that passes
through it ends it. So each item is noted with the draws from loaders that were made for it. While a
microbatch is re-executed as a lost rank, the same call returns that item, with every draw in it
replaced by the lost rank's draw. Where all random numbers of the call were drawn as the loader read
its item (augmentation), that draws them as well; else the lost rank's streams move on as far as
ours did.

A loader may be read ahead (accelerate reads one batch ahead to recognise the last one): then an
item holds what an earlier call drew. A generator without a loader below is made anew, with those
that it was given before they had begun, and read from its beginning (`generator_again`). One that
draws random numbers, to cut random pieces from a text for example, is resumed, once a proof has
shown that this gives another rank's item and leaves no trace. The script gets as many items as it
would have (`owed_items`).
"""

import threading
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from recoverrun.worker.data.batch_substitution import contains, pairs_for_rank, substituted
from recoverrun.worker.data.generator_again import GeneratorAgain
from recoverrun.worker.data.generator_wrapper import Anew, Make
from recoverrun.worker.data.owed_items import OwedItems
from recoverrun.worker.data.runtime import GeneratorRuntime
from recoverrun.worker.data.source import Draw, RankAware
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.rng.skip_ahead import skip_ahead
from recoverrun.worker.rng.streams import Streams, read_streams, restore_streams

NO_MORE = "{} has no other data to give"

READ_AHEAD = 4
"""Draws that are kept until an item holds them: the most that a loader may be read ahead."""


UNTRIED = "{} was asked for its first item after the last proof: whose it is has not been shown"

ANEW = (
    "{} was called anew after the last proof, with arguments that may be a rank's own: those of "
    "another rank are unknown"
)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class GivenItem:
    """One item as the script got it, and the random streams before and after the call.

    Reading the streams costs time, so it is left out for a generator whose first item came from no
    loader.
    """

    item: Any
    draws: list[Draw] | None  # those that the item may hold; None if there were too many
    before: Streams | None
    after: Streams | None
    by_loader: bool  # nothing but its one draw has moved the streams


class GeneratorSource(RankAware):
    """A `Source` that stands between the script and one of its generators."""

    ended = False

    def __init__(
        self,
        generator: Generator[Any, Any, Any],
        name: str,
        runtime: GeneratorRuntime,
        number: int,
        make: Make | None = None,
    ) -> None:
        """`make` makes the same generator again, where that can be."""
        self.number = number
        self.count = self.thread = 0  # items, and the thread that has asked for the newest one
        self.make = make
        self._items = OwedItems(generator, make)
        self.began: Streams | None = None  # the streams as it was asked for its first item
        self.draws = False  # for its first item, at least: a later one is seen as items are passed
        self.name = name
        self._runtime = runtime
        self._taken: dict[int, GivenItem] = {}  # of the present step
        self._held = WeakValueDictionary[int, GivenItem]()  # by index, while a draw keeps it
        self._positions: dict[int, int] = {}
        self._loads = False  # it has drawn from a loader
        self._ahead: list[Draw] = []  # in no item so far
        self._below: dict[int, int] = {}  # items that generators below have given to this one
        self.again = None if make is None else GeneratorAgain(make, name)

    def __iter__(self) -> "GeneratorSource":
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        rank = self._runtime.acting_rank
        if rank is None or self._runtime.reads_ahead:
            return self._next_own(value)
        if self._runtime.fresh:
            return self._fresh(rank, value)
        index = self._positions.get(rank, self.count)
        self._positions[rank] = index + 1
        return self._next_as(rank, index, value)

    @property
    def generator(self) -> Generator[Any, Any, Any]:
        """The one of the script that gives the items now."""
        return self._items.generator

    @property
    def asked(self) -> bool:
        """True if the script asked for an item in the present transaction."""
        return bool(self._taken)

    @property
    def draws_beside(self) -> bool:
        """True if numbers were drawn for the newest item that no loader has drawn for it. One that
        begins draws more than its item needs.
        """
        taken = self._held.get(self.count - 1)
        if taken is None or taken.by_loader or any(not one.index for one in taken.draws or ()):
            return False
        return taken.before != taken.after

    def throw(self, *error: Any) -> Any:
        return self.generator.throw(*error)

    def close(self) -> None:
        self.ended = True
        self._items.close()

    # --------------------------------------------------------------------------- normal work

    def _next_own(self, value: Any) -> Any:
        mark = self._runtime.drawn_so_far
        before = read_streams() if self._loads or not self.count else None
        self.began, self.thread = self.began or before, threading.get_ident()
        self._runtime.asking += 1
        try:
            item = self._items.own(self.count, value)
        except StopIteration:
            self.ended = True
            raise
        finally:
            self._runtime.asking -= 1
        draws = self._drawn_since(mark)
        after = read_streams() if before is not None else None
        self.draws = self.draws or before != after
        if before != after or value is not None:
            self.again = None  # it is resumed
        by_loader = before is not None and [one.source.moved for one in draws or ()] == [
            (before, after)
        ]
        taken = GivenItem(item, self._parts_of(item, draws), before, after, by_loader)
        self._taken[self.count] = self._held[self.count] = taken
        self._runtime.fold(mark, Draw(self, self.count, item, taken))
        self.count += 1
        return item

    def _drawn_since(self, mark: int) -> list[Draw] | None:
        """The draws for an item; None if there were too many. All other sources load."""
        draws = self._runtime.draws_since(mark)
        self._loads = self._loads or draws is None or not all(map(self._makes_anew, draws))
        return draws

    def _makes_anew(self, draw: Draw) -> bool:
        """True if a generator that is made anew with this one gave the draw, and nobody else has
        asked it since this one did.
        """
        source, again = draw.source, self.again
        if again is None or not isinstance(again.make, Anew):
            return False
        if not isinstance(source, GeneratorSource) or source.again is None or source._loads:
            return False
        expected, self._below[source.number] = self._below.get(source.number, 0), draw.index + 1
        return draw.index == expected

    def _parts_of(self, item: Any, draws: list[Draw] | None) -> list[Draw] | None:
        """Return which of `draws`, and of those read ahead, `item` holds.

        All of them are returned where `item` is a copy, and None where they are unknown.
        """
        waiting = [*self._ahead, *(draws or ())]
        self._ahead = []
        if draws is None or len(waiting) <= 1:
            return None if draws is None else waiting
        held = [draw for draw in waiting if contains(item, draw.item)]
        left = [draw for draw in waiting if not any(draw is known for known in held)]
        self._ahead = left[-READ_AHEAD:]
        return held or waiting

    # --------------------------------------------------------------------------- as a lost rank

    def _next_as(self, rank: int, index: int, value: Any) -> Any:
        """Return item `index` as `rank` would have got it.

        No exception may pass through a generator of the script that holds this one. What cannot be
        served spoils the re-execution instead.
        """
        taken = self._held.get(index)
        try:
            if taken is not None and not self._loads:
                if not self._runtime.trusts(self.name):
                    raise NotReplayable(UNTRIED.format(self.name))
                if self.again is not None and value is None:
                    return self.again.item(rank, index, self._make_as(rank, self.again.make))
                return self._items.of_another(self.count, index, value)
            return self._served(rank, taken)
        except NotReplayable as reason:
            self._runtime.spoil(str(reason))
        except StopIteration:
            self._runtime.spoil(f"rank {rank} has run out of data, and this rank has not")
        return taken.item if taken is not None else None

    def _make_as(self, rank: int, own: Make) -> Make:
        """The call that makes the generator of `rank`. Raises NotReplayable."""
        if rank == self._runtime.own_rank:
            return own
        make = self._runtime.made_as(self.number, self.name, own)
        if make is None:
            raise NotReplayable(ANEW.format(self.name))
        return make

    def _fresh(self, rank: int, value: Any) -> Any:
        """Return an item of other data; where there is none, the present one once more.

        If there is a loader below, the loader is asked and the generator is not: it may do more
        than hand on, and what the script does between two items is not done here.
        """
        taken = self._taken[max(self._taken)] if self._taken else None
        if taken is not None and taken.draws:
            item = substituted(taken.item, pairs_for_rank(taken.item, taken.draws, rank))
            if item is not taken.item:
                return item
        if not self._loads and value is None:
            with suppress(StopIteration):
                return self._read_ahead()
        if taken is None:
            self._runtime.spoil(NO_MORE.format(self.name))
            return None
        return taken.item

    def _read_ahead(self) -> Any:
        """A copy of an item that the script is still to get. What generators below give for it is
        the script's, too: given once, and at their end it is over.
        """
        runtime, mark = self._runtime, self._runtime.drawn_so_far
        runtime.reads_ahead = True
        try:
            return self._items.ahead(self.count)
        finally:
            runtime.reads_ahead = False
            self._drawn_since(mark)
            runtime.fold(mark, None)

    def _served(self, rank: int, taken: GivenItem | None) -> Any:
        if taken is None:
            raise NotReplayable(f"another rank takes more items from {self.name} than this one")
        if taken.draws is None:
            raise NotReplayable(f"{self.name} makes one item of too many")
        if taken.before is None or taken.after is None:
            raise NotReplayable(f"{self.name} gives data of a loader and others")
        moved = None
        if not taken.by_loader:
            moved = skip_ahead(read_streams(), taken.before, taken.after)
            if moved is None:
                raise NotReplayable(f"{self.name} draws random numbers of Python or numpy")
        item = substituted(taken.item, pairs_for_rank(taken.item, taken.draws, rank))
        if item is taken.item:
            raise NotReplayable(f"{self.name} makes something else of what its loader gives")
        if moved is not None and not self._runtime.looking_back:
            restore_streams(moved)
        return item

    def serve(self, rank: int, index: int) -> Any:
        fresh = self._runtime.fresh
        return self._fresh(rank, None) if fresh else self._next_as(rank, index, None)

    def seek(self, rank: int, index: int) -> None:
        self._positions[rank] = index

    def forget(self, rank: int) -> None:
        self._positions.pop(rank, None)
        if self.again is not None:
            self.again.forget(rank)

    # --------------------------------------------------------------------------- between steps

    def begin_step(self, floor: int) -> None:
        """Forget items before `floor`: they belong to steps that are over."""
        self._taken = {index: taken for index, taken in self._taken.items() if index >= floor}
        if self.again is not None:
            self.again.begin_step(floor)
