"""The way back of loaders, tried in a copy of this process before it is promised.

Samplers of torch come to the same place by their generators. A sampler of another class may keep a
state that no generator shows, and an iterable data set may draw random numbers for each item,
between those that training draws. The copy goes the way back (`loader_way_back`), with the state of
the loader if it needs that. It is tried with the first snapshot of each pass, and whenever an
iterator has given four times as many items. A trial may take as long as that of a generator, and
hold training up for as long. One that comes to no end is a reason to promise nothing, unless an
earlier one of the same loader did.

A loader or a generator that a thread of the script's reads ahead has given items that nobody has
used yet: nothing comes there again.
"""

import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch.utils.data import DataLoader

from recoverrun.worker.arrival.generator_trials import FIRST_S, MORE, NOT_YET, WITHIN_S
from recoverrun.worker.arrival.packing import Plain
from recoverrun.worker.arrival.source_places import loader_iterators
from recoverrun.worker.data.generator_source import GeneratorSource
from recoverrun.worker.data.loader_iterator import LoaderIterator
from recoverrun.worker.data.source import Source
from recoverrun.worker.data.weak_source import WeakSource
from recoverrun.worker.errors import NotKnownYet, NotReachable
from recoverrun.worker.snapshots.loader_states import is_doubtful, name_of
from recoverrun.worker.step.worker_state import WorkerState
from recoverrun.worker.verification import forked_child
from recoverrun.worker.verification.held_trials import HeldTrials

UNTRIED = "{} could not be read again in a copy of the process ({})"
ELSEWHERE = "a thread of the script's reads {} ahead, and no process comes to where it is"

Tries = Callable[[LoaderIterator, frozenset[str], bool], tuple[str, bool]]
"""Goes the way back of one: see `loader_way_back.tried`."""


class LoaderTrials:
    """Trials of the loaders of one process."""

    def __init__(self, worker: WorkerState, tries: Tries, hold_s: float | None = None) -> None:
        """For `hold_s` see `HeldTrials`."""
        self._worker = worker
        self._tries = tries
        self._trials = HeldTrials(hold_s)
        self._under_way: list[tuple[LoaderIterator, int]] = []  # and how many items each had given
        self._tried: weakref.WeakKeyDictionary[LoaderIterator, int] = weakref.WeakKeyDictionary()
        """The number of items each had given at its last trial that led to the same place."""
        self._keep: weakref.WeakSet[DataLoader[Any]] = weakref.WeakSet()
        """Those that come to the same place only if their state is put in place."""
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
        own = self._worker.runtime.own_modules

        def work() -> dict[str, Plain]:
            self._worker.runtime.mode.tries()
            self._worker.failpoints.disarm()
            said = [self._tries(one, own, one.loader in self._keep) for one in due]
            keep: list[Plain] = [number for number, (_, keeps) in enumerate(said) if keeps]
            return {"why": next(filter(None, (why for why, _ in said)), ""), "keep": keep}

        within_s = WITHIN_S if all(one.loader in self._shown for one in due) else FIRST_S
        self._under_way = [(one, one.count) for one in due]
        self._conclude(lambda: self._trials.run(work, within_s))

    def keeping(self, sources: Iterable[Source]) -> list[LoaderIterator]:
        """The iterators whose state a snapshot has to hold."""
        return [
            one
            for _, one in loader_iterators(sources)
            if one.loader in self._keep and is_doubtful(one)
        ]

    def _conclude(self, ask: Callable[[], dict[str, Plain] | None]) -> None:
        due = [one for one, _ in self._under_way]
        try:
            said = ask()
            if said is None:
                raise NotKnownYet(NOT_YET.format(name_of(due[0])))
            failed, why = str(said.get("failed", "")), str(said.get("why", ""))
            keep = said.get("keep")
        except forked_child.ChildFailed as problem:
            failed, why, keep = str(problem), "", None
        counts, self._under_way = dict(self._under_way), []
        if failed:
            new = [one for one in due if one.loader not in self._shown]
            why = UNTRIED.format(name_of(new[0]), failed) if new else ""
        if why:
            raise NotReachable(why)
        if isinstance(keep, list):
            self._keep.update(one.loader for number, one in enumerate(due) if number in keep)
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
            return one.name if isinstance(one, GeneratorSource) else name_of(one)
    return ""
