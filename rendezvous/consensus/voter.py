"""The vote of one launcher: what it answers to candidates, and when it may stand itself.

A voter that follows a leader grants it a lease and refuses all others meanwhile. One that has seen
another candidate gives it the time before it stands. All times are of its own clock, in seconds.
"""

from rendezvous.consensus import timeouts
from rendezvous.consensus.acceptor import Acceptor
from rendezvous.consensus.configuration import Configuration
from rendezvous.protocol.register_messages import (
    Accept,
    Accepted,
    Ballot,
    Granted,
    Lead,
    NewConfiguration,
    Prepare,
    Prepared,
    Rejected,
)


class Voter:
    """The vote of the launcher `own`, which begins with `configuration`."""

    def __init__(self, own: str, configuration: Configuration, now: float) -> None:
        self.own = own
        self.acceptor = Acceptor(configuration)
        self.holder = configuration.leader  # whom we granted a lease, until:
        self.hold_until = now + timeouts.LEASE_S if own in configuration.voters else now
        wait_s = timeouts.STAND_LEAST_S + timeouts.STAND_SPREAD_S
        self.stand_at = now if configuration.leader == own else self.hold_until + wait_s
        self.newest_round = 0
        self.chance = 0.5

    @property
    def may_stand_at(self) -> float:
        """The time from which it may stand; a lease that it granted to itself does not bind it."""
        return self.stand_at if self.holder == self.own else max(self.hold_until, self.stand_at)

    def wait(self, now: float) -> None:
        """Stand later, at a random time after the lease that was granted."""
        wait_s = timeouts.STAND_LEAST_S + timeouts.STAND_SPREAD_S * self.chance
        self.stand_at = max(now, self.hold_until) + wait_s

    def wait_on(self, now: float) -> None:
        """The leader is silent and yet at work: stand only a while after its work has stopped."""
        if self.holder != self.own:
            wait_s = timeouts.STAND_LEAST_S + timeouts.STAND_SPREAD_S * self.chance
            self.stand_at = max(self.stand_at, now + wait_s)

    @property
    def followed(self) -> str:
        """The launcher that it has promised last to follow; it may be itself, or "" for nobody."""
        return self.acceptor.promised[1]

    def note(self, ballot: Ballot) -> None:
        """Keep the newest round, to stand in a later one."""
        self.newest_round = max(self.newest_round, ballot[0])

    def prepare(
        self, sender: str, message: Prepare, now: float
    ) -> Prepared | Rejected | NewConfiguration:
        """Return the answer to a candidate whose configuration has been learned."""
        self.note(message.ballot)
        news = self.acceptor.news(message.configuration[0])
        if news is not None:
            return news
        held = now < self.hold_until and sender != self.holder
        if held or self.acceptor.refuses(message.ballot):
            return self._rejected(message.ballot, now)
        self._give_way(sender, now)
        return self.acceptor.promise(message)

    def accept(
        self, sender: str, message: Accept, now: float
    ) -> Accepted | Rejected | NewConfiguration:
        """Return the answer to a proposal whose base has been learned."""
        self.note(message.ballot)
        news = self.acceptor.news(message.base[0])
        if news is not None:
            return news
        if self.acceptor.refuses(message.ballot):
            return self._rejected(message.ballot, now)
        self._give_way(sender, now)
        return self.acceptor.accept(message)

    def follow(self, sender: str, message: Lead, now: float) -> Granted | Rejected:
        """Grant a lease to the leader, unless it is not the newest one."""
        self.note(message.ballot)
        if self.acceptor.refuses(message.ballot):
            return self._rejected(message.ballot, now)
        self.acceptor.promised = message.ballot
        self.holder, self.hold_until = sender, now + timeouts.LEASE_S
        self.wait(now)
        number = self.acceptor.configuration.number
        return Granted(ballot=message.ballot, number=number, sent_at=message.sent_at)

    def release(self, dead: str, now: float) -> None:
        """End a lease that nobody can use any more."""
        if dead == self.holder and now < self.hold_until:
            self.hold_until = now

    def follow_itself(self, now: float) -> None:
        """Be bound to nobody: there is no other voter."""
        self.holder, self.stand_at, self.hold_until = self.own, now, now

    def _give_way(self, sender: str, now: float) -> None:
        """Somebody else is about to lead: give it the time."""
        if sender != self.own:
            self.wait(now)

    def _rejected(self, ballot: Ballot, now: float) -> Rejected:
        hold_s = max(0.0, self.hold_until - now)
        return Rejected(ballot=ballot, promised=self.acceptor.promised, hold_s=hold_s)
