"""The view register of a site that has etcd: the other backend, with the same events and effects.

Who holds the key `leader` leads; every configuration is decided by a transaction that demands this
holder and the configuration before (`etcd_api`). So one configuration for each number needs no
votes, and any number of them may be lost, in silence too, as long as etcd and one launcher that has
the job's state are left.

Theory of operation. The holder renews its lease twice a second, and believes in it for as long as
it surely runs: counted from before it asked, and by `timeouts.MARGIN` less. Others ping it as they
do without etcd. Where the leader is silent the first five members, which have the
c10d store, look at the key; when it is gone they stand. A leader whose death is proved need not be
waited for: its lease is revoked.

Without etcd nothing can be decided. As long as nobody is lost nothing has to be: training goes on.

One call is on its way at a time. What became of one that failed is seen in the answer to the next.
"""

from typing import assert_never

from rendezvous.consensus import timeouts
from rendezvous.consensus.configuration import Configuration
from rendezvous.consensus.etcd_api import (
    CALL_S,
    TTL_S,
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
from rendezvous.consensus.leader_contact import LeaderContact
from rendezvous.consensus.peers import Peers
from rendezvous.consensus.register_events import (
    Admit,
    Answered,
    Cut,
    Dead,
    Effect,
    Elected,
    Enrolled,
    Event,
    Heard,
    Moved,
    Part,
    RegisterMessage,
    Request,
    Settled,
    Tick,
    To,
    WitnessSeen,
)
from rendezvous.protocol.register_messages import NewConfiguration, Ping, Pong


class LeasedRegister:
    """Machine of the launcher `own`.

    `configuration` is the first one, or `configuration.NOBODY` for a newcomer.
    """

    def __init__(self, *, own: str, configuration: Configuration, now: float) -> None:
        self.own = own
        self.configuration = configuration
        self.peers = Peers(configuration.members, now)
        self.contact = LeaderContact(now, founded_at=float("-inf"))
        self.settled = own in configuration.store_holders
        self.abandoned: set[str] = set()  # nobody is, without proof
        self.claim = 0  # our create revision of the key `leader`, 0 without
        self.lease, self.leased_until = 0, float("-inf")
        # The content of the key `roll` at `revision`.
        self.stored: Configuration | None = None
        self.revision = 0
        self.proposal: Configuration | None = None
        self.disturbed = False  # a member has accepted a proposal that nobody pursues any more
        self.stand_at = now if configuration.leader == own else float("inf")
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
        self.peers.wake(now)
        match event:
            case Heard(sender=sender, message=message):
                self._receive(sender, message)
            case Answered(serial=serial, answer=answer):
                if serial == self._serial and self._call is not None:
                    call, self._call = self._call, None
                    self._answered(call, answer)
            case Dead(node=node):
                self._declare_dead(node)
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
            case WitnessSeen():
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
        """The time of the next `Tick`."""
        times = [self.beat_at]
        if self._call is not None:
            times.append(self._asked_at + CALL_S)
        elif self._vacant:
            times.append(max(self.stand_at, self.look_at))
        # Never at once: what is due now was done now.
        return max(min(times), self.now + 0.001)

    def check(self) -> None:
        number = self.proposal.number if self.proposal is not None else self.configuration.number
        assert number >= self.configuration.number, f"proposes {number}, knows {self.configuration}"
        assert self.claim == 0 or self.lease, f"claim {self.claim} without a lease"

    def snapshot(self) -> dict[str, object]:
        return {
            "configuration": self.configuration,
            "claim": self.claim,
            "leads": self.leads,
            "undecided": self.undecided,
        }

    @property
    def leads(self) -> bool:
        """True if we coordinate the present configuration, by a claim of ours."""
        return self.claim != 0 and self.configuration.leader == self.own

    @property
    def undecided(self) -> bool:
        """True if we have proposed another configuration: it may be decided yet."""
        return self.proposal is not None and self.proposal.number > self.configuration.number

    def leased(self, now: float) -> bool:
        """True if no other launcher can lead at this moment."""
        return self.leads and now < self.leased_until

    # --------------------------------------------------------------------------- launchers

    def _send(self, node: str, message: RegisterMessage) -> None:
        if node == self.own:
            self._receive(node, message)
        else:
            self._effects.append(To(node, message))

    def _receive(self, sender: str, message: RegisterMessage) -> None:
        self.peers.hear(sender)
        match message:
            case NewConfiguration(configuration=configuration):
                self._learn(Configuration(*configuration))
            case Ping():
                self._ping(sender, message)
            case Pong():
                self._pong(sender, message)
            case _:
                pass  # Ballots: of a launcher that was started without etcd.

    def _learn(self, configuration: Configuration) -> None:
        """`configuration` is decided."""
        if configuration.number <= self.configuration.number:
            return
        self.configuration, self.disturbed = configuration, False
        self.contact.followed_at = self.now
        self.peers.enroll(configuration.members)
        self.stand_at = float("inf")
        if configuration.leader != self.own:
            self.claim = 0
            self.proposal = None
        elif self.proposal is not None and self.proposal.number <= configuration.number:
            self.proposal = None
        self._effects.append(Enrolled(configuration))

    def _beat(self) -> None:
        if self._call is not None and self.now > self._asked_at + CALL_S:
            self._call = None
            self.failure = "no answer"
        if self.now < self.beat_at:
            return
        self.beat_at = self.now + self.peers.heartbeat.beat_s
        if self.own not in self.configuration.members:
            return
        ping = Ping(number=self.configuration.number, sent_at=self.now, undecided=self.undecided)
        others = (
            self.configuration.store_holders
            if self._silent_s > 3 * self.peers.heartbeat.beat_s
            else ()
        )
        for node in sorted({self.configuration.leader, *others}):
            self._send(node, ping)
        self._check_contact()

    def _ping(self, sender: str, message: Ping) -> None:
        if message.number < self.configuration.number:
            self._send(sender, NewConfiguration(configuration=self.configuration.plain()))
        elif message.number > self.configuration.number:
            # It knows more than we do: have it say so.
            self._send(
                sender, Ping(number=self.configuration.number, sent_at=self.now, undecided=False)
            )
        elif self.configuration.leader == self.own:
            self.disturbed = self.disturbed or message.undecided
            self._send(sender, Pong(number=message.number, sent_at=message.sent_at, kept=False))

    def _pong(self, sender: str, message: Pong) -> None:
        if message.number == self.configuration.number and sender == self.configuration.leader:
            if sender != self.own:
                self.contact.followed_at = self.now

    @property
    def _silent_s(self) -> float:
        """For how long there was no sign of a leader."""
        return self.now - max(self.contact.followed_at, self.peers.awake_at)

    def _check_contact(self) -> None:
        """Leave if nobody can lead us. A leader that has nothing to decide needs nobody."""
        idle = self.configuration.leader == self.own and self._draft() is None
        if idle or self.leased(self.now):
            self.contact.followed_at = self.now
        elif self._silent_s > timeouts.FENCE_S and not self.cut:
            self.cut = True
            why = f", and etcd gave no help: {self.failure}" if self.failure else ""
            words = f"no leader has been confirmed for {self._silent_s:.1f} s{why}"
            self._effects.append(Cut(words, silent=False))

    # --------------------------------------------------------------------------- etcd

    @property
    def _eligible(self) -> bool:
        """True if we may lead: with the state of the job and a copy of its store."""
        return self.settled and self.own in self.configuration.store_holders

    @property
    def _vacant(self) -> bool:
        """True if we are a member that may have no leader."""
        if self.own not in self.configuration.members or self.leads:
            return False
        if self.configuration.leader == self.own:
            return True
        return self.stand_at <= self.now or self._silent_s > self.peers.heartbeat.silent_s

    def _declare_dead(self, node: str) -> None:
        self.peers.dead.add(node)
        alive = [name for name in self.configuration.store_holders if name not in self.peers.dead]
        if node == self.configuration.leader and self.own in alive:
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
                timeouts.BEAT_S if self._eligible else self.peers.heartbeat.silent_s
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
                self._lose_claim()
        elif isinstance(call, Revoke):
            self._ask(Look())

    def _lose_claim(self) -> None:
        """The claim is gone: another one may be made."""
        self.claim, self.lease, self.leased_until = 0, 0, float("-inf")
        self.stand_at = self.look_at = self.now

    def _see(self, call: Call, seen: Seen) -> None:
        """Note the content of both keys."""
        before = self.configuration
        self.stored, self.revision = seen.configuration, seen.revision
        if seen.configuration is not None:
            self._learn(seen.configuration)
        if self.claim and seen.claim != self.claim:
            self._lose_claim()
        if isinstance(call, Decide) and seen.done:
            for node in sorted({*before.members, *self.configuration.members} - {self.own}):
                self._send(node, NewConfiguration(configuration=self.configuration.plain()))
        elif isinstance(call, Stand) and seen.done:
            self._take_lead(seen)
        elif isinstance(call, Look) and self._eligible and not self.claim:
            self._approach(seen)

    def _approach(self, seen: Seen) -> None:
        """There is no leader to follow: stand, if the lead is free."""
        if not self._vacant or self.now < self.stand_at < float("inf"):
            return
        if not seen.leader:
            self._ask(Grant(TTL_S))
        elif seen.leader in self.peers.dead:
            self._ask(Revoke(seen.lease))
        elif seen.leader == self.own and seen.lease == self.lease:
            self._take_lead(seen)  # The answer to our standing was lost.

    def _take_lead(self, seen: Seen) -> None:
        if not self._eligible:  # Meanwhile we were left out.
            self._ask(Revoke(self.lease))
            return
        self.claim = seen.claim
        former = self.configuration.leader
        silent = (
            self.now - self.peers.heard_at.get(former, self.now) > self.peers.heartbeat.silent_s
        )
        self.peers.begin(
            self.configuration.members, former if silent and former != self.own else ""
        )
        self._effects.append(Elected((seen.claim, self.own), f"{self.own} leads, in etcd"))

    def _draft(self) -> Configuration | None:
        """The next content of the key `roll`, None if it need not change."""
        out = self.peers.absent(self.own)
        following = self.configuration.following(
            self.own, out, self.peers.admitted, self.configuration.witness
        )
        # A proposal may be decided yet: something has to follow it or take its place.
        if following.members != self.configuration.members or self.undecided or self.disturbed:
            return following
        known = self.stored is not None and self.stored.number >= self.configuration.number
        return None if known or not self.leads else self.configuration
