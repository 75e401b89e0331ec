"""What one launcher needs to know while it stands for leader, and while it leads."""

from dataclasses import dataclass, field

from rendezvous.ballots import Ballot
from rendezvous.roll import NO_BALLOT, Roll, quorum


@dataclass(slots=True)
class Bid:
    """One ballot. All times are of the bidder's own clock, in seconds."""

    ballot: Ballot
    base: Roll  # the decided roll whose voters are asked
    begun_at: float
    sent_at: float = float("-inf")  # of what is being repeated until it is answered
    prepared: set[str] = field(default_factory=set)
    found_in: Ballot = NO_BALLOT
    found: Roll | None = None  # the newest that a voter had accepted: it may be decided already
    elected: bool = False  # by a quorum, once; from then on it is not given up for lack of answers
    proposal: Roll | None = None
    accepted: set[str] = field(default_factory=set)
    granted: dict[str, float] = field(default_factory=dict)  # voter -> when we had asked
    led_at: float = float("-inf")
    lent: dict[str, float] = field(default_factory=dict)  # gates of this roll, until when
    loans: dict[str, float] = field(default_factory=dict)  # those of older rolls
    closed_until: float = float("-inf")  # gates that an earlier leader may have opened
    disturbed: bool = False  # a member is fenced by a proposal that nobody pursues any more

    @property
    def ready(self) -> bool:
        """May it propose what follows `base`?"""
        return quorum(self.base.voters, self.prepared)

    def lease_at(self, length_s: float) -> float:
        """Until when a quorum of voters follows nobody else, if each does for `length_s`."""
        asked = sorted((self.granted.get(v, float("-inf")) for v in self.base.voters), reverse=True)
        return asked[len(asked) // 2] + length_s if asked else float("-inf")

    def lend(self, member: str, now: float, lease_until: float) -> float:
        """For how many seconds the gate may be opened to `member` now."""
        old = any(until > now for until in self.loans.values())
        closed = self.proposal is not None or old or now < self.closed_until
        open_s = 0.0 if closed else max(0.0, lease_until - now)
        # An answer that opens nothing takes nothing back either.
        self.lent[member] = max(now + open_s, self.lent.get(member, now))
        return open_s

    def rebase(self, roll: Roll) -> None:
        """`roll` is decided. New voters are asked first: they may have promised or accepted."""
        if roll.voters != self.base.voters:
            self.prepared.clear()
        self.base = roll
        self.proposal, self.found, self.found_in = None, None, NO_BALLOT
        self.accepted.clear()
        self.disturbed = False
        self.sent_at = float("-inf")
        for member, until in self.lent.items():
            self.loans[member] = max(until, self.loans.get(member, until))
        self.lent.clear()
