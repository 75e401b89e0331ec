"""The view register of a site that has etcd: the other backend, with the same events and effects.

Who holds the key `leader` leads; every roll is decided by a transaction that demands this holder
and the roll before (`etcd_api`). So one roll for each number needs no votes, and any number of them
may be lost, in silence too, as long as etcd and one launcher that has the job's state are left.

Theory of operation. The holder renews its lease twice a second. Others ping it as they do without
etcd, and it opens their gates for as long as its lease surely runs: counted from before it asked,
and by `pace.MARGIN` less. Where the leader is silent the first five members, which have the c10d
store, look at the key; when it is gone they stand. A leader whose death is proved need not be
waited for: its lease is revoked. While a proposal is on its way its maker contributes nothing new
to the present roll, of which it is a member; so that roll finishes at most the step in flight.

Without etcd nothing can be decided. As long as nobody is lost nothing has to be: training goes on.

One call is on its way at a time. What became of one that failed is seen in the answer to the next.
"""

from typing import assert_never

from rendezvous.consensus import timeouts
from rendezvous.consensus.configuration import Roll
from rendezvous.consensus.etcd_api import (
    Call,
    Decide,
    Failed,
    Grant,
    Leased,
    Look,
    Renew,
    Revoke,
    Seen,
    Stand,
)
from rendezvous.consensus.leases import Gate, Loans
from rendezvous.consensus.peers import Presence
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
    Part,
    Request,
    Settled,
    Tick,
    To,
)
from rendezvous.protocol.register_messages import Ping, Pong, RollCall

TTL_S = 3
"""Of the leader's lease. etcd grants no less than 1.5 of its election timeouts."""

CALL_S = 2.5
"""A call without an answer for so long has failed."""


class LeasedRegister:
    """Machine of the launcher `own`; `roll` is the first one, or `roll.NOBODY` for a newcomer."""

    def __init__(self, *, own: str, roll: Roll, now: float) -> None:
        self.own = own
        self.roll = roll
        self.presence = Presence(roll.members, now)
        self.gate = Gate(now, member=own in roll.members)
        self.loans = Loans()
        self.settled = own in roll.mirrors
        self.abandoned: set[str] = set()  # nobody is, without proof
        self.claim = 0  # our create revision of the key `leader`, 0 without
        self.lease, self.leased_until = 0, float("-inf")
        self.stored: Roll | None = None  # what the key `roll` held, when its revision was:
        self.revision = 0
        self.proposal: Roll | None = None
        self.disturbed = False  # a member is fenced by a proposal that nobody pursues any more
        self.stand_at = now if roll.leader == own else float("inf")
        self.failure = ""  # of the last call
        self.cut = False
        self.now = self.beat_at = self.renewed_at = now
        self.look_at = self.retry_at = now
        self._call: Call | None = None
        self._serial, self._asked_at = 0, now
        self._effects: list[Effect] = []

    # --------------------------------------------------------------------------- machine

    def step(self, event: Event, now: float) -> list[Effect]:
        """Take one event at monotonic time `now` (seconds)."""
        self.now = now
        self.presence.wake(now)
        match event:
            case Heard(sender=sender, message=message):
                self._receive(sender, message)
            case Answered(serial=serial, answer=answer):
                if serial == self._serial and self._call is not None:
                    call, self._call = self._call, None
                    self._answered(call, answer)
            case Dead(node=node):
                self._bury(node)
            case Admit(node=node):
                if node not in self.roll.members:
                    self.presence.admit(node)
            case Part(node=node):
                self.presence.parted.add(node)
            case Settled():
                self.settled = True
            case Attend():
                pass  # There is no need of a witness.
            case Tick():
                self._beat()
            case _:
                assert_never(event)
        self._pursue()
        self.check()
        effects, self._effects = self._effects, []
        return effects

    def deadline(self) -> float:
        """When it next needs a `Tick`."""
        times = [self.beat_at]
        if self._call is not None:
            times.append(self._asked_at + CALL_S)
        elif self._vacant:
            times.append(max(self.stand_at, self.look_at))
        # Never at once: what is due now was done now.
        return max(min(times), self.now + 0.001)

    def check(self) -> None:
        number = self.proposal.number if self.proposal is not None else self.roll.number
        assert number >= self.roll.number, f"proposes {number}, knows {self.roll}"
        assert self.claim == 0 or self.lease, f"claim {self.claim} without a lease"

    def snapshot(self) -> dict[str, object]:
        return {"roll": self.roll, "claim": self.claim, "leads": self.leads, "fenced": self.fenced}

    @property
    def leads(self) -> bool:
        """Do we coordinate the present roll, by a claim of ours?"""
        return self.claim != 0 and self.roll.leader == self.own

    @property
    def fenced(self) -> bool:
        """We want another roll, so nothing new is contributed to this one."""
        return self.proposal is not None and self.proposal.number > self.roll.number

    def may_commit(self, now: float) -> bool:
        """Is the gate of our roll open for effects that others can see?"""
        return self.own in self.roll.members and now < self.gate.until

    def leased(self, now: float) -> bool:
        """Can no other launcher lead at this moment?"""
        return self.leads and now < self.leased_until

    # --------------------------------------------------------------------------- launchers

    def _send(self, node: str, message: Council) -> None:
        if node == self.own:
            self._receive(node, message)
        else:
            self._effects.append(To(node, message))

    def _receive(self, sender: str, message: Council) -> None:
        self.presence.hear(sender)
        match message:
            case RollCall(roll=roll):
                self._learn(Roll(*roll))
            case Ping():
                self._ping(sender, message)
            case Pong():
                self._pong(sender, message)
            case _:
                pass  # Ballots: of a launcher that was started without etcd.

    def _learn(self, roll: Roll) -> None:
        """`roll` is decided."""
        if roll.number <= self.roll.number:
            return
        self.roll, self.disturbed = roll, False
        self.gate.close(self.now)
        self.loans.close()
        self.presence.enroll(roll.members)
        self.stand_at = float("inf")
        if roll.leader != self.own:
            self.claim = 0
            self.proposal = None
        elif self.proposal is not None and self.proposal.number <= roll.number:
            self.proposal = None
        self._effects.append(Enrolled(roll))

    def _beat(self) -> None:
        if self._call is not None and self.now > self._asked_at + CALL_S:
            self._call = None
            self.failure = "no answer"
        if self.now < self.beat_at:
            return
        self.beat_at = self.now + self.presence.tempo.beat_s
        if self.own not in self.roll.members:
            return
        ping = Ping(number=self.roll.number, sent_at=self.now, fenced=self.fenced)
        others = self.roll.mirrors if self._silent_s > 3 * self.presence.tempo.beat_s else ()
        for node in sorted({self.roll.leader, *others}):
            self._send(node, ping)
        self._despair()

    def _ping(self, sender: str, message: Ping) -> None:
        if message.number < self.roll.number:
            self._send(sender, RollCall(roll=self.roll.plain()))
        elif message.number > self.roll.number:  # It knows more than we do: have it say so.
            self._send(sender, Ping(number=self.roll.number, sent_at=self.now, fenced=False))
        elif self.roll.leader == self.own:
            self.loans.give_back(sender)
            self.disturbed = self.disturbed or message.fenced
            open_s = 0.0
            if self.leads:
                changing = self.proposal is not None
                open_s = self.loans.lend(sender, self.now, self.leased_until, changing=changing)
            pong = Pong(number=message.number, sent_at=message.sent_at, open_s=open_s, kept=False)
            self._send(sender, pong)

    def _pong(self, sender: str, message: Pong) -> None:
        if message.number == self.roll.number and sender == self.roll.leader:
            self.gate.answer(message)
            if sender != self.own:
                self.gate.followed_at = self.now

    @property
    def _silent_s(self) -> float:
        """For how long there was no sign of a leader."""
        return self.now - max(self.gate.followed_at, self.presence.awake_at)

    def _despair(self) -> None:
        """Leave if nobody can lead us. A leader that has nothing to decide needs nobody."""
        idle = self.roll.leader == self.own and self._draft() is None
        if idle or self.leased(self.now):
            self.gate.followed_at = self.now
        elif self._silent_s > timeouts.FENCE_S and not self.cut:
            self.cut = True
            why = f", and etcd gave no help: {self.failure}" if self.failure else ""
            words = f"no leader has been confirmed for {self._silent_s:.1f} s{why}"
            self._effects.append(Cut(words, silent=False))

    # --------------------------------------------------------------------------- etcd

    @property
    def _eligible(self) -> bool:
        """May we lead? Only with the state of the job and a copy of its store."""
        return self.settled and self.own in self.roll.mirrors

    @property
    def _vacant(self) -> bool:
        """Are we a member that may have no leader?"""
        if self.own not in self.roll.members or self.leads:
            return False
        if self.roll.leader == self.own:
            return True
        return self.stand_at <= self.now or self._silent_s > self.presence.tempo.silent_s

    def _bury(self, node: str) -> None:
        self.presence.dead.add(node)
        alive = [name for name in self.roll.mirrors if name not in self.presence.dead]
        if node == self.roll.leader and self.own in alive:
            self.stand_at = self.now + timeouts.STAND_NEXT_S * alive.index(self.own)
            self.look_at = min(self.look_at, self.stand_at)

    def _pursue(self) -> None:
        """Ask etcd for what is to be done next, if anything."""
        if self._call is not None or self.now < self.retry_at:
            return
        if self.claim:
            following = self._draft()
            if following is not None:
                self.proposal = following
                self._ask(Decide(self.claim, self.revision, following))
            elif self.now >= self.renewed_at + timeouts.BEAT_S:
                self._ask(Renew(self.lease))
        elif self._vacant and self.now >= self.look_at:
            self.look_at = self.now + (
                timeouts.BEAT_S if self._eligible else self.presence.tempo.silent_s
            )
            self._ask(Look())

    def _ask(self, call: Call) -> None:
        self._serial += 1
        self._call, self._asked_at = call, self.now
        if isinstance(call, Renew):
            self.renewed_at = self.now
        self._effects.append(Request(self._serial, call))

    def _answered(self, call: Call, answer: Seen | Leased | Failed) -> None:
        match answer:
            case Failed(reason=reason):
                # Perhaps it is done: whatever is asked next shows that.
                self.failure = reason
                self.retry_at = self.now + timeouts.BEAT_S
            case Leased(lease=lease, ttl_s=ttl_s):
                self.failure = ""
                self._lease(call, lease, ttl_s)
            case Seen():
                self.failure = ""
                self._see(call, answer)
            case _:
                assert_never(answer)

    def _lease(self, call: Call, lease: int, ttl_s: float) -> None:
        until = self._asked_at + ttl_s * (1 - timeouts.MARGIN)
        if isinstance(call, Grant):
            self.lease, self.leased_until, self.renewed_at = lease, until, self._asked_at
            self._ask(Stand(lease, self.own))
        elif isinstance(call, Renew) and lease == self.lease:
            if ttl_s > 0:
                self.leased_until = max(self.leased_until, until)
            else:
                self._rise()
        elif isinstance(call, Revoke):
            self._ask(Look())

    def _rise(self) -> None:
        """The claim is gone: another one may be made."""
        self.claim, self.lease, self.leased_until = 0, 0, float("-inf")
        self.stand_at = self.look_at = self.now

    def _see(self, call: Call, seen: Seen) -> None:
        """What both keys hold now."""
        before = self.roll
        self.stored, self.revision = seen.roll, seen.revision
        if seen.roll is not None:
            self._learn(seen.roll)
        if self.claim and seen.claim != self.claim:
            self._rise()
        if isinstance(call, Decide) and seen.done:
            for node in sorted({*before.members, *self.roll.members} - {self.own}):
                self._send(node, RollCall(roll=self.roll.plain()))
        elif isinstance(call, Stand) and seen.done:
            self._take_lead(seen)
        elif isinstance(call, Look) and self._eligible and not self.claim:
            self._approach(seen)

    def _approach(self, seen: Seen) -> None:
        """Nobody leads whom we could follow: is the lead free?"""
        if not self._vacant or self.now < self.stand_at < float("inf"):
            return
        if not seen.leader:
            self._ask(Grant(TTL_S))
        elif seen.leader in self.presence.dead:
            self._ask(Revoke(seen.lease))
        elif seen.leader == self.own and seen.lease == self.lease:
            self._take_lead(seen)  # The answer to our standing was lost.

    def _take_lead(self, seen: Seen) -> None:
        if not self._eligible:  # Meanwhile we were left out.
            self._ask(Revoke(self.lease))
            return
        self.claim = seen.claim
        # The leader before us may have opened gates for as long as its lease could run.
        self.loans.inherit(self.now, TTL_S)
        former = self.roll.leader
        silent = (
            self.now - self.presence.heard_at.get(former, self.now) > self.presence.tempo.silent_s
        )
        self.presence.begin(self.roll.members, former if silent and former != self.own else "")
        self._effects.append(Elected((seen.claim, self.own), f"{self.own} leads, in etcd"))

    def _draft(self) -> Roll | None:
        """What the key `roll` should hold next, None if it need not change."""
        out = self.presence.absent(self.own)
        following = self.roll.following(self.own, out, self.presence.admitted, self.roll.witness)
        # What was proposed may be decided yet: something has to follow it or take its place.
        if following.members != self.roll.members or self.fenced or self.disturbed:
            return following
        known = self.stored is not None and self.stored.number >= self.roll.number
        return None if known or not self.leads else self.roll
