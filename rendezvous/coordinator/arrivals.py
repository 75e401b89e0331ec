"""The way of a lost replica back while the others train: ready, invited, a member.

Theory of operation. Each process of a lost replica that was started again (`revivals`) runs alone
up to its loop, and says that it is *ready*. When a whole replica is, and nothing else is going on,
members are *invited* to stop. They count in the vote of a step whether all of them know of it;
where all do, all stop at the top of the next step and say that they are *held*. Only when all are
held at one step does a view begin that has the newcomers: nothing of the step is done, so nothing
has to be gathered. An invitation ends with any newer view; who is ready stays so.

A newcomer that does not live up to it is lost like any other rank: all others wait for its vote.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rendezvous.coordinator.first_step import FirstStep
from rendezvous.coordinator.losses import Loss
from rendezvous.coordinator.members import Membership
from rendezvous.coordinator.recovery_policy import RecoveryPolicy
from rendezvous.coordinator.revivals import Revivals
from rendezvous.protocol.arrival_messages import Arrival, Held
from rendezvous.protocol.effects import Effect, ToRank
from rendezvous.protocol.layout import Layout
from rendezvous.protocol.records import Json, Record

INVITE_AGAIN_S, INVITE_RANKS = 1.0, 1000
"""Who is not held is invited again: messages may be lost. So many members within that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """These take part from now on: all members stand at the top of `step`."""

    slots: tuple[int, ...]
    ranks: tuple[int, ...]
    step: int
    records: tuple[Record, ...]


@dataclass(slots=True, kw_only=True)
class ArrivalVerdict:
    """The consequences for the job: one of the last four at most."""

    effects: list[Effect] = field(default_factory=list)
    comes: Return | None = None
    meet: str = ""  # why members that stand still must go on without newcomers
    losses: list[Loss] = field(default_factory=list)
    broken: str = ""  # why an invariant does not hold


@dataclass(slots=True, kw_only=True)
class _Invitation:
    slots: tuple[int, ...]
    ranks: tuple[int, ...]
    again_at: float
    held: dict[int, int] = field(default_factory=dict)  # rank -> the step at whose top it stands
    first_held_at: float = 0.0


class Arrivals:
    """The arrivals of one job. Nothing of it is remembered where another coordinator takes over."""

    def __init__(self, members: Membership, policy: RecoveryPolicy) -> None:
        self._members = members
        self._returns = policy.returns
        self.first_step = FirstStep(members, policy.arrival_s)
        self.revivals = Revivals(members)
        self._ready: dict[int, float] = {}  # rank -> since when it is ready
        self._invitation: _Invitation | None = None
        self._wake: float | None = None

    @property
    def serves(self) -> bool:
        """True if lost replicas may come back at all."""
        return self._returns

    @property
    def awaited(self) -> bool:
        """True if there is a replica that may come back."""
        return self._returns and bool(self._members.lost)

    def deadline(self) -> float | None:
        """The time at which `expire` is next needed, or None."""
        return self._wake

    def snapshot(self) -> dict[str, object]:
        invitation = self._invitation
        return {
            "ready": sorted(self._ready),
            "invited": () if invitation is None else invitation.ranks,
            "held": {} if invitation is None else dict(invitation.held),
            "trial": self.first_step.snapshot(),
        }

    # --------------------------------------------------------------------------- what is said

    def greet(self, rank: int, birth: int) -> None:
        """A process of this rank has its hooks."""
        if self.awaited and rank not in self._members.live_ranks:
            self.revivals.hear(rank, birth)

    def ready(self, rank: int, birth: int, now: float) -> list[Effect]:
        """A process of this lost rank stands before its loop."""
        if not self.awaited or not self.revivals.hear(rank, birth) or rank in self._ready:
            return []
        self._ready[rank] = now
        slot = self._layout.slot(rank)
        if not self._is_whole(slot):
            return []
        self.revivals.arrive(slot)
        words = f"replica {slot} is ready to take part again"
        return [Record("replica.ready", words, {"slot": slot, "ranks": [*self._ranks(slot)]})]

    def held(self, held: Held, now: float) -> ArrivalVerdict:
        """A member stands at the top of a step."""
        invitation = self._invitation
        if invitation is None:
            return ArrivalVerdict(meet=f"rank {held.rank} stands still, and nobody comes")
        if not invitation.held:
            invitation.first_held_at = now
        invitation.held[held.rank] = held.step
        steps = sorted(set(invitation.held.values()))
        if len(steps) > 1:
            return ArrivalVerdict(broken=f"ranks stand at the tops of steps {steps}")
        if len(invitation.held) < len(self._members.running):
            return ArrivalVerdict()
        return ArrivalVerdict(comes=self._return(invitation, held.step, now))

    # --------------------------------------------------------------------------- who is left

    def end(self, rank: int, birth: int) -> ArrivalVerdict:
        """A process has ended whose rank is no member."""
        words = f"rank {rank} ended before it took part again"
        return self._fail(self.revivals.end(rank, birth), words)

    def refuse(self, reason: str) -> ArrivalVerdict:
        """A rank has found that no fresh process of this script can take a lost one's place: none
        is started any more, and those that are on the way end.
        """
        self._returns = False
        return self.dismiss(reason)

    def lose(self, loss: Loss) -> None:
        """A member's replica leaves."""
        self.first_step.lose(loss.slot)

    def lose_node(self, ranks: Iterable[int]) -> ArrivalVerdict:
        """A node is lost: until its place is taken nobody starts its ranks."""
        lost = tuple(ranks)
        return self._fail(self.revivals.lose_node(lost), "its node is lost")

    def dismiss(self, reason: str) -> ArrivalVerdict:
        """Nobody comes: end those that are on the way."""
        verdict, ranks = self._void(reason), self.revivals.dismiss()
        self._ready.clear()
        if ranks:
            verdict.effects.append(self._members.kill(ranks, reason, self._members.generation))
        return verdict

    def began(self, now: float) -> None:
        """Another generation: what members were invited for is over, and newcomers have longer."""
        self._invitation = None
        self.first_step.began(now)

    # --------------------------------------------------------------------------- time

    def advance(self, now: float, *, quiet: bool, protected: bool) -> list[Effect]:
        """Start who is to be started again, and invite for who is ready.

        `quiet`: nothing is gathered. `protected`: a loss would be recovered from.
        """
        effects: list[Effect] = []
        times: list[float | None] = []
        if self.awaited and protected and not self._members.ended:
            effects += self.revivals.advance(now)
            times.append(self.revivals.wake)
            effects += self._invite(now) if quiet else ()
        if self._invitation is not None:
            times.append(self._invitation.again_at)
        times.append(self.first_step.deadline())
        self._wake = min((at for at in times if at is not None), default=None)
        return effects

    def expire(self, now: float) -> ArrivalVerdict:
        """Time passed: invite again, and end who took its place and does not move."""
        losses = self.first_step.overdue(now)
        if losses:
            return ArrivalVerdict(losses=losses)
        invitation = self._invitation
        if invitation is None or now < invitation.again_at:
            return ArrivalVerdict()
        invitation.again_at = now + self._again_s
        return ArrivalVerdict(effects=self._told(invitation))

    # --------------------------------------------------------------------------- coming

    def _invite(self, now: float) -> list[Effect]:
        if self._invitation is not None or self.first_step.under_way:
            return []
        slots = tuple(slot for slot in self._members.lost if self._is_whole(slot))
        if not slots:
            return []
        ranks = tuple(sorted(self._layout.ranks(slots)))
        self._invitation = _Invitation(slots=slots, ranks=ranks, again_at=now + self._again_s)
        fields: dict[str, Json] = {
            "slots": [*slots], "ranks": [*ranks], "generation": self._members.generation,
        }  # fmt: skip
        words = f"for replicas {list(slots)} all members stop at the top of a step"
        return [*self._told(self._invitation), Record("replica.invite", words, fields)]

    def _told(self, invitation: _Invitation) -> list[Effect]:
        arrival = Arrival(generation=self._members.generation, ranks=invitation.ranks)
        running = self._members.running
        return [ToRank(rank=r, message=arrival) for r in running if r not in invitation.held]

    def _return(self, invitation: _Invitation, step: int, now: float) -> Return:
        self._invitation = None
        records = []
        for slot in invitation.slots:
            ranks = self._ranks(slot)
            since = max(self._ready.pop(rank) for rank in ranks)
            self.revivals.take_part(slot)
            fields: dict[str, Json] = {
                "slot": slot, "ranks": [*ranks], "step": step,
                "wait_ms": round(1000 * (now - since), 3),
                "hold_ms": round(1000 * (now - invitation.first_held_at), 3),
            }  # fmt: skip
            words = f"replica {slot} takes part again from step {step} on"
            records.append(Record("replica.return", words, fields))
        slots, ranks = invitation.slots, invitation.ranks
        self.first_step.begin(slots, step, now)
        return Return(slots=slots, ranks=ranks, step=step, records=tuple(records))

    def _fail(self, mates: Mapping[int, tuple[int, ...]], reason: str) -> ArrivalVerdict:
        """End `mates`, too: a newcomer of these slots has ended, and they start again together."""
        verdict = ArrivalVerdict()
        for slot, living in mates.items():
            for rank in self._ranks(slot):
                self._ready.pop(rank, None)
            if self._invitation is not None and slot in self._invitation.slots:
                verdict.meet = self._void(reason).meet
            if living:
                kill = self._members.kill(living, reason, self._members.generation)
                verdict.effects.append(kill)
        return verdict

    def _void(self, reason: str) -> ArrivalVerdict:
        """Nobody comes. Who stands still already goes on in another generation."""
        invitation, self._invitation = self._invitation, None
        waits = invitation is not None and bool(invitation.held)
        return ArrivalVerdict(meet=reason if waits else "")

    # --------------------------------------------------------------------------- what is known

    @property
    def _layout(self) -> Layout:
        assert self._members.layout is not None, "slots are known once one is lost"
        return self._members.layout

    @property
    def _again_s(self) -> float:
        return INVITE_AGAIN_S * max(1.0, len(self._members.running) / INVITE_RANKS)

    def _ranks(self, slot: int) -> tuple[int, ...]:
        return tuple(sorted(self._layout.replicas[slot]))

    def _is_whole(self, slot: int) -> bool:
        return all(rank in self._ready for rank in self._layout.replicas[slot])
