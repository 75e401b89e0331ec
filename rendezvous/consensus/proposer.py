"""The knowledge of one launcher while it stands for leader, and while it leads."""

from collections.abc import Set
from dataclasses import dataclass, field

from rendezvous.consensus import timeouts
from rendezvous.consensus.configuration import NO_BALLOT, Configuration
from rendezvous.protocol.register_messages import Accepted, Ballot, Granted, Prepared


@dataclass(slots=True)
class Proposer:
    """One ballot. All times are of the proposer's own clock, in seconds."""

    ballot: Ballot
    base: Configuration  # the decided configuration whose voters are asked
    begun_at: float
    sent_at: float = float("-inf")  # of what is being repeated until it is answered
    prepared: set[str] = field(default_factory=set)
    found_in: Ballot = NO_BALLOT
    # The newest that a voter had accepted: it may be decided already.
    found: Configuration | None = None
    elected: bool = False  # by a quorum, once; from then on it is not given up for lack of answers
    proposal: Configuration | None = None
    accepted: set[str] = field(default_factory=set)
    granted: dict[str, float] = field(default_factory=dict)  # voter -> when we had asked
    followed_at: float = float("-inf")  # most voters had granted what we asked for then, or later
    led_at: float = float("-inf")
    disturbed: bool = False  # a member has accepted a proposal that nobody pursues any more
    newcomers: set[str] = field(default_factory=set)  # whom not all members may know of yet
    informed: set[str] = field(default_factory=set)  # members that are known to know the base

    def prepared_by(self, voter: str, message: Prepared) -> None:
        """Note what it had accepted, which may be decided: the newest such configuration is
        proposed again.
        """
        if (message.ballot, message.number) != (self.ballot, self.base.number):
            return
        self.prepared.add(voter)
        number = message.accepted[0]
        follows = number == self.base.number + 1 or self.leaps(number)
        if follows and message.accepted_in > self.found_in:
            self.found_in, self.found = message.accepted_in, Configuration(*message.accepted)

    def leaps(self, number: int) -> bool:
        """True if survivors gave this number: it is far ahead of any that voters give."""
        return number > self.base.number + timeouts.LEAP // 2

    def propose(self, configuration: Configuration | None) -> None:
        """Ask for votes for it, at once."""
        self.proposal, self.sent_at = configuration, float("-inf")

    def accepted_by(self, voter: str, message: Accepted) -> None:
        if self.proposal is not None:
            if (message.ballot, message.number) == (self.ballot, self.proposal.number):
                self.accepted.add(voter)

    def granted_by(self, voter: str, message: Granted) -> None:
        """Note a grant: the voter follows nobody else for the length of a lease, counted from when
        we had asked.
        """
        if message.ballot == self.ballot:
            known = self.granted.get(voter, message.sent_at)
            self.granted[voter] = max(message.sent_at, known)
            self._count()

    def established(self, member: str, dead: Set[str]) -> bool:
        """True if all that live know of `member`: no survivors would decide without asking it."""
        new = member in self.newcomers
        if new and self.informed.issuperset(set(self.base.members) - dead):
            self.newcomers.clear()
        return member not in self.newcomers

    @property
    def all_followed_at(self) -> float:
        """All voters that may stand had granted what we asked for then, or later."""
        return min(self.granted.get(v, float("-inf")) for v in self.base.grantors)

    def lease_at(self, length_s: float) -> float:
        """The time for which a quorum follows nobody else, if each voter does for `length_s`."""
        return self.followed_at + length_s

    def _count(self) -> None:
        asked = sorted((self.granted.get(v, float("-inf")) for v in self.base.voters), reverse=True)
        self.followed_at = asked[len(asked) // 2] if asked else float("-inf")

    def renew(self, ballot: Ballot) -> None:
        """Go on in a newer ballot: what was granted holds, and all promises are asked for anew."""
        self.ballot = ballot
        self.prepared.clear()
        self.accepted.clear()
        self.proposal, self.found, self.found_in = None, None, NO_BALLOT
        self.sent_at = self.led_at = float("-inf")

    def rebase(self, configuration: Configuration) -> None:
        """Take this decided configuration. New voters are asked first: they may have promised or
        accepted.
        """
        if configuration.voters != self.base.voters:
            self.prepared.clear()
        self.newcomers.update(set(configuration.members).difference(self.base.members))
        self.informed.clear()
        self.base = configuration
        self._count()
        self.proposal, self.found, self.found_in = None, None, NO_BALLOT
        self.accepted.clear()
        self.disturbed = False
        self.sent_at = float("-inf")
