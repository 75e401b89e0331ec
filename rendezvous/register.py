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
rest stops (`Cut`).
"""

from collections import deque
from typing import assert_never

from rendezvous.ballots import (
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
)
from rendezvous.bid import Bid
from rendezvous.council import (
    BEAT_S,
    BID_S,
    CONTACT_S,
    FENCE_S,
    LEAP,
    LEASE_S,
    MARGIN,
    RESEND_S,
    STAND_LEAST_S,
    STAND_NEXT_S,
    STAND_SPREAD_S,
    Admit,
    Council,
    Cut,
    Dead,
    Effect,
    Elected,
    Enrolled,
    Event,
    Heard,
    Part,
    Settled,
    Tick,
    To,
)  # fmt: skip
from rendezvous.presence import Presence
from rendezvous.roll import NO_BALLOT, Roll, quorum


class Register:
    """Machine of the launcher `own`; `roll` is the first one, or `roll.NOBODY` for a newcomer."""

    def __init__(self, *, own: str, roll: Roll, now: float) -> None:
        self.own = own
        self.roll = roll
        self.promised = NO_BALLOT
        self.accepted_in = NO_BALLOT
        self.accepted: Roll | None = None  # what may follow `roll`
        self.holder = roll.leader  # whom we granted a lease, until:
        self.hold_until = now + LEASE_S if own in roll.voters else now
        wait_s = STAND_LEAST_S + STAND_SPREAD_S
        self.stand_at = now if roll.leader == own else self.hold_until + wait_s
        self.bid: Bid | None = None
        self.gate_until = float("-inf")
        self.contact_at = now if own in roll.members else float("-inf")  # of an answer: when asked
        self.followed_at = now  # when there was any sign of a leader
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
            times += [self.bid.sent_at + RESEND_S] if self._repeats else []
            times += [self.bid.led_at + BEAT_S] if self.bid.elected else []
        elif self._eligible:
            times.append(self._may_stand_at)
        # Never at once: what is due now was done now.
        return max(min(times), self.now + 0.001)

    def check(self) -> None:
        number = self.accepted.number if self.accepted is not None else self.roll.number + 1
        assert number > self.roll.number, f"accepted roll {number} is decided ({self.roll})"
        assert self.accepted_in <= self.promised, f"{self.accepted_in} above {self.promised}"
        mine = self.bid.ballot if self.bid is not None else self.promised
        assert mine >= self.promised, f"bids {mine} and has promised {self.promised}"

    def snapshot(self) -> dict[str, object]:
        return {
            "roll": self.roll, "promised": self.promised, "leads": self.leads,
            "fenced": self.fenced, "accepted": (self.accepted_in, self.accepted),
        }  # fmt: skip

    @property
    def leads(self) -> bool:
        """Do we coordinate the present roll, with a quorum that follows us?"""
        bid = self.bid
        return bid is not None and bid.elected and self.roll.leader == self.own

    @property
    def fenced(self) -> bool:
        """We have accepted what follows the roll, so nothing new is contributed to it."""
        return self.accepted is not None

    def may_commit(self, now: float) -> bool:
        """Is the gate of our roll open for effects that others can see?"""
        return self.own in self.roll.members and now < self.gate_until

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
                self._prepared(sender, message)
            case Rejected():
                self._rejected(message)
            case Accept():
                self._accept(sender, message)
            case Accepted(ballot=ballot, number=number):
                bid = self.bid
                if bid is not None and bid.proposal is not None:
                    if (ballot, number) == (bid.ballot, bid.proposal.number):
                        bid.accepted.add(sender)
            case RollCall(roll=roll):
                self._learn(Roll(*roll))
            case Lead():
                self._follow(sender, message)
            case Granted(ballot=ballot, sent_at=sent_at, number=number):
                if self.bid is not None and ballot == self.bid.ballot:
                    known = self.bid.granted.get(sender, sent_at)
                    self.bid.granted[sender] = max(sent_at, known)
                self._enlighten(sender, number)
            case Ping():
                self._ping(sender, message)
            case Pong():
                self._pong(sender, message)
            case _:
                assert_never(message)

    def _enlighten(self, node: str, number: int) -> bool:
        """Tell a node that knows less what is decided. A decision outlives whoever made it."""
        if number >= self.roll.number:
            return False
        self._send(node, RollCall(roll=self.roll.plain()))
        return True

    def _learn(self, roll: Roll) -> None:
        """`roll` is decided."""
        if roll.number <= self.roll.number:
            return
        self.roll = roll
        if self.accepted is not None and self.accepted.number <= roll.number:
            self.accepted, self.accepted_in = None, NO_BALLOT
        self.gate_until = float("-inf")
        self.presence.enroll(roll.members)
        self.followed_at = self.now
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
        if held or message.ballot < self.promised:
            self._reject(sender, message.ballot)
            return
        self._promise(message.ballot)
        self._give_way(sender)
        accepted = self.accepted if self.accepted is not None else Roll(0, 0, ())
        self._send(sender, Prepared(
            ballot=message.ballot, number=base.number, accepted_in=self.accepted_in,
            accepted=accepted.plain(),
        ))  # fmt: skip

    def _accept(self, sender: str, message: Accept) -> None:
        roll = Roll(*message.roll)
        self._learn(Roll(*message.base))
        self._note(message.ballot)
        if self._enlighten(sender, roll.number - 1):
            return
        if message.ballot < self.promised:
            self._reject(sender, message.ballot)
            return
        self._promise(message.ballot)
        self.accepted_in, self.accepted = message.ballot, roll
        self._give_way(sender)
        self._send(sender, Accepted(ballot=message.ballot, number=roll.number))

    def _promise(self, ballot: Ballot) -> None:
        self.promised = ballot
        if self.bid is not None and self.bid.ballot < ballot:
            self.bid = None  # We could not vote for ourselves any more.

    def _give_way(self, sender: str) -> None:
        """Somebody else is about to lead: give it the time."""
        if sender != self.own:
            self._later()

    def _reject(self, sender: str, ballot: Ballot) -> None:
        hold_s = max(0.0, self.hold_until - self.now)
        self._send(sender, Rejected(ballot=ballot, promised=self.promised, hold_s=hold_s))

    def _follow(self, sender: str, message: Lead) -> None:
        self._note(message.ballot)
        if message.ballot < self.promised:
            self._reject(sender, message.ballot)
            return
        self._see_leader(sender)
        self._promise(message.ballot)
        self.holder, self.hold_until = sender, self.now + LEASE_S
        self._later()
        granted = Granted(ballot=message.ballot, number=self.roll.number, sent_at=message.sent_at)
        self._send(sender, granted)
        self._enlighten(sender, message.number)

    def _see_leader(self, node: str) -> None:
        if node != self.own:  # We are no sign of life for ourselves; a lease is.
            self.followed_at = self.now

    def _note(self, ballot: Ballot) -> None:
        self.newest_round = max(self.newest_round, ballot[0])

    # --------------------------------------------------------------------------- the gate

    def _beat(self) -> None:
        if self.now < self.ping_at:
            return
        self.ping_at = self.now + BEAT_S
        if self.own not in self.roll.members:
            return
        ping = Ping(number=self.roll.number, sent_at=self.now, fenced=self.fenced)
        silent = self.now - self.followed_at > 3 * BEAT_S  # then voters may know of another leader
        for node in sorted({self.roll.leader, *(self.roll.voters if silent else ())}):
            self._send(node, ping)
        alone_s = self.now - max(self.followed_at, self.presence.awake_at)
        if alone_s > FENCE_S and not self.leased(self.now):
            self._give_up(f"no leader has answered for {alone_s:.1f} s")

    def _ping(self, sender: str, message: Ping) -> None:
        if self._enlighten(sender, message.number):
            return
        if message.number > self.roll.number:  # It knows more than we do: have it say so.
            self._send(sender, Ping(number=self.roll.number, sent_at=self.now, fenced=False))
            return
        if self.bid is None or not self.leads:
            return
        self.bid.loans.pop(sender, None)
        self.bid.disturbed = self.bid.disturbed or message.fenced
        open_s = self.bid.lend(sender, self.now, self._lease(self.bid))
        going = self.bid.proposal is not None and sender not in self.bid.proposal.members
        kept = self.leased(self.now) and not going
        self._send(sender, Pong(
            number=self.roll.number, sent_at=message.sent_at, open_s=open_s, kept=kept
        ))  # fmt: skip

    def _lease(self, bid: Bid) -> float:
        return bid.lease_at(LEASE_S * (1 - MARGIN))

    def _pong(self, sender: str, message: Pong) -> None:
        if message.number != self.roll.number or sender != self.roll.leader:
            return
        self._see_leader(sender)
        if message.kept:
            self.contact_at = max(self.contact_at, message.sent_at)
        until = message.sent_at + message.open_s * (1 - MARGIN)
        self.gate_until = max(self.gate_until, until)

    # --------------------------------------------------------------------------- standing

    @property
    def _eligible(self) -> bool:
        return self.settled and self.own in self.roll.voters

    @property
    def _may_stand_at(self) -> float:
        # A lease that we granted to ourselves does not bind us.
        return self.stand_at if self.holder == self.own else max(self.hold_until, self.stand_at)

    @property
    def _repeats(self) -> bool:
        """Does the bid wait for an answer that may be lost?"""
        return self.bid is not None and (not self.bid.ready or self.bid.proposal is not None)

    def _later(self) -> None:
        wait_s = STAND_LEAST_S + STAND_SPREAD_S * self.chance
        self.stand_at = max(self.now, self.hold_until) + wait_s

    def _bury(self, node: str) -> None:
        self.presence.dead.add(node)
        if node == self.holder and self.now < self.hold_until:
            self.hold_until = self.now  # Nobody can use this lease any more.
        if node in (self.holder, self.roll.leader) and self._eligible and self.bid is None:
            alive = [voter for voter in self.roll.voters if voter not in self.presence.dead]
            self.stand_at = self.now + STAND_NEXT_S * alive.index(self.own)
        others = set(self.roll.members) - {self.own}
        majority = quorum(self.roll.voters, {self.own})
        if self.own in self.roll.members and others <= self.presence.dead and not majority:
            self._survive()

    def _survive(self) -> None:
        """All others are dead: go on alone, if nothing can have been decided without us."""
        known = self.now - self.contact_at <= CONTACT_S or self.leased(self.now)
        if not known or not self.settled:
            self._give_up("all others are dead, and what they had agreed on last is not known")
            return
        roll = self.roll
        self._learn(Roll(roll.number + LEAP, roll.tenure + LEAP, (self.own,)))
        self.stand_at = self.hold_until = self.now

    def _give_up(self, reason: str) -> None:
        if not self.cut:
            self.cut = True
            self._effects.append(Cut(reason))

    def _campaign(self) -> None:
        """Stand, ask, propose, decide and lead, as far as is possible now."""
        bid = self.bid
        if bid is None:
            if not self._eligible or self.now < self._may_stand_at:
                return
            bid = self.bid = Bid((self.newest_round + 1, self.own), self.roll, self.now)
        elif not bid.elected and self.now > bid.begun_at + BID_S:
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
        if self.bid is bid and bid.elected and self.now >= bid.led_at + BEAT_S:
            bid.led_at = self.now
            for voter in bid.base.voters:
                lead = Lead(ballot=bid.ballot, number=self.roll.number, sent_at=self.now)
                self._send(voter, lead)

    def _repeat(self, bid: Bid, message: Prepare | Accept, answered: set[str]) -> None:
        if self.now < bid.sent_at + RESEND_S:
            return
        bid.sent_at = self.now
        for voter in bid.base.voters:
            if voter not in answered:
                self._send(voter, message)

    def _prepared(self, sender: str, message: Prepared) -> None:
        bid = self.bid
        if bid is None or (message.ballot, message.number) != (bid.ballot, bid.base.number):
            return
        bid.prepared.add(sender)
        follows = message.accepted[0] == bid.base.number + 1
        if follows and message.accepted_in > bid.found_in:
            bid.found_in, bid.found = message.accepted_in, Roll(*message.accepted)
        if bid.ready and bid.proposal is None:
            bid.sent_at = float("-inf")

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
        # The leader before us may have opened gates until its lease lapsed or it died.
        bid.closed_until = self.now + LEASE_S
        # The lease of another leader has lapsed, or we would not be here.
        lapsed = self.roll.leader if self.roll.leader != self.own else ""
        self.presence.begin(self.roll.members, lapsed)
        followers = ", ".join(sorted(bid.prepared))
        self._effects.append(Elected(bid.ballot, f"{self.own} leads, followed by {followers}"))

    def _draft(self, bid: Bid) -> Roll | None:
        """What should follow the present roll, None if nothing."""
        if bid.found is not None:
            return bid.found
        out = self.presence.absent(self.own)
        following = self.roll.following(self.own, out, self.presence.admitted)
        unchanged = following.members == self.roll.members and not bid.disturbed
        return None if unchanged else following

    def _decide(self, bid: Bid, roll: Roll) -> None:
        told = sorted({*self.roll.members, *roll.members} - {self.own})
        bid.rebase(roll)
        self._learn(roll)
        for node in told:
            self._send(node, RollCall(roll=roll.plain()))
        if self.own not in roll.members:
            self.bid = None
