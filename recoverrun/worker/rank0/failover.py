"""The deputy of a lost rank 0: who does what the script does on rank 0 alone (`rank0_transformer`).

It is the first survivor that holds the part of the model which rank 0 held. What it does in the
place of rank 0 leaves no traces in what it is itself: it draws from rank 0's random streams, as far
as it knows them, its own are put back, and iterators of data are none of those that ranks compare.
"""

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import TYPE_CHECKING, Any

from recoverrun.worker.instrumentation import Lone
from recoverrun.worker.rank0.recreated_objects import Workshop

if TYPE_CHECKING:  # it imports torch, which only the script does
    from recoverrun.worker.replay.lost_rank import LostRank
    from recoverrun.worker.rng.streams import Streams
    from recoverrun.worker.step.driver import Session

LEADS = "in the place of lost rank 0 from here on: what the script does on rank 0 alone"
FAILED = "in the place of rank 0, {} failed and was left: {!r}"
DRAWS = "what rank 0 does alone draws random numbers, and so its numbers cannot be told any more"

KEPT = 1_000
"""Of what others did alone in earlier transactions, so much is remembered."""


class FirstRank:
    """The part of `script.Runtime` by which code meant for rank 0 is handed on."""

    def __init__(self, own_rank: int) -> None:
        self.own_rank = own_rank
        self.is_deputy: Callable[[], bool] = lambda: False
        self.standing_in: Callable[[str], AbstractContextManager[Any]] = nullcontext
        self.by_itself: Callable[[str], AbstractContextManager[Any]] = nullcontext
        self.supply: Callable[[FrameType], None] = lambda frame: None
        self.first_of_node: Callable[[int], bool] = lambda rank: True  # as far as is known
        self.places: dict[str, Lone] = {}  # of code for rank 0
        self.told: Mapping[str, Any] = {}  # what rank 0 knows that it reads (`shared_values`)
        self.led = False  # this rank has stood in for rank 0
        self.lone = 0  # depth of what is done in the place of rank 0
        self.unclear = False  # whether rank 0 would have drawn what is drawn there
        self.alone = 0  # depth of what this rank does alone by itself
        self.left: set[str] = set()  # places that raised an error
        self.missed: set[str] = set()  # what others do alone, since the last commit point
        self.missed_at: dict[tuple[Any, str], None] = {}  # after which point of ours, and where
        self.last_point: Callable[[], Any] = lambda: None
        self.undecided: set[str] = set()  # choices of rank 0 that were not made here, since then
        self.workshop = Workshop()  # where rank 0 made what it alone has

    def hand_on(self, places: Mapping[str, Lone]) -> None:
        """Learn where a module does something on rank 0 alone."""
        self.places.update(places)
        self.workshop.learn(places)

    def first(self, where: str, sense: bool, result: Any, rank: Any = None) -> Any:
        """`result`, or what it is on rank 0: `sense`. It was told by `rank`, or by a flag."""
        if bool(result) is sense:
            return result
        self.workshop.visit(where, sys._getframe(1))
        if not self.is_deputy():
            self.missed.add(where)
            self.missed_at[self.last_point(), where] = None
            return result
        return sense if self._means_ranks(rank) else result

    def stands_in(self, where: str, sense: bool, result: Any, rank: Any = None) -> bool:
        """Is this not rank 0 (see `first`), but decides in its place what follows?"""
        if bool(result) is sense:
            return False
        self.workshop.visit(where, sys._getframe(1))
        if not self.is_deputy():
            self.undecided.add(where)
            return False
        return self._means_ranks(rank)

    def _means_ranks(self, rank: Any) -> bool:
        return rank is None or str(rank) == str(self.own_rank)

    def begin_anew(self) -> None:
        """At a commit point. What was missed within a microbatch tells in the next step, too."""
        last = self.last_point()
        begun = (last[0], 0) if last is not None else None
        self.missed = {w for p, w in self.missed_at if p is not None and p[::2] == begun}
        self.missed_at = dict(list(self.missed_at.items())[-KEPT:])
        self.undecided.clear()

    def has_done(self, rank: int, places: frozenset[str], since: Any) -> bool:
        """Is all done here right after our point `since` that `rank` does alone at these places?"""
        missed = {where for point, where in self.missed_at if point == since}
        return rank == 0 and not (missed & places if places else missed)

    def apart_from(self, rank: int) -> bool:
        """Would `rank` do nothing of what this one does alone, as first of the world or a node?"""
        return not (self.first_of_node(rank) and self.first_of_node(self.own_rank))

    def leading(self, where: str) -> AbstractContextManager[Any]:
        """Around what rank 0 alone does."""
        if not self.is_deputy():
            return self.by_itself(where)
        self.supply(sys._getframe(1))
        return self.standing_in(where)


class StandingIn:
    """Around what the deputy does in the place of rank 0."""

    def __init__(self, session: "Session", where: str) -> None:
        self._session = session
        self._where = where

    def __enter__(self) -> None:
        from recoverrun.worker.rng.streams import read_streams, restore_streams

        session, runtime = self._session, self._session.runtime
        if not runtime.led:
            session.voice.notice(LEADS)
        runtime.led = True
        if not runtime.lone:
            self._own, runtime.unclear = read_streams(), False
            self._first = _lost(session)
            theirs = None if self._first is None else self._known(self._first)
            if theirs is not None:
                restore_streams(theirs)
            runtime.unclear = theirs is None
        self._began = read_streams()
        runtime.lone += 1

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        from ft_collectives.communicators.errors import InvariantBroken
        from recoverrun.worker.rng.streams import read_streams, restore_streams

        session, runtime = self._session, self._session.runtime
        runtime.lone -= 1
        ended = read_streams()
        moved = ended != self._began
        runtime.unclear |= moved and error is not None  # rank 0 might have drawn more
        if not runtime.lone:
            restore_streams(self._own)
            if moved and not self._follow(ended):
                session.makeup.downgrade(DRAWS)
        # Protects training from code that another rank was meant for, whatever it raises.
        if not isinstance(error, Exception) or isinstance(error, InvariantBroken):
            return False
        if self._where not in runtime.left:
            session.voice.notice(FAILED.format(self._where, error))
        runtime.left.add(self._where)
        return True

    def _known(self, first: "LostRank") -> "Streams | None":
        points = self._session.impersonator.captures.points
        return first.known_at(self._own, points[-1]) if points else None

    def _follow(self, ended: "Streams") -> bool:
        """Rank 0 would have drawn up to there. False if its numbers cannot be told from now on."""
        first = self._first
        if first is None or self._session.runtime.unclear:
            return False
        here = self._session.impersonator.captures.points[-1]
        first.stood_in(here, self._own, self._began, ended)
        return True


def _lost(session: "Session") -> "LostRank | None":
    """Rank 0, followed up to here."""
    from recoverrun.worker.errors import NotReplayable

    actor, makeup = session.impersonator, session.makeup
    if not makeup.exact or not actor.captures.points:
        return None
    makeup.await_legacy(0)
    makeup.absorb()
    first = actor.lost.get(0)
    if first is not None:
        try:
            first.at(actor.captures.points[-1].point, actor.captures.points)
        except NotReplayable:
            return None
    return first


def serve(session: "Session") -> None:
    """From now on the runtime knows who the deputy is."""
    from recoverrun.worker.rank0.shared_values import Supply
    from recoverrun.worker.rng.private_draws import PrivateDraws

    runtime, env = session.runtime, session.env
    points = session.impersonator.captures
    runtime.last_point = lambda: points.points[-1].point if points.points else None
    runtime.is_deputy = lambda: is_deputy(session)
    runtime.supply = Supply(session).supply
    runtime.standing_in = lambda where: StandingIn(session, where)
    runtime.by_itself = lambda where: PrivateDraws(runtime, where)
    if (env.rank - env.local_rank) % env.local_world_size == 0:  # nodes are alike, it seems
        runtime.first_of_node = lambda rank: rank % env.local_world_size == 0


def is_deputy(session: "Session") -> bool:
    """Is this rank the deputy of rank 0?"""
    view, layout, runtime = session.view, session.layout, session.runtime
    if view is None or layout is None or not runtime.active or runtime.acting_rank is not None:
        return False
    if 0 in view.live_ranks or not view.live:
        return False
    _, shard = layout.place(0)
    return layout.replicas[min(view.live)][shard] == session.env.rank


def of_rank_zero(session: "Session", original: property) -> property:
    """A framework's property that says whether this process is rank 0, or speaks for it."""
    get = original.fget
    assert get is not None, "a property that can be read"
    return property(lambda owner: bool(get(owner)) or is_deputy(session), doc=original.__doc__)
