"""Reasons not to believe what is executed as a lost rank. Each is asked before it counts:

- memory: before anything is executed for a rank that was just lost, our own microbatch is executed
  once more; does it come out as it did?
- precedent: where the rank has noted nothing of the transaction, what it had committed last is
  executed again; does it come out as it did?
- indifference: where a collective was met that no proof has met, does another answer give another
  gradient?
- ignorance: what is not known of the rank was shown not to matter; do our own values in its place
  still give the same? In the struck transaction, and with each audit.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from ft_collectives.reduce import Piece, Reducer
from recoverrun.hooks import precedent
from recoverrun.hooks.clones import NotReplayable
from recoverrun.hooks.evidence import Mark
from recoverrun.hooks.impersonate import TALKS
from recoverrun.hooks.lost import parted
from recoverrun.hooks.made import Apart, Made
from recoverrun.hooks.poison import indifferent
from recoverrun.hooks.runtime import Microbatch

if TYPE_CHECKING:
    from recoverrun.hooks.session import Session


class Doubts:
    """Of one survivor. What is asked raises NotReplayable where there is a doubt."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._actor = session.impersonator
        self._known: list[int] = []  # lost ranks, as the last transaction ended
        self._recalled: dict[int, str] = {}  # by lost rank: what came of our own microbatch
        self._shown: dict[int, str] = {}  # by lost rank: what came of its committed one

    def committed(self, lost: list[int]) -> None:
        """A transaction is over, with these ranks lost."""
        self._known = lost

    def memory(self, rank: int) -> None:
        session = self._session
        if rank not in self._recalled:
            assert session.layout is not None, "protected"
            session.remnants.enters((session.layout.slot(session.env.rank), session.step, 0))
            self._recalled[rank] = precedent.disowned(session)
            session.remnants.rests()
        if self._recalled[rank]:
            raise NotReplayable(self._recalled[rank])

    def precedent(self, rank: int, step: int, marks: dict[tuple[int, int], Mark]) -> None:
        """`marks` are what the rank has noted."""
        if rank not in self._shown:
            noted, _ = marks.get((step, 0), (0, 0))
            self._shown[rank] = "" if noted else precedent.disproved(self._session, rank, marks)
        if self._shown[rank]:
            raise NotReplayable(self._shown[rank])

    def indifference(self, made: Made, microbatch: Microbatch) -> None:
        if not self._actor.answered:
            return

        def again() -> list[tuple[Reducer, Piece]]:
            assert made.start is not None, "executed from there"
            with Apart(self._session) as apart:
                made.executed = self._actor.execute(
                    made.rank, made.start, self._session.step, microbatch
                )
                return apart.pieces(carried=not made.identity[1])

        if not indifferent(self._actor, made.pieces, again):
            raise NotReplayable(TALKS)
        self._actor.talked = True

    def ignorance(self, made: Made, microbatch: Microbatch, *, audited: bool) -> None:
        """Shard mates need not lack the same values: they do not ask."""
        session, start, mine = self._session, made.start, microbatch.top.context
        assert start is not None and session.layout is not None, "executed from there"
        asked = audited or sorted(self._actor.lost) != self._known
        if session.layout.shards > 1 or mine is None or not asked:
            return
        own = mine.values
        unknown = [key for key in start.unknown & self._actor.bearing.immaterial if key in own]
        if not unknown:
            return
        values = {**start.context.values, **{key: own[key] for key in unknown}}
        other = replace(start, context=start.context.with_values(values))
        with Apart(session):
            again = self._actor.execute(made.rank, other, session.step, microbatch)
        assert made.executed is not None, "just now"
        if (again.mark, again.door) != (made.executed.mark, made.executed.door):
            raise NotReplayable(parted(sorted(unknown, key=str), "between steps"))
