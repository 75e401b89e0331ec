"""The way back of the script's generators, tried in a copy of this process before it is promised.

A process that goes back calls a generator function anew, lets it give as many items, and puts its
state in place (`generator_states`). The copy does the same and looks at what has come of it. It is
tried with the first snapshot of each generator and whenever it has given four times as many items,
as what a function does may depend on how far it has come. A trial may take `WITHIN_S`, and once for
each function `FIRST_S`: a fork alone may take that on a busy machine. Training waits for a part of
that (`held_trials`). One that comes to no end is a reason to promise nothing, unless an earlier one
of the same function did: this generator is not tried any more. With CUDA no copy can try anything.
"""

import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from recoverrun.worker.arrival import generator_states, inner_iterators
from recoverrun.worker.arrival.generator_states import Below, Stateful
from recoverrun.worker.arrival.packing import Packing, Plain
from recoverrun.worker.arrival.slot_sources import ENDED
from recoverrun.worker.data.generator_source import GeneratorSource
from recoverrun.worker.errors import NotKnownYet, NotReachable
from recoverrun.worker.rng.streams import read_streams, restore_streams
from recoverrun.worker.step.worker_state import WorkerState
from recoverrun.worker.verification import forked_child
from recoverrun.worker.verification.held_trials import HeldTrials

MORE = 4
WITHIN_S, FIRST_S = 2.0, 10.0

UNEQUAL = "{} is not as it was once its items are passed again"
UNTOLD = "{} draws random numbers, and what {} holds in it cannot be told"
RAISES = "{} cannot be read again: {!r}"
UNTRIED = "{} could not be read again in a copy of the process ({})"
NOT_YET = "whether {} comes to the same place again is still being tried"


class GeneratorTrials:
    """Trials of the generators of one process."""

    def __init__(self, worker: WorkerState, hold_s: float | None = None) -> None:
        """For `hold_s` see `HeldTrials`."""
        self._worker = worker
        self._trials = HeldTrials(hold_s)
        self._under_way: list[tuple[Stateful, int]] = []  # and how many items each had given
        self._tried: weakref.WeakKeyDictionary[GeneratorSource, int] = weakref.WeakKeyDictionary()
        """The number of items each had given at its last trial that led to the same place."""
        self._shown: set[Any] = set()  # the code of functions whose generators have come there

    def require(self, drawn: Sequence[Below], items: Sequence[str], *, draws: bool) -> None:
        """Raises NotReachable where a process that goes back would not come to the same place, and
        NotKnownYet as long as that is tried.

        `items` of their loops cannot be told; `draws`: the present one has drawn random numbers.
        """
        if self._under_way:
            self._conclude(self._trials.answer)
        tried = [
            one
            for each in drawn
            for one in each.found
            if one.source is not None and one.source.make is not None and not each.loads
        ]
        due = [one for one in tried if self._is_due(one.source)]
        if due and not forked_child.hindrance():
            self._try(due, items)
        if draws:
            for each in drawn:
                others = [
                    one
                    for one in each.found
                    if one not in tried and not (each.loads and _drawn_by_loader(one))
                ]
                untold = generator_states.untold(others)
                if others and (lacks := [*untold, *items]):
                    raise NotReachable(UNTOLD.format(others[0].name, lacks[0]))

    def _is_due(self, source: GeneratorSource | None) -> bool:
        if source is None:
            return False
        return source.count >= MORE * self._tried.get(source, 0)

    def _try(self, due: Sequence[Stateful], items: Sequence[str]) -> None:
        def work() -> dict[str, Plain]:
            self._worker.runtime.mode.tries()
            self._worker.failpoints.disarm()
            return {"why": next(filter(None, (tried(one, items) for one in due)), "")}

        within_s = WITHIN_S if self._shown.issuperset(map(_code, due)) else FIRST_S
        self._under_way = [(one, one.source.count) for one in due if one.source is not None]
        self._conclude(lambda: self._trials.run(work, within_s))

    def _conclude(self, ask: Callable[[], dict[str, Plain] | None]) -> None:
        due = [one for one, _ in self._under_way]
        try:
            said = ask()
            if said is None:
                raise NotKnownYet(NOT_YET.format(due[0].name))
            failed, why = str(said.get("failed", "")), str(said.get("why", ""))
        except forked_child.ChildFailed as problem:
            failed, why = str(problem), ""
        tried, self._under_way = self._under_way, []
        if failed:
            why = self._untried(due, failed)
        if why:
            raise NotReachable(why)
        for one, count in tried:
            if one.source is not None:
                self._shown.add(_code(one))
                self._tried[one.source] = max(count, self._tried.get(one.source, 0))

    def _untried(self, due: Sequence[Stateful], problem: str) -> str:
        """The reason to promise nothing, or "" if one of each function was shown to come to its
        place before.
        """
        new = [one for one in due if _code(one) not in self._shown]
        if new:
            return UNTRIED.format(new[0].name, problem)
        for one in due:
            if one.source is not None:
                self._tried[one.source] = sys.maxsize
        return ""


def _code(one: Stateful) -> Any:
    """The code of its function: a script may call that in each pass over its data."""
    return getattr(one.one, "gi_code", None)


def _drawn_by_loader(one: Stateful) -> bool:
    """True if a loader below accounts for the numbers that were drawn for the newest item."""
    return one.source is None or not one.source.draws_beside


def tried(one: Stateful, items: Sequence[str] = ()) -> str:
    """Make the generator again, pass its items, and put its state in place. Returned is why that
    does not lead to where it is, or "". Random streams are left where that brings them.
    """
    source = one.source
    assert source is not None and source.make is not None, "only those are tried"
    kept: list[torch.Tensor] = []
    states = generator_states.told([one], Packing(kept))
    if source.began is not None:
        restore_streams(source.began)
    before = read_streams()
    fresh = source.make()
    for passed in range(source.count):
        try:
            next(fresh)
        except StopIteration:
            return ENDED.format(kind=one.name, passed=passed, count=source.count)
        # Protects a promise from what the script's own code says as it is called once more.
        except Exception as error:
            return RAISES.format(one.name, error)
    lacks = [*generator_states.untold([one]), *items]
    if lacks and read_streams() != before:
        return UNTOLD.format(one.name, lacks[0])
    again = [Stateful(fresh, source)]
    try:
        generator_states.put(states, again, [tensor.clone() for tensor in kept])
    except (NotReachable, ValueError) as why:
        return str(why)
    here: list[torch.Tensor] = []
    equal = generator_states.told(again, Packing(here)) == states
    return "" if equal and inner_iterators.equal(here, kept) else UNEQUAL.format(one.name)
