"""The deputy of a lost rank 0: who does what the script does on rank 0 alone (`firsts`).

It is the first survivor that holds the part of the model which rank 0 held. What it does in the
place of rank 0 leaves no traces in what it is itself: random streams are put back, and iterators of
data are none of those that the ranks compare.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # it imports torch, which only the script does
    from recoverrun.hooks.session import Session

LEADS = "in the place of lost rank 0 from here on: what the script does on rank 0 alone"
FAILED = "in the place of rank 0, {} failed and was left: {!r}"
DRAWS = "what rank 0 does alone draws random numbers, and so its numbers cannot be told any more"


class FirstRank:
    """The part of `script.Runtime` by which code meant for rank 0 is handed on."""

    def __init__(self, own_rank: int) -> None:
        self.own_rank = own_rank
        self.is_deputy: Callable[[], bool] = lambda: False
        self.standing_in: Callable[[str], AbstractContextManager[Any]] = nullcontext
        self.led = False  # this rank has stood in for rank 0
        self.lone = 0  # depth of what is done in the place of rank 0
        self.left: set[str] = set()  # places that raised an error

    def first(self, sense: bool, result: Any, rank: Any = None) -> Any:
        """`result`, or what it is on rank 0: `sense`. It was told by `rank`, or by a flag."""
        if bool(result) is sense or not self.is_deputy():
            return result
        told = rank is None or str(rank) == str(self.own_rank)
        return sense if told else result

    def leading(self, where: str) -> AbstractContextManager[Any]:
        """Around what rank 0 alone does."""
        return self.standing_in(where) if self.is_deputy() else nullcontext()


class StandingIn:
    """Around what the deputy does in the place of rank 0."""

    def __init__(self, session: "Session", where: str) -> None:
        self._session = session
        self._where = where

    def __enter__(self) -> None:
        from recoverrun.hooks import rng

        session = self._session
        if not session.runtime.led:
            session.voice.notice(LEADS)
        session.runtime.led = True
        self._streams = rng.read()
        session.runtime.lone += 1

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        from ft_collectives.faults import InvariantBroken
        from recoverrun.hooks import rng

        session = self._session
        session.runtime.lone -= 1
        if rng.read() != self._streams:
            rng.restore(self._streams)
            session.makeup.downgrade(DRAWS)
        # Protects training from code that another rank was meant for, whatever it raises.
        if not isinstance(error, Exception) or isinstance(error, InvariantBroken):
            return False
        if self._where not in session.runtime.left:
            session.voice.notice(FAILED.format(self._where, error))
        session.runtime.left.add(self._where)
        return True


def serve(session: "Session") -> None:
    """From now on the runtime knows who the deputy is."""
    session.runtime.is_deputy = lambda: is_deputy(session)
    session.runtime.standing_in = lambda where: StandingIn(session, where)


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
