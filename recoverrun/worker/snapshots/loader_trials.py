"""The way back of loaders, tried in a copy of this process before it is promised.

A process that goes back begins a loader's iterator anew, as this one began it, and passes as many
items (`data.late_items`). Samplers of torch come to the same place by that. A sampler of another
class may keep a state that no generator shows, and an iterable data set may draw random numbers for
each item, between those that training draws. The copy does the same, and compares what comes next.
It is tried with the first snapshot of each pass, and whenever it has given four times as many
items. A trial may take as long as that of a generator, and hold training up for as long. One that
comes to no end is a reason to promise nothing, unless an earlier one of the same loader did. Items
that cannot be packed are not compared.

A loader or a generator that a thread of the script's reads ahead has given items that nobody has
used yet: nothing comes there again.
"""

import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader

from recoverrun.worker.arrival.generator_trials import FIRST_S, MORE, NOT_YET, WITHIN_S
from recoverrun.worker.arrival.inner_iterators import same
from recoverrun.worker.arrival.packing import CannotTravel, Packing, Plain
from recoverrun.worker.arrival.source_places import loader_iterators
from recoverrun.worker.data.begun_iterators import begun, order_anew
from recoverrun.worker.data.generator_source import GeneratorSource
from recoverrun.worker.data.late_items import LateItems
from recoverrun.worker.data.loader_iterator import LoaderIterator
from recoverrun.worker.data.samplers import samplers_of
from recoverrun.worker.data.source import Source
from recoverrun.worker.data.weak_source import WeakSource
from recoverrun.worker.errors import NotKnownYet, NotReachable, NotReplayable
from recoverrun.worker.rng.streams import read_streams, restore_streams
from recoverrun.worker.step.worker_state import WorkerState
from recoverrun.worker.verification import forked_child
from recoverrun.worker.verification.held_trials import HeldTrials

ORDERS, ITEMS = 256, 2
"""Of the rows and items to come, so many are compared."""

KNOWN = frozenset({"torch", "torchdata"})
"""Packages whose samplers have no state but generators."""

UNEQUAL = "{} gives something else once its items are passed again"
UNTRIED = "{} could not be read again in a copy of the process ({})"
ELSEWHERE = "a thread of the script's reads {} ahead, and no process comes to where it is"


class LoaderTrials:
    """Trials of the loaders of one process."""

    def __init__(self, worker: WorkerState, hold_s: float | None = None) -> None:
        """For `hold_s` see `HeldTrials`."""
        self._worker = worker
        self._trials = HeldTrials(hold_s)
        self._under_way: list[tuple[LoaderIterator, int]] = []  # and how many items each had given
        self._tried: weakref.WeakKeyDictionary[LoaderIterator, int] = weakref.WeakKeyDictionary()
        """The number of items each had given at its last trial that led to the same place."""
        self._shown: weakref.WeakSet[DataLoader[Any]] = weakref.WeakSet()

    def require(self, sources: Sequence[Source]) -> None:
        """Raises NotReachable where a process that goes back would not come to the same place, and
        NotKnownYet as long as that is tried.
        """
        if self._under_way:
            self._conclude(self._trials.answer)
        if name := read_elsewhere(sources):
            raise NotReachable(ELSEWHERE.format(name))
        due = [one for _, one in loader_iterators(sources) if self._is_due(one)]
        if not due or forked_child.hindrance():
            return

        def work() -> dict[str, Plain]:
            self._worker.runtime.mode.tries()
            self._worker.failpoints.disarm()
            return {"why": next(filter(None, map(tried, due)), "")}

        within_s = WITHIN_S if all(one.loader in self._shown for one in due) else FIRST_S
        self._under_way = [(one, one.count) for one in due]
        self._conclude(lambda: self._trials.run(work, within_s))

    def _conclude(self, ask: Callable[[], dict[str, Plain] | None]) -> None:
        due = [one for one, _ in self._under_way]
        try:
            said = ask()
            if said is None:
                raise NotKnownYet(NOT_YET.format(_name(due[0])))
            failed, why = str(said.get("failed", "")), str(said.get("why", ""))
        except forked_child.Failed as problem:
            failed, why = str(problem), ""
        counts, self._under_way = dict(self._under_way), []
        if failed:
            new = [one for one in due if one.loader not in self._shown]
            why = UNTRIED.format(_name(new[0]), failed) if new else ""
        if why:
            raise NotReachable(why)
        for one in due:
            self._shown.add(one.loader)
            self._tried[one] = sys.maxsize if failed else counts[one]

    def _is_due(self, one: LoaderIterator) -> bool:
        return is_doubtful(one) and one.count >= MORE * self._tried.get(one, 0)


def read_elsewhere(sources: Iterable[Source]) -> str:
    """The kind of a loader or a generator that another thread has asked for its newest item; "" if
    there is none.
    """
    here = threading.get_ident()
    for source in sources:
        one = source.held if isinstance(source, WeakSource) else source
        if isinstance(one, LoaderIterator | GeneratorSource) and one.thread not in (0, here):
            return one.name if isinstance(one, GeneratorSource) else _name(one)
    return ""


def is_doubtful(one: LoaderIterator) -> bool:
    """True of one that has given items, and need not give the same once it begins anew."""
    if one.ended or not one.count or _items(one) is None:
        return False
    if one.opening.created.resumed is not None:
        return False  # the script has loaded that state, and does so again
    if one.opening.is_iterable:
        return not one.loader.num_workers
    kinds = {type(sampler).__module__.partition(".")[0] for sampler in samplers_of(one.loader)}
    return not kinds <= KNOWN


def tried(one: LoaderIterator) -> str:
    """Begin it anew, and pass its items. Returned is why that does not lead to where it is, or "".
    Both are moved on.
    """
    items, before = _items(one), read_streams()
    if one.opening.is_iterable:
        expected = list(islice(items, ITEMS))
        try:
            again = begun(one, one.count, by_rows=True)
            one.go_up_to(again, one.count)
        except NotReplayable as why:
            return str(why)
        except StopIteration:
            return UNEQUAL.format(_name(one))
        restore_streams(before)
        found = list(islice(again.items, ITEMS))
    else:
        passed = items._send_idx if one.loader.num_workers else one.count
        expected = list(islice(items._sampler_iter, ORDERS))
        order = order_anew(one)._sampler_iter
        for _ in islice(order, passed):
            pass
        restore_streams(before)
        found = list(islice(order, ORDERS))
    return UNEQUAL.format(_name(one)) if _differ(expected, found) else ""


def _differ(expected: Sequence[Any], found: Sequence[Any]) -> bool:
    pairs = zip(expected, found, strict=False)
    return len(expected) != len(found) or any(
        _is_packed(mine) and not same(mine, theirs) for mine, theirs in pairs
    )


def _is_packed(item: Any) -> bool:
    try:
        Packing([]).pack(item)
    except CannotTravel:
        return False
    return True


def _items(one: LoaderIterator) -> Any:
    """The iterator of torch that gives its items. None if there is none, or if it is not known how
    many rows that was asked for.
    """
    own: Iterator[Any] | None = one.own
    if isinstance(own, LateItems):
        own = None if one.loader.num_workers else own.items
    workers = bool(one.loader.num_workers)
    return own if hasattr(own, "_send_idx" if workers else "_sampler_iter") else None


def _name(one: LoaderIterator) -> str:
    kinds = [type(one.loader).__name__, type(one.loader.dataset).__name__]
    kinds += [type(sampler).__name__ for sampler in samplers_of(one.loader)]
    return f"a {kinds[0]} over a {kinds[1]} by {kinds[-1]}" if kinds[2:] else f"a {kinds[0]}"
