"""How one launcher comes to lead, and leads: it stands, asks for promises, proposes and decides.

A candidate asks the voters of the newest configuration that it knows. Elected by a quorum of them,
it first proposes what a voter had accepted, because that may be decided. What is decided becomes
the base of the next proposal. Voters that follow a leader grant it a lease; as long as a quorum
does, it grants leases to members.
"""

from typing import Protocol

from rendezvous.consensus import timeouts
from rendezvous.consensus.configuration import EVEN, Configuration, quorum
from rendezvous.consensus.peers import Peers
from rendezvous.consensus.proposer import Proposer
from rendezvous.consensus.register_events import Effect, Elected, RegisterMessage
from rendezvous.consensus.voter import Voter
from rendezvous.protocol.register_messages import (
    Accept,
    Ballot,
    Lead,
    Ping,
    Pong,
    Prepare,
    Rejected,
)


class Launcher(Protocol):
    """What a campaign needs of the register of its launcher."""

    own: str
    now: float
    voter: Voter
    peers: Peers

    @property
    def configuration(self) -> Configuration:
        """The newest that is known to be decided."""

    @property
    def eligible(self) -> bool:
        """True if it may stand."""

    def send(self, node: str, message: RegisterMessage) -> None:
        """Say something to a launcher, or to itself."""

    def deliver(self) -> None:
        """Hear what it has said to itself."""

    def learn(self, configuration: Configuration) -> None:
        """`configuration` is decided."""

    def tell(self, effect: Effect) -> None:
        """Have something done."""


class Campaign:
    """That of one launcher; `proposer` is None while it neither stands nor leads."""

    def __init__(self, launcher: Launcher) -> None:
        self.proposer: Proposer | None = None
        self._launcher = launcher

    @property
    def leads(self) -> bool:
        """True if we coordinate the present configuration, with a quorum that follows us."""
        launcher = self._launcher
        elected = self.proposer is not None and self.proposer.elected
        return elected and launcher.configuration.leader == launcher.own

    def leased(self, now: float) -> bool:
        """True if no other launcher can lead at this moment."""
        return self.leads and self.proposer is not None and now < _lease(self.proposer)

    def due(self) -> list[float]:
        """When something is to be said again, or the launcher may stand."""
        proposer, launcher = self.proposer, self._launcher
        if proposer is None:
            return [launcher.voter.may_stand_at] if launcher.eligible else []
        # What may be lost is waited for.
        waits = not proposer.ready or proposer.proposal is not None
        times = [proposer.sent_at + timeouts.RESEND_S] if waits else []
        return times + ([proposer.led_at + timeouts.BEAT_S] if proposer.elected else [])

    # --------------------------------------------------------------------------- giving up

    def give_way(self, ballot: Ballot) -> None:
        """Our launcher has promised `ballot`."""
        if self.proposer is not None and self.proposer.ballot < ballot:
            self.proposer = None  # We could not vote for ourselves any more.

    def superseded(self, configuration: Configuration) -> None:
        """`configuration` is decided, by us or by another."""
        if self.proposer is not None and self.proposer.base.number < configuration.number:
            self._give_up()

    def rejected(self, message: Rejected) -> None:
        """A voter does not follow us."""
        voter, proposer = self._launcher.voter, self.proposer
        voter.note(message.promised)
        if proposer is None or message.ballot != proposer.ballot:
            return
        # A leader that asks new voters may meet a lease of its predecessor: that will lapse.
        if message.promised > proposer.ballot or not proposer.elected:
            self._give_up()
            voter.stand_at += message.hold_s

    def _give_up(self) -> None:
        self.proposer = None
        self._launcher.voter.wait(self._launcher.now)

    # --------------------------------------------------------------------------- deciding

    def run(self) -> None:
        """Stand, ask, propose, decide and lead, as far as is possible now."""
        launcher, now = self._launcher, self._launcher.now
        proposer = self.proposer
        if proposer is None:
            if not launcher.eligible or now < launcher.voter.may_stand_at:
                return
            proposer = self.proposer = Proposer(
                (launcher.voter.newest_round + 1, launcher.own), launcher.configuration, now
            )
        elif not proposer.elected and now > proposer.begun_at + timeouts.CANDIDATE_S:
            self._give_up()
            return
        if not proposer.ready:
            prepare = Prepare(ballot=proposer.ballot, configuration=proposer.base.plain())
            self._repeat(proposer, prepare, proposer.prepared)
            launcher.deliver()
        while self.proposer is proposer and proposer.ready:
            self._elect(proposer)
            proposer.proposal = proposer.proposal or self._draft(proposer)
            if proposer.proposal is None:
                break
            base, configuration = proposer.base.plain(), proposer.proposal.plain()
            accept = Accept(ballot=proposer.ballot, base=base, configuration=configuration)
            self._repeat(proposer, accept, proposer.accepted)
            launcher.deliver()
            if self.proposer is not proposer or not quorum(proposer.base.voters, proposer.accepted):
                break
            self._decide(proposer, proposer.proposal)
        if self.proposer is proposer:
            self._lead(proposer)

    def _repeat(self, proposer: Proposer, message: Prepare | Accept, answered: set[str]) -> None:
        now = self._launcher.now
        if now < proposer.sent_at + timeouts.RESEND_S:
            return
        proposer.sent_at = now
        for voter in proposer.base.voters:
            if voter not in answered:
                self._launcher.send(voter, message)

    def _elect(self, proposer: Proposer) -> None:
        if proposer.elected:
            return
        proposer.elected = True
        own, configuration = self._launcher.own, self._launcher.configuration
        proposer.member_leases.inherit(self._launcher.now)
        # The lease of another leader has lapsed, or we would not be here.
        lapsed = configuration.leader if configuration.leader != own else ""
        self._launcher.peers.begin(configuration.members, lapsed)
        followers = ", ".join(sorted(proposer.prepared))
        self._launcher.tell(Elected(proposer.ballot, f"{own} leads, followed by {followers}"))

    def _draft(self, proposer: Proposer) -> Configuration | None:
        """What should follow the present configuration, None if nothing."""
        if proposer.found is not None:
            return proposer.found
        own, peers = self._launcher.own, self._launcher.peers
        present = self._launcher.configuration
        out, admitted = peers.absent(own), peers.admitted
        quiet = not (out or admitted or proposer.disturbed) and present.leader == own
        if quiet and len(present.members) not in EVEN:
            return None
        following = peers.with_witness(present.following(own, out, admitted), present.witness, own)
        unchanged = following[2:] == present[2:] and not proposer.disturbed
        return None if unchanged else following

    def _decide(self, proposer: Proposer, configuration: Configuration) -> None:
        launcher = self._launcher
        told = launcher.voter.acceptor.announcements(configuration)
        proposer.rebase(configuration)
        launcher.learn(configuration)
        for node in sorted(told.keys() - {launcher.own}):
            launcher.send(node, told[node])
        if launcher.own not in configuration.members:
            self.proposer = None

    # --------------------------------------------------------------------------- leading

    def _lead(self, proposer: Proposer) -> None:
        """Have the voters grant us a lease, time and again."""
        launcher, now = self._launcher, self._launcher.now
        if not proposer.elected or now < proposer.led_at + timeouts.BEAT_S:
            return
        proposer.led_at = now
        number = launcher.configuration.number
        for voter in proposer.base.grantors:
            launcher.send(voter, Lead(ballot=proposer.ballot, number=number, sent_at=now))

    def pinged(self, sender: str, message: Ping) -> None:
        """A member that knows the present configuration asks for a lease, and whether we lead."""
        launcher, now, proposer = self._launcher, self._launcher.now, self.proposer
        if proposer is None or not self.leads:
            return
        member_leases, proposal = proposer.member_leases, proposer.proposal
        member_leases.give_back(sender)
        proposer.disturbed = proposer.disturbed or message.fenced
        open_s = member_leases.lend(sender, now, _lease(proposer), changing=proposal is not None)
        going = proposal is not None and sender not in proposal.members
        kept = self.leased(now) and not going
        number = launcher.configuration.number
        launcher.send(
            sender, Pong(number=number, sent_at=message.sent_at, open_s=open_s, kept=kept)
        )


def _lease(proposer: Proposer) -> float:
    return proposer.lease_at(timeouts.LEASE_S * (1 - timeouts.MARGIN))
