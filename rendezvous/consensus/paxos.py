"""The view register: who takes part and who leads, agreed among launchers, any of which may die.

One value, the `Configuration`, changed a few times a day. Nothing is kept on disk: a launcher that
starts again is somebody else, and never votes on what its predecessor promised.

Theory of operation. What follows configuration e is decided by a quorum of the voters of e
(multi-Paxos with stable ballots). A request to accept e+1 carries e: who accepts it knows that e is
decided, so it never forgets a decision by accepting the next one. A candidate adopts what a voter
had accepted, because it may be decided. When the voters change, the leader asks the new ones for
their promises before it proposes again.

A voter that follows a leader grants it a lease and refuses all others meanwhile. Durations go over
the wire, never instants: the leader counts from when it asked, and `MARGIN` less than its voters,
because each clock may be wrong by its rate. Members pull: a ping carries the sender's clock; by the
answer the leader has its lease, and goes on with this member.

A decided configuration is acted on at once; nothing waits for a lease of a member. Nobody but the
leader of the newest one finishes anything for the job: a generation needs the reports of all its
ranks, and each launcher hands its workers the words of its own leader alone.

Until the workers of a member are told of e+1 they go on with e, whose steps need the workers of all
members of e. Once all members of e+1 have said where they stand, none of them contributes to e: so
from then on e finishes at most the step in flight.

A launcher whose host refuses connections is dead, without any doubt (`Dead`): its lease ends at
once, and where most voters are dead the members that are left decide, also the last one alone, if
it is certain that no configuration without them was decided (`proved_deaths`). Silence never proves
a death: where it takes the quorum, the rest stops (`Cut`). Only where the user has said that
silence is death, one that hears nobody goes on alone; if others live and do the same, the highest
configuration is kept when they meet, and work is lost.
"""

from collections import deque
from typing import assert_never

from rendezvous.consensus import timeouts
from rendezvous.consensus.acceptor import Acceptor
from rendezvous.consensus.campaign import Campaign
from rendezvous.consensus.configuration import Configuration
from rendezvous.consensus.electorate import Electorate
from rendezvous.consensus.leader_contact import LeaderContact
from rendezvous.consensus.peers import Peers
from rendezvous.consensus.proposer import Proposer
from rendezvous.consensus.proved_deaths import ProvedDeaths
from rendezvous.consensus.register_events import (
    Admit,
    Answered,
    Cut,
    Dead,
    Effect,
    Enrolled,
    Event,
    Heard,
    Moved,
    OnSilence,
    Part,
    RegisterMessage,
    Settled,
    Tick,
    To,
    WitnessSeen,
)
from rendezvous.consensus.voter import Voter
from rendezvous.protocol.heartbeat import FLAP_S, RESENT_WITHIN_S
from rendezvous.protocol.register_messages import (
    Accept,
    Accepted,
    ConfigurationChange,
    Granted,
    Lead,
    NewConfiguration,
    Ping,
    Pong,
    Prepare,
    Prepared,
    Rejected,
)


class Register:
    """Machine of the launcher `own`.

    `configuration` is the first one, or `configuration.NOBODY` for a newcomer.
    """

    def __init__(
        self, *, own: str, configuration: Configuration, now: float, on_silence: OnSilence = "stop"
    ) -> None:
        self.own = own
        self.founders = frozenset(configuration.members)  # whom every member knows of
        self.on_silence = on_silence
        self.abandoned: set[str] = set()  # whom we left behind without any proof
        self.voter = Voter(own, configuration, now)
        self.campaign = Campaign(self)
        self.proved_deaths = ProvedDeaths(self)
        self.contact = LeaderContact(now, founded_at=_founded_at(own, configuration, now))
        self.peers = Peers(configuration.members, now)
        self.ping_at = now
        self.settled = own in configuration.store_holders  # others have nothing to go on with yet
        self.cut = False
        self.now = now
        self._mail: deque[RegisterMessage] = deque()  # to ourselves
        self._effects: list[Effect] = []

    # --------------------------------------------------------------------------- machine

    def step(self, event: Event, now: float) -> list[Effect]:
        """Take one event at monotonic time `now` (seconds)."""
        self.now = now
        if self.peers.wake(now):  # All may have been suspended: the leader speaks soon.
            self.voter.wait_on(now)
        match event:
            case Heard(sender=sender, message=message):
                self._receive(sender, message)
            case Dead(node=node):
                self.proved_deaths.declare_dead(node)
            case Admit(node=node):
                if node not in self.configuration.members:
                    self.peers.admit(node)
            case Part(node=node):
                self.peers.parted.add(node)
            case Settled():
                self.settled = True
            case Moved(nodes=nodes):
                if self.peers.moved(nodes, self.configuration.leader, self.own):
                    self.contact.followed_at = now
                    self.voter.wait_on(now)
            case WitnessSeen(witness=witness):
                self.peers.see_witness(witness)
            case Answered():
                pass  # Nobody was asked.
            case Tick(chance=chance):
                self.voter.chance = chance
                self._beat()
            case _:
                assert_never(event)
        self.deliver()
        self.campaign.run()
        self.deliver()
        self.check()
        effects, self._effects = self._effects, []
        return effects

    def deadline(self) -> float:
        """The time of the next `Tick`."""
        times = [self.ping_at, *self.campaign.due()]
        # Never at once: what is due now was done now.
        return max(min(times), self.now + 0.001)

    def check(self) -> None:
        self.vote.check()
        mine = self.proposer.ballot if self.proposer is not None else self.vote.promised
        promised = self.vote.promised
        assert mine >= promised, f"proposes in {mine} and has promised {promised}"

    def snapshot(self) -> dict[str, object]:
        return {
            "configuration": self.configuration, "promised": self.vote.promised,
            "leads": self.leads, "undecided": self.undecided,
            "accepted": (self.vote.accepted_in, self.vote.accepted),
        }  # fmt: skip

    @property
    def proposer(self) -> Proposer | None:
        """Our knowledge as a candidate or leader, None if we are neither."""
        return self.campaign.proposer

    @property
    def vote(self) -> Acceptor:
        """The promises and acceptances of this launcher."""
        return self.voter.acceptor

    @property
    def configuration(self) -> Configuration:
        """The newest that is known to be decided."""
        return self.vote.configuration

    @property
    def leads(self) -> bool:
        """True if we coordinate the present configuration, with a quorum that follows us."""
        return self.campaign.leads

    @property
    def undecided(self) -> bool:
        """True if we accepted what may follow the configuration: somebody has to pursue it."""
        return self.vote.accepted is not None

    def leased(self, now: float) -> bool:
        """True if no other launcher can lead at this moment."""
        return self.campaign.leased(now)

    # --------------------------------------------------------------------------- plumbing

    def tell(self, effect: Effect) -> None:
        """Have something done after this step."""
        self._effects.append(effect)

    def send(self, node: str, message: RegisterMessage) -> None:
        """Say something to a launcher, or to ourselves."""
        if node == self.own:
            self._mail.append(message)
        else:
            self.tell(To(node, message))

    def deliver(self) -> None:
        """Hear what we have said to ourselves."""
        while self._mail:
            self._receive(self.own, self._mail.popleft())

    def _receive(self, sender: str, message: RegisterMessage) -> None:
        if sender in self.peers.dead and isinstance(message, Prepare | Accept | Lead | Ping):
            self._close_dead_request(message)
            return
        self.peers.hear(sender)
        match message:
            case Prepare():
                self._prepare(sender, message)
            case Prepared():
                if self.proposer is not None:
                    self.proposer.prepared_by(sender, message)
            case Rejected():
                self.campaign.rejected(message)
            case Accept():
                self._accept(sender, message)
            case Accepted():
                if self.proposer is not None:
                    self.proposer.accepted_by(sender, message)
            case NewConfiguration(configuration=configuration):
                self.learn(Configuration(*configuration))
            case ConfigurationChange():
                self.learn(self.vote.changed(message))
                if message.number > self.configuration.number:  # We have missed one before.
                    self._ask(sender)
            case Lead():
                self._follow(sender, message)
            case Granted():
                if self.proposer is not None:
                    self.proposer.granted_by(sender, message)
                self._send_newer(sender, message.number)
            case Ping():
                self._ping(sender, message)
            case Pong():
                self._pong(sender, message)
            case _:
                assert_never(message)

    def _close_dead_request(self, message: Prepare | Accept | Lead | Ping) -> None:
        """A dead launcher's request has come late: nobody waits for the answer, or may follow it.

        A lease that it was granted now would outlive its proof, and hold up those who stand.
        """
        if isinstance(message, Prepare):
            self.learn(Configuration(*message.configuration))
        elif isinstance(message, Accept):
            self.learn(Configuration(*message.base))

    def _send_newer(self, node: str, number: int) -> bool:
        """Tell a node what is decided, as it outlives whoever decided it. True if it knew less."""
        news = self.vote.news(number)
        if news is not None:
            self.send(node, news)
        return news is not None

    def learn(self, configuration: Configuration) -> None:
        """`configuration` is decided."""
        if not self.vote.learn(configuration):
            return
        if configuration.leader != self.own:
            self.voter.wait(self.now)
        self.contact.followed_at = self.now
        self.peers.enroll(configuration.members)
        self.campaign.superseded(configuration)
        self.proved_deaths.recheck()
        self.tell(Enrolled(configuration))
        if self.own in configuration.store_holders:
            self.ping_at = self.now  # Its leader answers soon, and those few could go on alone.

    # --------------------------------------------------------------------------- voting

    def _prepare(self, sender: str, message: Prepare) -> None:
        self.learn(Configuration(*message.configuration))
        answer = self.voter.prepare(sender, message, self.now)
        if isinstance(answer, Prepared):
            self.campaign.give_way(message.ballot)
        self.send(sender, answer)

    def _accept(self, sender: str, message: Accept) -> None:
        self.learn(Configuration(*message.base))
        answer = self.voter.accept(sender, message, self.now)
        if isinstance(answer, Accepted):
            self.campaign.give_way(message.ballot)
        self.send(sender, answer)

    def _follow(self, sender: str, message: Lead) -> None:
        answer = self.voter.follow(sender, message, self.now)
        self.send(sender, answer)
        if isinstance(answer, Granted):
            self._see_leader(sender)
            self.campaign.give_way(message.ballot)
            self._send_newer(sender, message.number)

    def _see_leader(self, node: str) -> None:
        if node != self.own:  # We are no sign of life for ourselves; a lease is.
            self.contact.followed_at = self.now

    # --------------------------------------------------------------------------- the leader

    def _beat(self) -> None:
        if self.now < self.ping_at:
            return
        self.ping_at = self.now + self.peers.heartbeat.beat_s
        for node in sorted(self.abandoned):  # If it lives it must learn that it is not one of us.
            self.send(node, NewConfiguration(configuration=self.configuration.plain()))
        if self.own not in self.configuration.members:
            return
        silent = self.now - self.contact.followed_at > 3 * self.peers.heartbeat.beat_s
        for node in sorted(
            {self.configuration.leader, *(self._asked_in_silence if silent else ())}
        ):
            self._ask(node)
        if self.leased(self.now):
            self.contact.followed_at = self.now
        else:
            self._check_contact(self.now - max(self.contact.followed_at, self.peers.awake_at))

    def _ask(self, node: str) -> None:
        self.send(
            node, Ping(number=self.configuration.number, sent_at=self.now, undecided=self.undecided)
        )

    @property
    def _asked_in_silence(self) -> tuple[str, ...]:
        """The launchers that we ask where the leader is silent."""
        everybody = self.on_silence == "continue"  # has to be silent before we go on alone
        return (*self.configuration.voters, *(self.configuration.members if everybody else ()))

    def _check_contact(self, alone_s: float) -> None:
        """No leader has answered for so long."""
        witness = self.configuration.witness
        with_witness = witness != "" and self.peers.witness_vote(witness, self.own) == witness
        daring = self.on_silence == "continue" and self.settled and not with_witness
        if daring and alone_s > timeouts.ALONE_S:
            others = set(self.configuration.members) - {self.own} - self.peers.dead
            if others <= self.peers.unheard(timeouts.ALONE_S):
                self.abandoned = others
                # Of several who believe to be alone, no two take the same numbers.
                self.go_on_alone(timeouts.LEAP * (1 + self.configuration.members.index(self.own)))
                return
        if alone_s > timeouts.FENCE_S:
            self.give_up(f"no leader has answered for {alone_s:.1f} s", silent=True)

    def _ping(self, sender: str, message: Ping) -> None:
        if self._send_newer(sender, message.number):
            return
        if message.number > self.configuration.number:  # It knows more than we do: have it say so.
            self._ask(sender)
            return
        self.campaign.pinged(sender, message)

    def _pong(self, sender: str, message: Pong) -> None:
        if message.kept and sender != self.own:
            self.contact.meet(message.sent_at)
        if message.number != self.configuration.number or sender != self.configuration.leader:
            return
        self._see_leader(sender)

    # --------------------------------------------------------------------------- losing others

    @property
    def eligible(self) -> bool:
        """True if it may stand for leader."""
        return self.settled and self.own in self.electorate(self.configuration).asked

    def electorate(self, configuration: Configuration) -> Electorate:
        """The launchers that decide what follows."""
        return self.proved_deaths.electorate(configuration)

    def go_on_alone(self, leap: int) -> None:
        self.learn(self.vote.newest.leap(leap, (self.own,)))
        self.voter.follow_itself(self.now)

    def give_up(self, reason: str, *, silent: bool) -> None:
        if not self.cut:
            self.cut = True
            self.tell(Cut(reason, silent))


def _founded_at(own: str, configuration: Configuration, now: float) -> float:
    """The latest time at which its leader began with this first configuration.

    It tells the others when it begins, and its words may be under way for as long as a link flaps.
    """
    if own not in configuration.members:
        return float("-inf")
    return now if own == configuration.leader else now - FLAP_S - RESENT_WITHIN_S
