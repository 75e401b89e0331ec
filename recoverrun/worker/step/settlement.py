"""Carries out what the machine wants at the end of a synchronising backward, until it is applied.

It runs in the script's thread. A view that comes meanwhile ends whatever waits (`Superseded`); the
machine knows it, and wants something else.
"""

from typing import TYPE_CHECKING, assert_never

from ft_collectives.communicators.errors import InvariantBroken, RanksDiffer, Superseded
from ft_collectives.step.step_events import (
    Accumulated,
    Apply,
    Break,
    Compute,
    Differ,
    Effect,
    Reduce,
    Reduced,
    Send,
    Vote,
    Voted,
)

if TYPE_CHECKING:
    from recoverrun.worker.step.driver import Session


class Settling:
    """Of the transactions of a session."""

    def __init__(self, session: "Session") -> None:
        self._session = session

    def run(self) -> None:
        """Until the transaction is applied. Raises what a rank cannot go on with."""
        while not self._carry_out(self._next()):
            pass

    def _next(self) -> Effect:
        session = self._session
        assert session.fabric is not None, "protected"
        with session.changed:
            session.fabric.await_word(lambda: bool(session.agenda), f"transaction {session.step}")
            return session.agenda.popleft()

    def _carry_out(self, effect: Effect) -> bool:
        """Do what the machine wants; True once the step is applied."""
        session = self._session
        try:
            match effect:
                case Compute(identities=identities):
                    for identity in identities:
                        with session.phases.measure("redo"):
                            session.makeup.compute(identity)
                        session.feed(Accumulated(identity=identity))
                case Reduce(generation=generation):
                    self._reduce(generation)
                case Vote(generation=generation, ballot=ballot):
                    self._vote(generation, ballot)
                case Apply():
                    return True
                case Break(invariant=invariant, reason=reason):
                    session.voice.broken(invariant, reason)
                    raise InvariantBroken(invariant, reason)
                case Differ(reason=reason):
                    session.voice.discord(reason)
                    raise RanksDiffer(reason)
                case Send():
                    raise AssertionError("messages leave when they are made")
                case _:
                    assert_never(effect)
        except Superseded:
            pass  # the machine knows the newer view, or will in a moment
        return False

    def _reduce(self, generation: int) -> None:
        session = self._session
        assert session.strategy is not None and session.fabric is not None, "protected"
        session.makeup.tell(generation)
        with session.phases.measure("reduce"):
            for reducer in session.strategy.reducers():
                reducer.finish(generation)
        if generation > 1:
            session.phases.note("rebuild", session.fabric.rebuild_ms)
        session.feed(Reduced(generation=generation))

    def _vote(self, generation: int, ballot: tuple[int, ...]) -> None:
        session = self._session
        assert session.layout is not None, "protected"
        session.vote_group.channel.what = f"the vote on transaction {session.step}"
        with session.phases.measure("vote"):
            tally = session.vote_group.tally(
                generation,
                ballot,
                lambda: session.faults.strike(session.step, "vote"),
                microbatches=len(ballot) // len(session.layout.slots),
                word=session.verification.word(),
                digest=session.alike.word,
            )
        session.verification.hear(tally)
        session.alike.hear(tally)
        session.feed(Voted(generation=generation, counts=tally.counts, taken=tally.taken))
