"""The coordinator of the job, as one launcher sees it, and the takeover by another one.

It composes the view register, the copy of the store and the memory of what was said, none of which
knows another. Every launcher of a job with several nodes has one; the `CoordinatorHost` is with
that launcher alone whose name leads the present configuration.

Theory of operation. When a configuration with a new leader is decided, every member tells it what
it remembers (`Statement`), and goes on telling until the leader speaks as coordinator. From then on
it takes nothing from the predecessor any more. The leader waits for the statements of all members
of its configuration, and then begins a generation of its own (see `takeover`). A member that leaves
meanwhile makes another configuration, and is not waited for.

Where the statements are of different attempts, a restart was under way that nobody can finish: the
job begins again, without a trace of either.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import assert_never

from recoverrun.launcher.leadership import leadership_records as records
from recoverrun.launcher.leadership import loss_news
from recoverrun.launcher.leadership.acts import Act, CutOff, Departed, Follow, Inquire, TakeOver
from recoverrun.launcher.leadership.handover import Handover, held, standing
from recoverrun.launcher.leadership.own_attempt import OwnAttempt, first_configuration
from recoverrun.launcher.network.frames import NOBODY, Envelope
from rendezvous.consensus.configuration import NOBODY as NO_CONFIGURATION
from rendezvous.consensus.configuration import Configuration
from rendezvous.consensus.etcd_api import job_of
from rendezvous.consensus.etcd_register import LeasedRegister
from rendezvous.consensus.paxos import Register
from rendezvous.consensus.peers import Peers
from rendezvous.consensus.register_events import (
    Admit,
    Cut,
    Elected,
    Enrolled,
    Event,
    Heard,
    OnSilence,
    Part,
    RegisterMessage,
    Request,
    Settled,
    Tick,
    To,
)
from rendezvous.coordinator.recovery_policy import USUAL, RecoveryPolicy
from rendezvous.membership.flapping import FlappingNodes
from rendezvous.protocol.formation_messages import Beat, PlannedLeaves, Start, Strikes
from rendezvous.protocol.messages import ContextBuffer, Message
from rendezvous.protocol.register_messages import Copied, Copy, Statement, Whole
from rendezvous.store.replicated_store import Effect as StoreEffect
from rendezvous.store.replicated_store import ReplicatedStore, Say

RESEND_S = 0.3

OUTSIDE_S = 20.0
"""A launcher with a lost one's place takes part by then, or who gave it that place is lost, too."""

CONTEXT_HOLDERS = 2
"""Launchers beside the coordinator that hold what a worker would leave behind."""


class Leadership:
    """Machine of the launcher `own`."""

    def __init__(
        self,
        *,
        own: str,
        chance: Callable[[], float],
        on_silence: OnSilence = "stop",
        etcd: bool = False,
    ) -> None:
        """`chance` draws from [0, 1): no two launchers may stand for leader at once."""
        self.own = own
        self._etcd = etcd
        self._on_silence = on_silence
        self.leader = self._former = ""  # "": there is no job yet
        self.store = ReplicatedStore(founder=True)
        self._chance = chance
        self._register: Register | LeasedRegister | None = None
        self._policy = USUAL
        self.attempt = OwnAttempt()
        self.flapping_nodes = FlappingNodes()
        self.term = 0  # how often the coordinator has changed, counted from 1
        self._handover = Handover()
        self._warned = False
        self._spoken = False  # the coordinator of this term has spoken to us
        self._state_at = 0.0  # when our statement is due again
        self._outside_until = float("inf")
        self._present: frozenset[str] = frozenset()  # launchers of the attempt that are members
        self._coming: frozenset[str] = frozenset()  # those that are none yet

    # --------------------------------------------------------------------------- the job

    def join(self, start: Start, *, policy: RecoveryPolicy, several: bool, now: float) -> list[Act]:
        """Workers of an attempt are about to be started here.

        Without `several` launchers, now or ever, there is nobody to agree with.
        """
        new = self.attempt.start is None
        self._policy = policy
        self.attempt.join(start)
        self.flapping_nodes.know_members(start)
        if new:
            founding = start.attempt == 0 and not start.succeeds
            if start.succeeds:
                self._outside_until = now + OUTSIDE_S
            self.leader, self._spoken = start.leader or self.own, True
            self.term = 1 if founding else 0
            if not founding:
                self.store = ReplicatedStore(founder=False)
            if several:
                configuration = (
                    first_configuration(start, etcd=self._etcd) if founding else NO_CONFIGURATION
                )
                self._register = self._agreement(configuration, now)
        acts = self._lend_store(now, anew=True)
        members = set(self._register.configuration.members if self._register is not None else ())
        news = [name for name in self.attempt.nodes if name not in members]
        # One is admitted before the next: until then it is not missed.
        self._present, self._coming = frozenset(self.attempt.nodes) & members, frozenset(news)
        if self.leader == self.own:
            acts += [act for name in news for act in self.tell_register(Admit(name), now)]
        return acts

    def _agreement(self, configuration: Configuration, now: float) -> Register | LeasedRegister:
        """The register: by the votes of the launchers, or by what etcd holds."""
        if self._etcd:
            return LeasedRegister(own=self.own, configuration=configuration, now=now)
        return Register(
            own=self.own, configuration=configuration, now=now, on_silence=self._on_silence
        )

    def leave_attempt(self, attempt: int) -> None:
        """Our workers are being ended, for `attempt` to begin."""
        self.attempt.leave(attempt)

    def close(self) -> None:
        """The job is over for us: others go on without us, or are over too."""
        self._register = None

    def absent(self) -> set[str]:
        """The names of nodes that had a place and take no part any more."""
        known = () if self._register is None else self._register.configuration.members
        return self.attempt.absent((self.own, *known))

    # --------------------------------------------------------------------------- what is said

    def said(self, message: Message, now: float) -> list[Act]:
        """A worker of this node said so, or its end was seen."""
        self.attempt.memory.said(message)
        moved = self.attempt.moved(message, self.own, now)
        return [] if moved is None else self.tell_register(moved, now)

    def heard(self, message: Message) -> None:
        """A worker of this node is told so."""
        self.attempt.memory.heard(message)

    def context_holders(self) -> tuple[str, ...]:
        """Launchers that hold what our workers would leave behind, should we be lost."""
        return self.callees()[:CONTEXT_HOLDERS]

    def callees(self) -> tuple[str, ...]:
        """Launchers that we should have a connection to: who may ever lead."""
        if self._register is None:
            return ()
        holders = self._register.configuration.store_holders
        return tuple(name for name in holders if name != self.own)

    @property
    def pings(self) -> bool:
        """True if the register shows our leader that we live."""
        return self._register is not None and self.own in self._register.configuration.members

    def obeys(self, sender: str, message: Message) -> bool:
        """True if this is the word of our coordinator."""
        if sender != self.leader or self._handover.pending:
            return False
        if isinstance(message, Beat) and message.term == self.term:
            self._spoken = True
        return True

    # --------------------------------------------------------------------------- events

    def hear(self, sender: str, message: Message, now: float) -> list[Act]:
        """The acts that follow a message of another launcher that is not for workers or the
        coordinator.
        """
        match message:
            case Copy() | Whole() | Copied():
                acts = _stored(self.store.hear(sender, message, now))
                return [*acts, *self._settle(now)]
            case Statement():
                return self._state(sender, message, now)
            case Strikes() | PlannedLeaves():
                told = loss_news.left(message, self.flapping_nodes, self.attempt)
                self.flapping_nodes.learn(message, now)
                return [*told] if self.leader != self.own else []
            case Start():  # Another launcher has taken a lost one's place.
                news = self.attempt.learn(message)
                admit = news if self.leader == self.own else []
                return [act for name in admit for act in self.tell_register(Admit(name), now)]
            case ContextBuffer(rank=rank):
                if self.attempt.hosts(sender, rank):
                    self.attempt.memory.said(message)
                return []
            case _ if isinstance(message, RegisterMessage):
                return self.tell_register(Heard(sender, message), now)
        return []

    def keep_for_coordinator(self, sender: str, message: Message) -> None:
        """A word for the coordinator that we are about to be."""
        self._handover.keep(sender, message)

    def tick(self, now: float) -> list[Act]:
        """Time passed."""
        acts = self.tell_register(Tick(self._chance()), now)
        if now >= self._outside_until:
            self._outside_until = float("inf")
            words = f"for {OUTSIDE_S:.0f} s no launcher of the job let it in"
            acts.append(CutOff(records.cut_off(words, silent=False)))
        if not self._spoken and self._register is not None and now >= self._state_at:
            acts += self._send_statement(now)
        return acts

    def deadline(self) -> float | None:
        """The time at which `tick` is next needed, or None."""
        if self._register is None:
            return None
        at = min(self._register.deadline(), self._outside_until)
        return at if self._spoken else min(at, self._state_at)

    # --------------------------------------------------------------------------- the register

    def tell_register(self, event: Event, now: float) -> list[Act]:
        """Tell the register of `event`: a launcher is gone or leaves, a witness answers."""
        register = self._register
        if register is None:
            return []
        acts: list[Act] = []
        if isinstance(event, Part):
            others = register.configuration.others(self.own)
            acts += loss_news.leave(self.flapping_nodes, event.node, event.reason, others)
        effects = register.step(event, now)
        # First the others: a follower takes nothing of a leader that it has not heard of.
        acts += [Envelope(e.node, NOBODY, e.message) for e in effects if isinstance(e, To)]
        for effect in effects:
            match effect:
                case To():
                    pass  # is said already
                case Request(serial=serial, call=call):
                    acts.append(Inquire(serial, call, job_of(register.configuration)))
                case Enrolled(configuration=configuration):
                    acts += self._enrolled(configuration, register.peers, now)
                case Elected(ballot=ballot):
                    acts.append(
                        records.elected(self.attempt.name(self.own), ballot[0], etcd=self._etcd)
                    )
                case Cut(reason=reason, silent=silent):
                    acts.append(CutOff(records.cut_off(reason, silent=silent)))
                case _:
                    assert_never(effect)
        gone = self._coming.intersection(register.peers.dead)  # they never come
        if gone and self.leader == self.own and not self._handover.pending:
            self._coming -= gone
            why = loss_news.why_gone(self.flapping_nodes, sorted(gone), gone)
            acts += loss_news.count_losses(self.flapping_nodes, why, now)
            acts += loss_news.tell_losses(
                self.flapping_nodes, gone, register.configuration.others(self.own), now
            )
            acts.append(Departed(tuple(why.items())))
        return acts

    def _enrolled(self, configuration: Configuration, peers: Peers, now: float) -> list[Act]:
        if self.own not in configuration.members:
            self.close()
            words = "this node was silent for so long that the job went on without it"
            return [CutOff(words)]
        self._outside_until = float("inf")
        newly_gone = self._present.difference(configuration.members)
        why = loss_news.why_gone(self.flapping_nodes, sorted(newly_gone), peers.dead)
        self.flapping_nodes.know_members(self.attempt.start)  # others have taken places since
        counted = loss_news.count_losses(self.flapping_nodes, why, now)
        silent_s = {name: s for name, s in peers.silences.items() if name in newly_gone}
        self.attempt.silent_s |= silent_s
        self._present -= newly_gone
        self.attempt.members = configuration.members
        came = self.attempt.nodes.keys() & set(configuration.members) - self._present
        self._present |= came
        self._coming -= came
        acts: list[Act] = self._warnings()
        if configuration.term != self.term:
            acts += self._change_over(configuration, now)
        elif configuration.leader == self.own:
            acts += self._lend_store(now, anew=False)
        if configuration.leader == self.own:
            acts.append(records.decided(configuration, self.attempt.name, etcd=self._etcd))
            acts += [*counted, *loss_news.tell_book(self.flapping_nodes, came, now)]
            if not self._handover.pending and (why or came):
                silences = tuple(silent_s.items())
                acts.append(Departed(tuple(why.items()), tuple(sorted(came)), silences))
        return [*acts, *self._complete(now)]

    def _warnings(self) -> list[Act]:
        """Tell a user of `--on-partition=continue` who was given up as dead."""
        register = self._register
        if register is None or not register.abandoned or self._warned:
            return []
        self._warned = True
        return [records.alone(map(self.attempt.name, sorted(register.abandoned)))]

    def _change_over(self, configuration: Configuration, now: float) -> list[Act]:
        self._former = self.leader
        self.term, self.leader = configuration.term, configuration.leader
        leading = self.leader == self.own
        self._handover.begin(pending=leading)
        self._spoken = leading
        anew = leading and not self.store.holds(self.attempt.number)
        acts = self._lend_store(now, anew=anew)
        if leading:
            for part in self.attempt.statement(self.term):
                self._handover.take(self.own, part)
            return acts
        return [*acts, Follow(self.leader), *self._send_statement(now)]

    # --------------------------------------------------------------------------- the store

    def _lend_store(self, now: float, *, anew: bool) -> list[Act]:
        """Have the store lead or follow, as this launcher does."""
        term = max(1, self.term)
        if self.leader == self.own:
            followers = self.callees()
            return _stored(self.store.lead(self.attempt.number, term, followers, now, anew=anew))
        return _stored(self.store.follow(self.attempt.number, term, self.leader, now))

    def _settle(self, now: float) -> list[Act]:
        register = self._register
        if register is None or register.settled or not self.store.complete:
            return []
        return self.tell_register(Settled(), now)

    # --------------------------------------------------------------------------- statements

    def _send_statement(self, now: float) -> list[Act]:
        self._state_at = now + RESEND_S
        told = loss_news.tell_book(self.flapping_nodes, [self.leader], now)
        parts = self.attempt.statement(self.term)  # The last of them may be what is waited for.
        return [*told, *(Envelope(self.leader, NOBODY, part) for part in parts)]

    def _state(self, sender: str, part: Statement, now: float) -> list[Act]:
        if part.term != self.term or self.leader != self.own:
            return []
        if not self._handover.pending:  # It has not heard that we have begun.
            name = self.attempt.name(self.own)
            beat = Beat(node=name, incarnation=self.own, term=self.term)
            return [Envelope(sender, NOBODY, beat)]
        self.attempt.believe(sender, part)
        self._handover.take(sender, part)
        return self._complete(now)

    def _complete(self, now: float) -> list[Act]:
        """Take over, if everybody has spoken who takes part."""
        register = self._register
        if not self._handover.pending or register is None:
            return []
        statements = self._handover.told(register.configuration.members)
        if statements is None:
            return []
        early = self._handover.end()
        every_part = [part for _, parts in statements for part in parts]
        attempts = {part.attempt for part in every_part}
        whole = len(attempts) == 1 and all(part.begun for part in every_part)
        standings = tuple(
            standing(parts, partial(self.attempt.hosts, sender)) for sender, parts in statements
        )
        vacancy = None
        if whole:
            members = register.configuration.members
            why = loss_news.why_gone(self.flapping_nodes, self.attempt.nodes, register.peers.dead)
            vacancy = self.attempt.vacancy(
                self.own, self.term, policy=self._policy, members=members, why=why
            )
        own, former = map(self.attempt.name, (self.own, self._former))
        why_left, place = self.flapping_nodes.why_left(self._former), self.attempt.place(self.own)
        record = records.taken_over(own, place, self.term, former, why_left)
        kept = held(statements, standings)
        others = register.configuration.others(self.own)
        merged = loss_news.tell_book(self.flapping_nodes, others, now)
        return [record, *merged, TakeOver(vacancy, standings, max(attempts), early, kept)]


def _stored(effects: Iterable[StoreEffect]) -> list[Act]:
    """The messages of the store, as envelopes."""
    return [
        Envelope(effect.to, NOBODY, effect.message) if isinstance(effect, Say) else effect
        for effect in effects
    ]
