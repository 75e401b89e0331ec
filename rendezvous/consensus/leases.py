"""The times at which effects that others can see are allowed: a lease at each member, granted by
its leader.

Durations go over the wire, never instants: the one who asks counts from when it asked, and by
`timeouts.MARGIN` less, because each clock may be wrong by its rate.
"""

from dataclasses import dataclass, field

from rendezvous.consensus import timeouts
from rendezvous.protocol.register_messages import Pong


class MemberLease:
    """A member's. All times are of its own clock, in seconds."""

    def __init__(self, now: float, *, founded_at: float) -> None:
        """Since `founded_at` at the latest all members know of us; infinitely long ago: never."""
        self.until = float("-inf")
        self.contact_at = founded_at  # of an answer: when it was asked for
        self.followed_at = now  # when there was any sign of a leader

    @property
    def met(self) -> bool:
        """True if all members have known of us before."""
        return self.contact_at > float("-inf")

    def close(self, now: float) -> None:
        """There is another configuration."""
        self.until, self.followed_at = float("-inf"), now

    def meet(self, asked_at: float) -> None:
        """Whoever leads knows since then, or later, that we live, and goes on with us."""
        self.contact_at = max(self.contact_at, asked_at)

    def answer(self, message: Pong) -> None:
        """The leader has answered."""
        until = message.sent_at + message.open_s * (1 - timeouts.MARGIN)
        self.until = max(self.until, until)


@dataclass(slots=True)
class MemberLeases:
    """The leader's: for how long it has granted leases to others."""

    lent: dict[str, float] = field(default_factory=dict)  # leases of this configuration, until when
    owed: dict[str, float] = field(default_factory=dict)  # those of older configurations
    closed_until: float = float("-inf")  # leases that an earlier leader may have granted

    def inherit(self, now: float, lease_s: float = timeouts.LEASE_S) -> None:
        """The leader before us may have granted leases until its own lapsed or it died."""
        self.closed_until = now + lease_s

    def give_back(self, member: str) -> None:
        """Note that a member knows the present configuration, so it uses no older lease."""
        self.owed.pop(member, None)

    def lend(self, member: str, now: float, lease_until: float, *, changing: bool) -> float:
        """For how many seconds `member` may have a lease now."""
        old = any(until > now for until in self.owed.values())
        closed = changing or old or now < self.closed_until
        open_s = 0.0 if closed else max(0.0, lease_until - now)
        # An answer that opens nothing takes nothing back either.
        self.lent[member] = max(now + open_s, self.lent.get(member, now))
        return open_s

    def close(self) -> None:
        """Another configuration follows: its leases begin when these are given back or lapse."""
        for member, until in self.lent.items():
            self.owed[member] = max(until, self.owed.get(member, until))
        self.lent.clear()
