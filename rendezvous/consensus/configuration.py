"""A configuration: which launchers take part, in an order that says who leads and who votes.

Configurations are numbered and each follows one other. The first member leads. The first members
vote, an odd number of them, so that no half is ever left over: with two launchers one vote decides,
and the loss of the other one is survived. Where a witness votes too, two members and four are as
good as three and five: all of them vote, and the loss of any is survived. A newcomer is appended,
so a voter stays one while it is a member; whoever takes over moves to the front.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from rendezvous.protocol.register_messages import Ballot, ConfigurationChange, ConfigurationFields

VOTERS_MOST = STORE_HOLDERS_MOST = 5

EVEN = (2, 4)
"""With so many members a witness votes too."""

NO_BALLOT: Ballot = (0, "")


class Configuration(NamedTuple):
    """`term` grows with each change of leader: what a leader numbers is unique within it."""

    number: int
    term: int
    members: tuple[str, ...]
    witness: str = ""  # who votes and is no member, "" if there is none

    @property
    def leader(self) -> str:
        return self.members[0] if self.members else ""

    @property
    def voters(self) -> tuple[str, ...]:
        if self.witness and len(self.members) in EVEN:
            return (*self.members, self.witness)
        many = min(VOTERS_MOST, len(self.members))
        return self.members[: many - 1 + many % 2]

    @property
    def grantors(self) -> tuple[str, ...]:
        """The voters that are members: a witness keeps no lease."""
        return tuple(voter for voter in self.voters if voter != self.witness)

    @property
    def store_holders(self) -> tuple[str, ...]:
        """The holders of the c10d store: all members that vote, and with two launchers both."""
        return self.members[:STORE_HOLDERS_MOST]

    def following(
        self, leader: str, out: Collection[str], news: Iterable[str], witness: str = ""
    ) -> "Configuration":
        """The next one: without `out`, with `news`, led by `leader`, else in the same order."""
        gone = {*out, leader}
        rest = [name for name in (*self.members, *news) if name not in gone]
        term = self.term + (leader != self.leader)
        return Configuration(self.number + 1, term, (leader, *rest), witness)

    def others(self, own: str) -> tuple[str, ...]:
        """The members beside `own`."""
        return tuple(name for name in self.members if name != own)

    def leap(self, by: int, members: tuple[str, ...]) -> "Configuration":
        """One that nobody dead can have decided on, so far ahead in numbers and terms."""
        return Configuration(self.number + by, self.term + by, members)

    def change(self, following: "Configuration") -> ConfigurationChange | None:
        """The difference of `following`, if it can be told: None if all of it has to be."""
        before, after = set(self.members), set(following.members)
        change = ConfigurationChange(
            number=following.number,
            leader=following.leader,
            out=tuple(name for name in self.members if name not in after),
            news=tuple(name for name in following.members if name not in before),
        )
        return change if self.changed(change) == following else None

    def changed(self, change: ConfigurationChange) -> "Configuration":
        """The configuration that follows this one."""
        return self.following(change.leader, change.out, change.news, self.witness)

    def plain(self) -> ConfigurationFields:
        """The fields as they go over a wire."""
        return self.number, self.term, self.members, self.witness


NOBODY = Configuration(0, 0, ())
"""What a newcomer knows."""


def quorum(voters: Collection[str], agreeing: Iterable[str]) -> bool:
    """True if most of `voters` agree. Any two quorums of the same voters share one of them."""
    return 2 * len(set(voters).intersection(agreeing)) > len(voters)


def source(standings: Iterable[tuple[int, int, str]]) -> str:
    """The member whose state all begin with; each is (configuration last begun, its step, name).

    The configuration counts before the step: a newcomer may come from an older configuration that
    got further than the one that replaced it, and what it brings was never agreed on.
    """
    begun, step, name = max(standings, key=lambda standing: (standing[0], standing[1]))
    return name
