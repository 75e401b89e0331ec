"""The gate of code that the script means for rank 0 alone (`rank0_transformer`).

Instrumented code asks here whether it is rank 0. Once rank 0 is lost, its deputy passes, too. Who
that is, and what it does around such code, is the business of `rank0.failover`.
"""

import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any

from recoverrun.worker.instrumentation import Lone
from recoverrun.worker.tracking.recreated_objects import RecreatedObjects

KEPT = 1_000
"""Of what others did alone in earlier transactions, so much is remembered."""


class Rank0Gate:
    """The part of `script.Runtime` by which code meant for rank 0 is handed on."""

    def __init__(self, own_rank: int) -> None:
        self._own_rank = own_rank
        self.is_deputy: Callable[[], bool] = lambda: False
        self.standing_in: Callable[[str], AbstractContextManager[Any]] = nullcontext
        self.by_itself: Callable[[str], AbstractContextManager[Any]] = nullcontext
        self.passing: Callable[[], AbstractContextManager[Any]] = nullcontext
        self.supply: Callable[[FrameType], None] = lambda frame: None
        self.first_of_node: Callable[[int], bool] = lambda rank: True  # before a layout is known
        self.places: dict[str, Lone] = {}  # where rank 0 alone does something
        self.told: Mapping[str, Any] = {}  # rank 0's values of names that such code reads
        self.led = False  # this rank has stood in for rank 0
        self.lone = 0  # nesting depth of code executed in the place of rank 0
        self.unclear = False  # it is not known whether rank 0 would have drawn what is drawn there
        self.left: Counter[str] = Counter()  # place -> how often its code raised an error here
        self.missed: set[str] = set()  # places skipped here since the last commit point
        self.passed_by = ""  # the first place skipped here since the last step was committed
        self.failed = ""  # the first place since then whose code raised an error here, and which
        self.missed_at: dict[tuple[Any, str], None] = {}  # (last point here, place), in order
        self.last_point: Callable[[], Any] = lambda: None
        self.undecided: set[str] = set()  # places of rank 0's choices since then
        self.brought: Any = None  # rank 0's argument for the next call
        self.recreated = RecreatedObjects()  # objects that only rank 0 has made

    def hand_on(self, places: Mapping[str, Lone]) -> None:
        """Learn where a module does something on rank 0 alone."""
        self.places.update(places)
        self.recreated.learn(places)

    def first(self, where: str, sense: bool, result: Any, rank: Any = None) -> Any:
        """The value of a condition on the rank: `sense` on rank 0 and its deputy, else `result`.

        `rank` is the number that the condition compared, None for a flag.
        """
        if bool(result) is sense:
            return result
        self.recreated.visit(where, sys._getframe(1))
        if not self.is_deputy():
            self.missed.add(where)
            self.pass_by(where)
            self.missed_at[self.last_point(), where] = None
            return result
        return sense if self._means_ranks(rank) else result

    def pass_by(self, where: str) -> None:
        """Note that this rank leaves out what rank 0 does alone."""
        self.passed_by = self.passed_by or os.path.basename(where)

    def stands_in(self, where: str, sense: bool, result: Any, rank: Any = None) -> bool:
        """True if this is not rank 0 (see `first`), but decides in its place what follows."""
        if bool(result) is sense:
            return False
        self.recreated.visit(where, sys._getframe(1))
        if not self.is_deputy():
            self.undecided.add(where)
            return False
        return self._means_ranks(rank)

    def _means_ranks(self, rank: Any) -> bool:
        return rank is None or str(rank) == str(self._own_rank)

    def fail(self, where: str, error: BaseException) -> bool:
        """Code raised an error in the place of rank 0. True after 1, 2, 4, 8 ... times there."""
        self.failed = self.failed or f"{os.path.basename(where)}: {error!r}"
        self.left[where] += 1
        return self.left[where].bit_count() == 1

    def begin_anew(self) -> None:
        """Begin anew at a commit point. What was missed within a microbatch tells in the next step,
        too.
        """
        last = self.last_point()
        begun = (last[0], 0) if last is not None else None
        self.missed = {w for p, w in self.missed_at if p is not None and p[::2] == begun}
        self.missed_at = dict(list(self.missed_at.items())[-KEPT:])
        self.undecided.clear()
        self.passed_by = self.failed = ""

    def has_done(self, rank: int, places: frozenset[str], since: Any) -> bool:
        """True if all was done here, right after our point `since`, that `rank` does alone at these
        places.
        """
        missed = {where for point, where in self.missed_at if point == since}
        return rank == 0 and not (missed & places if places else missed)

    def apart_from(self, rank: int) -> bool:
        """True if `rank` would do nothing of what this one does alone as first of world or node."""
        return not (self.first_of_node(rank) and self.first_of_node(self._own_rank))

    def bring(self, value: Any) -> None:
        """Keep an argument that rank 0 alone gives to the call that follows."""
        self.brought = value

    def taken(self) -> Any:
        """The value that was brought for this call; None without any."""
        value, self.brought = self.brought, None
        return value

    def asking(self, where: str) -> AbstractContextManager[Any]:
        """Around what rank 0 alone asks, and then does (`leading`): of a rank that is not rank 0 it
        may have no answer.
        """
        if not self.is_deputy():
            return self.passing()
        self.supply(sys._getframe(1))
        return self.standing_in(where)

    def beside(self) -> AbstractContextManager[Any]:
        """Around what rank 0 alone does, in code that is executed as another rank."""
        return self.passing()

    def leading(self, where: str) -> AbstractContextManager[Any]:
        """Around what rank 0 alone does."""
        if not self.is_deputy():
            return self.by_itself(where)
        self.supply(sys._getframe(1))
        return self.standing_in(where)
