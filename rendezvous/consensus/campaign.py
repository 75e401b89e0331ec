"""The campaign of one launcher: it stands for leader, asks for promises, proposes and decides.

A candidate asks the voters of the newest configuration that it knows. Elected by a quorum of them,
it first proposes what a voter had accepted, because that may be decided. What is decided becomes
the base of the next proposal. Voters that follow a leader grant it a lease. A leader that hears
no quorum any more says nothing.
"""

from typing import Protocol

from rendezvous.consensus import timeouts
from rendezvous.consensus.configuration import EVEN, Configuration
from rendezvous.consensus.electorate import Electorate
from rendezvous.consensus.leader_contact import LeaderContact
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
    """The interface that a campaign needs of the register of its launcher."""

    own: str
    founders: frozenset[str]
    now: float
    voter: Voter
    peers: Peers
    contact: LeaderContact

    @property
    def configuration(self) -> Configuration:
        """The newest that is known to be decided."""

    @property
    def eligible(self) -> bool:
        """True if it may stand."""

    def electorate(self, configuration: Configuration) -> Electorate:
        """The launchers that decide what follows."""

    def send(self, node: str, message: RegisterMessage) -> None:
        """Say something to a launcher, or to itself."""

    def deliver(self) -> None:
        """Hear what it has said to itself."""

    def learn(self, configuration: Configuration) -> None:
        """`configuration` is decided."""

    def tell(self, effect: Effect) -> None:
        """Have something done."""


class Campaign:
    """The campaign of one launcher; `proposer` is None while it neither stands nor leads."""

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

    def unopposed(self, now: float) -> bool:
        """True if no other launcher can stand at this moment, or can lead."""
        proposer = self.proposer
        opposed = proposer is None or now > proposer.all_followed_at + timeouts.UNOPPOSED_S
        return self.leased(now) or (self.leads and not opposed)

    def established(self, member: str) -> bool:
        """True if we lead, and all members that live know of `member`."""
        dead = self._launcher.peers.dead
        return self.proposer is not None and self.proposer.established(member, dead)

    def due(self) -> list[float]:
        """The times at which something is to be said again, or the launcher may stand."""
        proposer, launcher = self.proposer, self._launcher
        if proposer is None:
            return [launcher.voter.may_stand_at] if launcher.eligible else []
        if self._deaf(proposer):
            return []
        # A message may be lost: repeat it until its answer comes.
        waits = not self._ready(proposer) or proposer.proposal is not None
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
        if message.promised > proposer.ballot and self.leased(self._launcher.now):
            # Whoever stood there has no quorum: ours follows us. It is asked in a newer ballot.
            proposer.renew((voter.newest_round + 1, self._launcher.own))
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
        if self._deaf(proposer):
            launcher.peers.excuse_silence()
            return
        if not self._ready(proposer):
            prepare = Prepare(ballot=proposer.ballot, configuration=proposer.base.plain())
            self._repeat(proposer, prepare, proposer.prepared)
            launcher.deliver()
        while self.proposer is proposer and self._ready(proposer):
            self._elect(proposer)
            if proposer.proposal is None:
                proposer.propose(self._draft(proposer))
            if proposer.proposal is None:
                break
            base, configuration = proposer.base.plain(), proposer.proposal.plain()
            accept = Accept(ballot=proposer.ballot, base=base, configuration=configuration)
            self._repeat(proposer, accept, proposer.accepted)
            launcher.deliver()
            electorate = launcher.electorate(proposer.base)
            if self.proposer is not proposer or not electorate.agrees(proposer.accepted):
                break
            self._decide(proposer, proposer.proposal)
        if self.proposer is proposer:
            self._lead(proposer)

    def _deaf(self, proposer: Proposer) -> bool:
        """True if it leads, and would hear nothing of what it asks for.

        It may be heard all the same. What it proposed to leave out whom it does not hear would be
        accepted, by whoever it leaves out, and adopted by the next leader. What it said to be
        followed would keep the others from standing.
        """
        peers, base = self._launcher.peers, proposer.base
        heard = peers.heard_lately(self._launcher.own, base.witness)
        return proposer.elected and not self._launcher.electorate(base).agrees(heard)

    def _ready(self, proposer: Proposer) -> bool:
        """True if it may propose what follows its base."""
        return self._launcher.electorate(proposer.base).agrees(proposer.prepared)

    def ask_again(self) -> None:
        """Others may be asked now."""
        if self.proposer is not None:
            self.proposer.sent_at = float("-inf")

    def _repeat(self, proposer: Proposer, message: Prepare | Accept, answered: set[str]) -> None:
        now = self._launcher.now
        if now < proposer.sent_at + timeouts.RESEND_S:
            return
        proposer.sent_at = now
        for voter in self._launcher.electorate(proposer.base).asked:
            if voter not in answered:
                self._launcher.send(voter, message)

    def _elect(self, proposer: Proposer) -> None:
        if proposer.elected:
            return
        proposer.elected = True
        own, configuration = self._launcher.own, self._launcher.configuration
        kept = proposer.found is None or own in proposer.found.members
        contact = self._launcher.contact
        if kept and configuration.leader != own and contact.met:
            contact.meet(proposer.begun_at)
        proposer.newcomers = set(configuration.members) - self._launcher.founders
        # The lease of another leader has lapsed, or we would not be here.
        lapsed = configuration.leader if configuration.leader != own else ""
        self._launcher.peers.begin(configuration.members, lapsed)
        followers = ", ".join(sorted(proposer.prepared))
        self._launcher.tell(Elected(proposer.ballot, f"{own} leads, followed by {followers}"))

    def _draft(self, proposer: Proposer) -> Configuration | None:
        """The proposal that should follow the present configuration, None if there is none."""
        voted = self._launcher.electorate(proposer.base).vote(proposer.prepared)
        found = proposer.found
        if found is not None and (voted or proposer.leaps(found.number)):
            return found
        own, peers = self._launcher.own, self._launcher.peers
        present = self._launcher.configuration
        out, admitted = peers.absent(own), peers.admitted
        quiet = not (out or admitted or proposer.disturbed) and present.leader == own
        if quiet and len(present.members) not in EVEN:
            return None
        following = peers.with_witness(present.following(own, out, admitted), present.witness, own)
        unchanged = following[2:] == present[2:] and not proposer.disturbed
        if not voted:  # The dead may have used the next number.
            return following.leap(timeouts.LEAP, following.members)
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
        """A member that knows the present configuration asks whether we lead, and go on with it."""
        launcher, proposer = self._launcher, self.proposer
        if proposer is None or not self.leads:
            return
        proposer.informed.add(sender)
        proposer.disturbed = proposer.disturbed or message.undecided
        # Not our proposal: while we ask in a newer ballot we have none, and yet find it again.
        going = sender not in launcher.voter.acceptor.newest.members
        kept = self.leased(launcher.now) and not going and self.established(sender)
        number = launcher.configuration.number
        launcher.send(sender, Pong(number=number, sent_at=message.sent_at, kept=kept))


def _lease(proposer: Proposer) -> float:
    return proposer.lease_at(timeouts.LEASE_S * (1 - timeouts.MARGIN))
