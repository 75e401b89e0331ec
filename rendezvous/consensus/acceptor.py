"""What a voter has promised and accepted. It knows no clock: leases are for others to keep.

A request to accept e+1 carries e: who accepts it knows that e is decided, so it never forgets a
decision by accepting the next one.
"""

from rendezvous.consensus.configuration import NO_BALLOT, Roll
from rendezvous.protocol.register_messages import (
    Accept,
    Accepted,
    Ballot,
    Prepare,
    Prepared,
    RollCall,
    RollChange,
)


class Acceptor:
    """One voter's. `roll` is the newest that it knows to be decided."""

    def __init__(self, roll: Roll) -> None:
        self.roll = roll
        self.promised = NO_BALLOT
        self.accepted_in = NO_BALLOT
        self.accepted: Roll | None = None  # what may follow `roll`

    def check(self) -> None:
        number = self.accepted.number if self.accepted is not None else self.roll.number + 1
        assert number > self.roll.number, f"accepted roll {number} is decided ({self.roll})"
        assert self.accepted_in <= self.promised, f"{self.accepted_in} above {self.promised}"

    def learn(self, roll: Roll) -> bool:
        """`roll` is decided. Is that news?"""
        if roll.number <= self.roll.number:
            return False
        self.roll = roll
        if self.accepted is not None and self.accepted.number <= roll.number:
            self.accepted, self.accepted_in = None, NO_BALLOT
        return True

    def news(self, number: int) -> RollCall | None:
        """For whoever shows that it knows no roll above `number`."""
        return RollCall(roll=self.roll.plain()) if number < self.roll.number else None

    def tidings(self, roll: Roll) -> dict[str, RollCall | RollChange]:
        """Whom to tell what, when `roll` follows: members know the one before, and are many."""
        change, whole = self.roll.change(roll), RollCall(roll=roll.plain())
        others = (*self.roll.voters, *roll.members)  # also a witness that votes
        told: dict[str, RollCall | RollChange] = dict.fromkeys(others, whole)
        return told | dict.fromkeys(self.roll.members, whole if change is None else change)

    def changed(self, change: RollChange) -> Roll:
        """The newest roll after `change`, which may be old or not the next one."""
        follows = change.number == self.roll.number + 1
        return self.roll.changed(change) if follows else self.roll

    def refuses(self, ballot: Ballot) -> bool:
        return ballot < self.promised

    def promise(self, message: Prepare) -> Prepared:
        """Accept nothing below its ballot from now on. Its roll is known to be the newest."""
        self.promised = message.ballot
        accepted = self.accepted if self.accepted is not None else Roll(0, 0, ())
        return Prepared(
            ballot=message.ballot,
            number=self.roll.number,
            accepted_in=self.accepted_in,
            accepted=accepted.plain(),
        )

    def accept(self, message: Accept) -> Accepted:
        """Its base is known to be the newest roll, and its ballot is not refused."""
        self.promised = self.accepted_in = message.ballot
        self.accepted = Roll(*message.roll)
        return Accepted(ballot=message.ballot, number=self.accepted.number)
