"""The promises and acceptances of a voter. It knows no clock: leases are for others to keep.

A request to accept e+1 carries e: who accepts it knows that e is decided, so it never forgets a
decision by accepting the next one.
"""

from rendezvous.consensus.configuration import NO_BALLOT, Configuration
from rendezvous.protocol.register_messages import (
    Accept,
    Accepted,
    Ballot,
    ConfigurationChange,
    NewConfiguration,
    Prepare,
    Prepared,
)


class Acceptor:
    """One voter's. `configuration` is the newest that it knows to be decided."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.promised = NO_BALLOT
        self.accepted_in = NO_BALLOT
        self.accepted: Configuration | None = None  # what may follow `configuration`

    def check(self) -> None:
        number = (
            self.accepted.number if self.accepted is not None else self.configuration.number + 1
        )
        assert number > self.configuration.number, (
            f"accepted configuration {number} is decided ({self.configuration})"
        )
        assert self.accepted_in <= self.promised, f"{self.accepted_in} above {self.promised}"

    def learn(self, configuration: Configuration) -> bool:
        """Learn that `configuration` is decided; True if that is news."""
        if configuration.number <= self.configuration.number:
            return False
        self.configuration = configuration
        if self.accepted is not None and self.accepted.number <= configuration.number:
            self.accepted, self.accepted_in = None, NO_BALLOT
        return True

    @property
    def newest(self) -> Configuration:
        """The newest that it knows to be decided, or that may be."""
        return self.configuration if self.accepted is None else self.accepted

    def news(self, number: int) -> NewConfiguration | None:
        """For whoever shows that it knows no configuration above `number`."""
        return (
            NewConfiguration(configuration=self.configuration.plain())
            if number < self.configuration.number
            else None
        )

    def announcements(
        self, configuration: Configuration
    ) -> dict[str, NewConfiguration | ConfigurationChange]:
        """The message to each launcher when `configuration` follows; members know the last one."""
        change, whole = (
            self.configuration.change(configuration),
            NewConfiguration(configuration=configuration.plain()),
        )
        others = (*self.configuration.voters, *configuration.members)  # also a witness that votes
        told: dict[str, NewConfiguration | ConfigurationChange] = dict.fromkeys(others, whole)
        return told | dict.fromkeys(self.configuration.members, whole if change is None else change)

    def changed(self, change: ConfigurationChange) -> Configuration:
        """The newest configuration after `change`, which may be old or not the next one."""
        follows = change.number == self.configuration.number + 1
        return self.configuration.changed(change) if follows else self.configuration

    def refuses(self, ballot: Ballot) -> bool:
        return ballot < self.promised

    def promise(self, message: Prepare) -> Prepared:
        """Accept nothing below its ballot from now on. Its configuration is the newest known."""
        self.promised = message.ballot
        accepted = self.accepted if self.accepted is not None else Configuration(0, 0, ())
        return Prepared(
            ballot=message.ballot,
            number=self.configuration.number,
            accepted_in=self.accepted_in,
            accepted=accepted.plain(),
        )

    def accept(self, message: Accept) -> Accepted:
        """Its base is known to be the newest configuration, and its ballot is not refused."""
        self.promised = self.accepted_in = message.ballot
        self.accepted = Configuration(*message.configuration)
        return Accepted(ballot=message.ballot, number=self.accepted.number)
