"""A witness: a vote without a launcher, so that two of them can tell a death from a broken link.

It has no part in the job, cannot stand, and gives no lease: it is a voter that knows no clock. With
two or four members its vote makes the number odd. Nothing here changes the rule that what follows a
configuration needs a quorum of its voters; a witness is one of them, and as any voter it gives one
number to one configuration, whoever asks. It may live in a process or in files: whoever holds its
memory passes the messages in. One that has lost its memory must come back under another name.
"""

import json

from rendezvous.consensus.acceptor import Acceptor
from rendezvous.consensus.configuration import NOBODY, Configuration
from rendezvous.consensus.register_events import RegisterMessage
from rendezvous.protocol.register_messages import (
    Accept,
    Ballot,
    NewConfiguration,
    Ping,
    Prepare,
    Rejected,
)

KEPT = ("roll", "promised", "accepted_in", "accepted")


class DamagedVote(ValueError):
    """The stored vote cannot be read."""


class Witness:
    """Machine of the vote in one job."""

    def __init__(self, vote: Acceptor | None = None) -> None:
        self.vote = vote if vote is not None else Acceptor(NOBODY)

    def hear(self, message: RegisterMessage) -> RegisterMessage | None:
        """The answer to a launcher, if any."""
        answer: RegisterMessage | None = None
        match message:
            case Prepare(configuration=configuration, ballot=ballot):
                no = self._decline(Configuration(*configuration), ballot)
                answer = no if no is not None else self.vote.promise(message)
            case Accept(base=base, ballot=ballot) if message.configuration[0] > base[0]:
                no = self._decline(Configuration(*base), ballot)
                answer = no if no is not None else self.vote.accept(message)
            case NewConfiguration(configuration=configuration):
                self.vote.learn(Configuration(*configuration))
            case Ping(number=number):
                answer = self.vote.news(number)
            case _:
                pass  # Leases are between launchers; what follows nothing is nonsense.
        self.vote.check()
        return answer

    def kept(self) -> str:
        """All that the vote must not forget, as text; equal texts are equal memories."""
        vote = self.vote
        accepted = None if vote.accepted is None else vote.accepted.plain()
        content = (vote.configuration.plain(), vote.promised, vote.accepted_in, accepted)
        return json.dumps(dict(zip(KEPT, content, strict=True)))

    @classmethod
    def restored(cls, text: str) -> "Witness":
        """The vote with that memory. Raises DamagedVote."""
        try:
            content = json.loads(text)
            vote = Acceptor(_configuration(content["roll"]))
            vote.promised, vote.accepted_in = (_ballot(content[name]) for name in KEPT[1:3])
            vote.accepted = (
                None if content["accepted"] is None else _configuration(content["accepted"])
            )
            vote.check()
        except (ValueError, TypeError, KeyError, AssertionError) as error:
            raise DamagedVote(f"{type(error).__name__}: {error}") from error
        return cls(vote)

    def _decline(self, base: Configuration, ballot: Ballot) -> NewConfiguration | Rejected | None:
        """The refusal of this vote to a candidate; None if it gets it."""
        self.vote.learn(base)
        if self.vote.refuses(ballot):
            return Rejected(ballot=ballot, promised=self.vote.promised, hold_s=0.0)
        return self.vote.news(base.number)


def _configuration(fields: list[object]) -> Configuration:
    number, term, members, witness = fields
    texts = isinstance(members, list) and all(isinstance(name, str) for name in members)
    if type(number) is int and type(term) is int and texts and isinstance(witness, str):
        assert isinstance(members, list), "that was asked"
        return Configuration(number, term, tuple(members), witness)
    raise ValueError(f"{fields} is no configuration")


def _ballot(fields: list[object]) -> Ballot:
    number, name = fields
    if type(number) is int and isinstance(name, str):
        return number, name
    raise ValueError(f"{fields} is no ballot")
