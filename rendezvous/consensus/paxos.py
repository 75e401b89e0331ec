"""The view register: who takes part and who leads, agreed among launchers, any of which may die.

One value, the `Roll`, changed a few times a day. Nothing is kept on disk: a launcher that starts
again is somebody else, and never votes on what its predecessor promised.

Theory of operation. What follows roll e is decided by a quorum of the voters of e (multi-Paxos with
stable ballots). A request to accept e+1 carries e: who accepts it knows that e is decided, so it
never forgets a decision by accepting the next one. A candidate adopts what a voter had accepted,
because it may be decided. When the voters change, the leader asks the new ones for their promises
before it proposes again.

A voter that follows a leader grants it a lease and refuses all others meanwhile. Members pull: a
ping carries the sender's clock, the answer says for how long the *gate* of this roll is open,
counted from then. External effects need an open gate. Each clock may be wrong by its rate, so a
holder counts `MARGIN` less than its grantor. Before the gate of a roll opens, those of older ones
have been given back or have lapsed.

A voter that has accepted e+1 is fenced: it contributes nothing new to e. As every step needs all
members and voters are members, e finishes at most the step in flight.

A launcher whose host refuses connections is dead, without any doubt (`Dead`): its lease ends at
once, and the last one left goes on alone if its leader had answered it a moment before, for then no
roll without it can have been decided. Silence never proves a death: where it takes the quorum, the
rest stops (`Cut`). Only where the user has said that silence is death, one that hears nobody goes
on alone; if others live and do the same, the highest roll is kept when they meet, and work is lost.
"""

from collections import deque
from typing import assert_never

from rendezvous.consensus import timeouts
from rendezvous.consensus.acceptor import Acceptor
from rendezvous.consensus.configuration import EVEN, Roll, quorum
from rendezvous.consensus.leases import Gate
from rendezvous.consensus.peers import Presence
from rendezvous.consensus.proposer import Bid
from rendezvous.consensus.register_events import (
    Admit,
    Answered,
    Attend,
    Council,
    Cut,
    Dead,
    Effect,
    Elected,
    Enrolled,
    Event,
    Heard,
    OnSilence,
    Part,
    Settled,
    Tick,
    To,
)
from rendezvous.protocol.register_messages import (
    Accept,
    Accepted,
    Ballot,
    Granted,
    Lead,
    Ping,
    Pong,
    Prepare,
    Prepared,
    Rejected,
    RollCall,
    RollChange,
)


class Register:
    """Machine of the launcher `own`; `roll` is the first one, or `roll.NOBODY` for a newcomer."""

    def __init__(self, *, own: str, roll: Roll, now: float, on_silence: OnSilence = "stop") -> None:
        self.own = own
        self.on_silence = on_silence
        self.abandoned: set[str] = set()  # whom we left behind without any proof
        self.vote = Acceptor(roll)
        self.holder = roll.leader  # whom we granted a lease, until:
        self.hold_until = now + timeouts.LEASE_S if own in roll.voters else now
        wait_s = timeouts.STAND_LEAST_S + timeouts.STAND_SPREAD_S
        self.stand_at = now if roll.leader == own else self.hold_until + wait_s
        self.bid: Bid | None = None
        self.gate = Gate(now, member=own in roll.members)
        self.presence = Presence(roll.members, now)
        self.newest_round = 0
        self.ping_at = now
        self.chance = 0.5
        self.settled = own in roll.mirrors  # others have nothing to go on with yet
        self.cut = False
        self.now = now
        self._mail: deque[Council] = deque()  # to ourselves
        self._effects: list[Effect] = []

    # --------------------------------------------------------------------------- machine

    def step(self, event: Event, now: float) -> list[Effect]:
        """Take one event at monotonic time `now` (seconds)."""
        self.now = now
        self.presence.wake(now)
        match event:
            case Heard(sender=sender, message=message):
                self._receive(sender, message)
            case Dead(node=node):
                self._bury(node)
            case Admit(node=node):
                if node not in self.roll.members:
                    self.presence.admit(node)
            case Part(node=node):
                self.presence.parted.add(node)
            case Settled():
                self.settled = True
            case Attend(witness=witness):
                self.presence.attend(witness)
            case Answered():
                pass  # Nobody was asked.
            case Tick(chance=chance):
                self.chance = chance
                self._beat()
            case _:
                assert_never(event)
        self._deliver()
        self._campaign()
        self._deliver()
        self.check()
        effects, self._effects = self._effects, []
        return effects

    def deadline(self) -> float:
        """When it next needs a `Tick`."""
        times = [self.ping_at]
        if self.bid is not None:
            waits = not self.bid.ready or self.bid.proposal is not None  # for what may be lost
            times += [self.bid.sent_at + timeouts.RESEND_S] if waits else []
            times += [self.bid.led_at + timeouts.BEAT_S] if self.bid.elected else []
        elif self._eligible:
            times.append(self._may_stand_at)
        # Never at once: what is due now was done now.
        return max(min(times), self.now + 0.001)

    def check(self) -> None:
        self.vote.check()
        mine = self.bid.ballot if self.bid is not None else self.vote.promised
        assert mine >= self.vote.promised, f"bids {mine} and has promised {self.vote.promised}"

    def snapshot(self) -> dict[str, object]:
        return {
            "roll": self.roll, "promised": self.vote.promised, "leads": self.leads,
            "fenced": self.fenced, "accepted": (self.vote.accepted_in, self.vote.accepted),
        }  # fmt: skip

    @property
    def roll(self) -> Roll:
        """The newest that is known to be decided."""
        return self.vote.roll

    @property
    def leads(self) -> bool:
        """Do we coordinate the present roll, with a quorum that follows us?"""
        return self.bid is not None and self.bid.elected and self.roll.leader == self.own

    @property
    def fenced(self) -> bool:
        """We have accepted what follows the roll, so nothing new is contributed to it."""
        return self.vote.accepted is not None

    def may_commit(self, now: float) -> bool:
        """Is the gate of our roll open for effects that others can see?"""
        return self.own in self.roll.members and now < self.gate.until

    def leased(self, now: float) -> bool:
        """Can no other launcher lead at this moment?"""
        return self.leads and self.bid is not None and now < self._lease(self.bid)

    # --------------------------------------------------------------------------- plumbing

    def _send(self, node: str, message: Council) -> None:
        if node == self.own:
            self._mail.append(message)
        else:
            self._effects.append(To(node, message))

    def _deliver(self) -> None:
        while self._mail:
            self._receive(self.own, self._mail.popleft())

    def _receive(self, sender: str, message: Council) -> None:
        self.presence.hear(sender)
        match message:
            case Prepare():
                self._prepare(sender, message)
            case Prepared():
                if self.bid is not None:
                    self.bid.prepared_by(sender, message)
            case Rejected():
                self._rejected(message)
            case Accept():
                self._accept(sender, message)
            case Accepted():
                if self.bid is not None:
                    self.bid.accepted_by(sender, message)
            case RollCall(roll=roll):
                self._learn(Roll(*roll))
            case RollChange():
                self._learn(self.vote.changed(message))
                if message.number > self.roll.number:  # We have missed one before.
                    self._ask(sender)
            case Lead():
                self._follow(sender, message)
            case Granted():
                if self.bid is not None:
                    self.bid.granted_by(sender, message)
                self._enlighten(sender, message.number)
            case Ping():
                self._ping(sender, message)
            case Pong():
                self._pong(sender, message)
            case _:
                assert_never(message)

    def _enlighten(self, node: str, number: int) -> bool:
        """Tell a node that knows less what is decided. A decision outlives whoever made it."""
        news = self.vote.news(number)
        if news is not None:
            self._send(node, news)
        return news is not None

    def _learn(self, roll: Roll) -> None:
        """`roll` is decided."""
        if not self.vote.learn(roll):
            return
        self.gate.close(self.now)
        self.presence.enroll(roll.members)
        if self.bid is not None and self.bid.base.number < roll.number:
            self.bid = None
            self._later()
        self._effects.append(Enrolled(roll))

    # --------------------------------------------------------------------------- voting

    def _prepare(self, sender: str, message: Prepare) -> None:
        base = Roll(*message.roll)
        self._learn(base)
        self._note(message.ballot)
        if self._enlighten(sender, base.number):
            return
        held = self.now < self.hold_until and sender != self.holder
        if held or self.vote.refuses(message.ballot):
            self._reject(sender, message.ballot)
            return
        self._yield(message.ballot)
        self._give_way(sender)
        self._send(sender, self.vote.promise(message))

    def _accept(self, sender: str, message: Accept) -> None:
        self._learn(Roll(*message.base))
        self._note(message.ballot)
        if self._enlighten(sender, message.base[0]):
            return
        if self.vote.refuses(message.ballot):
            self._reject(sender, message.ballot)
            return
        self._yield(message.ballot)
        self._give_way(sender)
        self._send(sender, self.vote.accept(message))

    def _yield(self, ballot: Ballot) -> None:
        if self.bid is not None and self.bid.ballot < ballot:
            self.bid = None  # We could not vote for ourselves any more.

    def _give_way(self, sender: str) -> None:
        """Somebody else is about to lead: give it the time."""
        if sender != self.own:
            self._later()

    def _reject(self, sender: str, ballot: Ballot) -> None:
        hold_s = max(0.0, self.hold_until - self.now)
        self._send(sender, Rejected(ballot=ballot, promised=self.vote.promised, hold_s=hold_s))

    def _follow(self, sender: str, message: Lead) -> None:
        self._note(message.ballot)
        if self.vote.refuses(message.ballot):
            self._reject(sender, message.ballot)
            return
        self._see_leader(sender)
        self._yield(message.ballot)
        self.vote.promised = message.ballot
        self.holder, self.hold_until = sender, self.now + timeouts.LEASE_S
        self._later()
        granted = Granted(ballot=message.ballot, number=self.roll.number, sent_at=message.sent_at)
        self._send(sender, granted)
        self._enlighten(sender, message.number)

    def _see_leader(self, node: str) -> None:
        if node != self.own:  # We are no sign of life for ourselves; a lease is.
            self.gate.followed_at = self.now

    def _note(self, ballot: Ballot) -> None:
        self.newest_round = max(self.newest_round, ballot[0])

    # --------------------------------------------------------------------------- the gate

    def _beat(self) -> None:
        if self.now < self.ping_at:
            return
        self.ping_at = self.now + self.presence.tempo.beat_s
        for node in sorted(self.abandoned):  # If it lives it must learn that it is not one of us.
            self._send(node, RollCall(roll=self.roll.plain()))
        if self.own not in self.roll.members:
            return
        silent = self.now - self.gate.followed_at > 3 * self.presence.tempo.beat_s
        for node in sorted({self.roll.leader, *(self._confidants if silent else ())}):
            self._ask(node)
        if self.leased(self.now):
            self.gate.followed_at = self.now
        else:
            self._despair(self.now - max(self.gate.followed_at, self.presence.awake_at))

    def _ask(self, node: str) -> None:
        self._send(node, Ping(number=self.roll.number, sent_at=self.now, fenced=self.fenced))

    @property
    def _confidants(self) -> tuple[str, ...]:
        """Whom we ask where the leader is silent."""
        everybody = self.on_silence == "continue"  # has to be silent before we go on alone
        return (*self.roll.voters, *(self.roll.members if everybody else ()))

    def _despair(self, alone_s: float) -> None:
        """No leader has answered for so long."""
        witness = self.roll.witness
        seconded = witness != "" and self.presence.seconder(witness, self.own) == witness
        daring = self.on_silence == "continue" and self.settled and not seconded
        if daring and alone_s > timeouts.ALONE_S:
            others = set(self.roll.members) - {self.own} - self.presence.dead
            if others <= self.presence.unheard(timeouts.ALONE_S):
                self.abandoned = others
                # Of several who believe to be alone, no two take the same numbers.
                self._go_on_alone(timeouts.LEAP * (1 + self.roll.members.index(self.own)))
                return
        if alone_s > timeouts.FENCE_S:
            self._give_up(f"no leader has answered for {alone_s:.1f} s", silent=True)

    def _ping(self, sender: str, message: Ping) -> None:
        if self._enlighten(sender, message.number):
            return
        if message.number > self.roll.number:  # It knows more than we do: have it say so.
            self._ask(sender)
            return
        if self.bid is None or not self.leads:
            return
        loans, proposal = self.bid.loans, self.bid.proposal
        loans.give_back(sender)
        self.bid.disturbed = self.bid.disturbed or message.fenced
        open_s = loans.lend(sender, self.now, self._lease(self.bid), changing=proposal is not None)
        going = proposal is not None and sender not in proposal.members
        kept = self.leased(self.now) and not going
        self._send(sender, Pong(
            number=self.roll.number, sent_at=message.sent_at, open_s=open_s, kept=kept
        ))  # fmt: skip

    def _lease(self, bid: Bid) -> float:
        return bid.lease_at(timeouts.LEASE_S * (1 - timeouts.MARGIN))

    def _pong(self, sender: str, message: Pong) -> None:
        if message.number != self.roll.number or sender != self.roll.leader:
            return
        self._see_leader(sender)
        self.gate.answer(message)

    # --------------------------------------------------------------------------- standing

    @property
    def _eligible(self) -> bool:
        return self.settled and self.own in self.roll.voters

    @property
    def _may_stand_at(self) -> float:
        # A lease that we granted to ourselves does not bind us.
        return self.stand_at if self.holder == self.own else max(self.hold_until, self.stand_at)

    def _later(self) -> None:
        wait_s = timeouts.STAND_LEAST_S + timeouts.STAND_SPREAD_S * self.chance
        self.stand_at = max(self.now, self.hold_until) + wait_s

    def _bury(self, node: str) -> None:
        self.presence.dead.add(node)
        if node == self.holder and self.now < self.hold_until:
            self.hold_until = self.now  # Nobody can use this lease any more.
        if node in (self.holder, self.roll.leader) and self._eligible and self.bid is None:
            alive = [voter for voter in self.roll.voters if voter not in self.presence.dead]
            self.stand_at = self.now + timeouts.STAND_NEXT_S * alive.index(self.own)
        others = set(self.roll.members) - {self.own}
        majority = quorum(self.roll.voters, {self.own})
        if self.own in self.roll.members and others <= self.presence.dead and not majority:
            self._survive()

    def _survive(self) -> None:
        """All others are dead: go on alone, if nothing can have been decided without us."""
        known = self.now - self.gate.contact_at <= timeouts.CONTACT_S or self.leased(self.now)
        known = known or self.on_silence == "continue"
        if not known and self.settled and self.roll.witness in self.roll.voters:
            return  # It votes in their place, if it is there.
        if not known or not self.settled:
            words = "all others are dead, and what they had agreed on last is not known"
            self._give_up(words, silent=False)
            return
        self._go_on_alone(timeouts.LEAP)

    def _go_on_alone(self, leap: int) -> None:
        roll = self.roll
        self._learn(Roll(roll.number + leap, roll.tenure + leap, (self.own,)))
        self.holder, self.stand_at, self.hold_until = self.own, self.now, self.now

    def _give_up(self, reason: str, *, silent: bool) -> None:
        if not self.cut:
            self.cut = True
            self._effects.append(Cut(reason, silent))

    def _campaign(self) -> None:
        """Stand, ask, propose, decide and lead, as far as is possible now."""
        bid = self.bid
        if bid is None:
            if not self._eligible or self.now < self._may_stand_at:
                return
            bid = self.bid = Bid((self.newest_round + 1, self.own), self.roll, self.now)
        elif not bid.elected and self.now > bid.begun_at + timeouts.BID_S:
            self.bid = None
            self._later()
            return
        if not bid.ready:
            self._repeat(bid, Prepare(ballot=bid.ballot, roll=bid.base.plain()), bid.prepared)
            self._deliver()
        while self.bid is bid and bid.ready:
            self._elect(bid)
            bid.proposal = bid.proposal or self._draft(bid)
            if bid.proposal is None:
                break
            base, roll = bid.base.plain(), bid.proposal.plain()
            self._repeat(bid, Accept(ballot=bid.ballot, base=base, roll=roll), bid.accepted)
            self._deliver()
            if self.bid is not bid or not quorum(bid.base.voters, bid.accepted):
                break
            self._decide(bid, bid.proposal)
        if self.bid is bid and bid.elected and self.now >= bid.led_at + timeouts.BEAT_S:
            bid.led_at = self.now
            for voter in bid.base.grantors:
                lead = Lead(ballot=bid.ballot, number=self.roll.number, sent_at=self.now)
                self._send(voter, lead)

    def _repeat(self, bid: Bid, message: Prepare | Accept, answered: set[str]) -> None:
        if self.now < bid.sent_at + timeouts.RESEND_S:
            return
        bid.sent_at = self.now
        for voter in bid.base.voters:
            if voter not in answered:
                self._send(voter, message)

    def _rejected(self, message: Rejected) -> None:
        self._note(message.promised)
        bid = self.bid
        if bid is None or message.ballot != bid.ballot:
            return
        # A leader that asks new voters may meet a lease of its predecessor: that will lapse.
        if message.promised > bid.ballot or not bid.elected:
            self.bid = None
            self._later()
            self.stand_at += message.hold_s

    def _elect(self, bid: Bid) -> None:
        if bid.elected:
            return
        bid.elected = True
        bid.loans.inherit(self.now)
        # The lease of another leader has lapsed, or we would not be here.
        lapsed = self.roll.leader if self.roll.leader != self.own else ""
        self.presence.begin(self.roll.members, lapsed)
        followers = ", ".join(sorted(bid.prepared))
        self._effects.append(Elected(bid.ballot, f"{self.own} leads, followed by {followers}"))

    def _draft(self, bid: Bid) -> Roll | None:
        """What should follow the present roll, None if nothing."""
        if bid.found is not None:
            return bid.found
        out, admitted = self.presence.absent(self.own), self.presence.admitted
        quiet = not (out or admitted or bid.disturbed) and self.roll.leader == self.own
        if quiet and len(self.roll.members) not in EVEN:
            return None
        following = self.roll.following(self.own, out, admitted)
        following = self.presence.seconded(following, self.roll.witness, self.own)
        unchanged = following[2:] == self.roll[2:] and not bid.disturbed
        return None if unchanged else following

    def _decide(self, bid: Bid, roll: Roll) -> None:
        told = self.vote.tidings(roll)
        bid.rebase(roll)
        self._learn(roll)
        for node in sorted(told.keys() - {self.own}):
            self._send(node, told[node])
        if self.own not in roll.members:
            self.bid = None
