"""Hangs, as the coordinator hears of them: what is said of them, and what becomes of the job.

The machine `standstill` decides who hangs. Here its findings become lines of the journal and a
verdict for the coordinator: ranks to be lost, members to meet anew, or the end of the job.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import assert_never

from rendezvous.coordinator.losses import Loss
from rendezvous.coordinator.members import Membership
from rendezvous.coordinator.recovery_policy import RecoveryPolicy
from rendezvous.membership.hang_events import (
    AllQuiet,
    Cleared,
    Condemned,
    LookAt,
    Members,
    Parted,
    Stepped,
    Stuck,
    Suspected,
    Tick,
)
from rendezvous.membership.standstill import Standstill
from rendezvous.protocol.effects import Effect, Inspection
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.hang_messages import Evidence, Inspect, Progress, Stack
from rendezvous.protocol.progress_page import Phase, spread
from rendezvous.protocol.rank_differences import diverged
from rendezvous.protocol.records import Json, Record

NAMED = 8
"""So many ranks are named; of more the number is said."""

PHASES = {
    Phase.FIRST: "a step of torch's own",
    Phase.MICROBATCH: "a microbatch",
    Phase.DATA: "fetching data",
    Phase.FIRST_DATA: "fetching a loop's first item",
    Phase.SETTLE: "the end of a step",
    Phase.BETWEEN: "between steps",
    Phase.ALONE: "work of rank 0 alone",
    Phase.REDO: "redoing a lost microbatch",
    Phase.PROOF: "checking a replay",
    Phase.END: "the end of the script",
}

HangMessage = Progress | Evidence | Stack


@dataclass(slots=True)
class HangVerdict:
    """The consequences for the job: one of the last three at most."""

    effects: list[Effect] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    refusal: str = ""  # why no lost replica comes back any more, with losses
    meet: str = ""
    stop: tuple[int, str] | None = None


class HangWatch:
    """The hang watch of one job."""

    def __init__(self, policy: RecoveryPolicy) -> None:
        self._policy = policy
        self._machine = Standstill(hang_limit_s=policy.hang_limit_s)
        self._known: tuple[object, ...] = ()

    def step(
        self, event: HangMessage | Tick, members: Membership, *, protected: bool, now: float
    ) -> HangVerdict:
        """Take a message of a launcher or a worker, or the time."""
        verdict = HangVerdict()
        if protected and isinstance(event, Progress):
            verdict.meet = _waits_in_vain(event, members)
        if verdict.meet or self._policy.on_hang == "off":
            return verdict
        recover = protected and self._policy.on_hang == "recover"
        self._learn(members, recover, now)
        for found in self._machine.step(event, now):
            self._judge(found, members, verdict, now)
        return verdict

    def stepped(self, step: int, now: float) -> None:
        """A step is over."""
        self._machine.step(Stepped(step), now)

    def deadline(self) -> float | None:
        """The time of the next `Tick`, or None."""
        return self._machine.deadline()

    def _learn(self, members: Membership, recover: bool, now: float) -> None:
        placed = members.layout is not None
        state = (members.generation, len(members.finished), len(members.gone), recover, placed)
        if state == self._known:
            return
        self._known = state
        layout = members.layout
        running = [rank for rank in members.running if rank not in members.gone]
        slots = {rank: rank if layout is None else layout.slot(rank) for rank in running}
        known = Members(slots=slots, protected=recover, generation=members.generation)
        self._machine.step(known, now)

    def _judge(self, found: object, members: Membership, verdict: HangVerdict, now: float) -> None:
        match found:
            case LookAt(hang=hang, look=look, ranks=ranks, stacks=stacks):
                inspect = Inspect(hang=hang, look=look, ranks=ranks, stacks=stacks)
                verdict.effects.append(Inspection(inspect=inspect))
            case Suspected() | Cleared():
                verdict.effects.append(_record(found))
            case Condemned():
                verdict.losses.append(_loss(found, members, now))
                verdict.effects.append(_record(found))
            case Stuck(meet=meet, acts=acts):
                record = _record(found)
                verdict.effects.append(record)
                if acts:
                    verdict.meet = record.reason if meet else ""
                    verdict.stop = None if meet else (ExitCode.HANG, record.reason)
            case Parted():
                record = _record(found)
                verdict.effects.append(record)
                if self._policy.on_hang == "recover":
                    odd = diverged(
                        {rank: what for rank, what, _ in found.places}, members.came_back
                    )
                    verdict.losses = [_stray(rank, found, members, now) for rank in odd]
                    verdict.refusal = record.reason if odd else ""
                    verdict.stop = None if odd else (ExitCode.DO_NOT_REQUEUE, record.reason)
            case AllQuiet(over=over):
                record = _record(found)
                verdict.effects.append(record)
                if over:
                    verdict.stop = (ExitCode.HANG, record.reason)
            case _:
                raise AssertionError(f"nobody hangs by {found}")


def _stray(rank: int, found: Parted, members: Membership, now: float) -> Loss:
    assert members.layout is not None, "lost replicas have come back"
    return Loss(
        slot=members.layout.slot(rank),
        root_rank=rank,
        code=-9,
        generation=members.generation + 1,
        lost_at=now,
        failed_at=now - found.lag_s,
        detected_s=found.lag_s,
        error="",
        reason=f"rank {rank} has come back and is elsewhere in the script: {sentence(found)}",
        hung=True,
    )


def _loss(found: Condemned, members: Membership, now: float) -> Loss:
    return Loss(
        slot=-1 if members.layout is None else members.layout.slot(found.rank),
        root_rank=found.rank,
        code=-9,
        generation=members.generation + 1,
        lost_at=now,
        failed_at=now - found.lag_s,
        detected_s=found.lag_s,
        error="",
        reason=sentence(found),
        hung=True,
    )


def _record(found: Suspected | Cleared | Condemned | Stuck | Parted | AllQuiet) -> Record:
    fields: dict[str, Json]
    match found:
        case Suspected():
            fields = {
                "hang": found.hang, "rank": found.rank, "step": found.step,
                "phase": found.phase.name.lower(), "lag_s": round(found.lag_s, 3),
                "waiting": list(found.waiting), "limit_s": round(found.limit_s, 3),
            }  # fmt: skip
            return Record("hang.suspect", sentence(found), fields)
        case Cleared():
            fields = {"hang": found.hang, "rank": found.rank, "lag_s": round(found.lag_s, 3)}
            return Record("hang.clear", sentence(found), fields)
        case Condemned():
            fields = {
                "hang": found.hang, "rank": found.rank, "step": found.step,
                "phase": found.phase.name.lower(), "lag_s": round(found.lag_s, 3),
                "where": found.words, "proof": found.proof,
            }  # fmt: skip
            return Record("hang.condemn", sentence(found), fields)
        case Stuck():
            return Record("hang.stick", sentence(found), {"lag_s": round(found.lag_s, 3)})
        case Parted():
            fields = {"hang": found.hang, "lag_s": round(found.lag_s, 3)}
            return Record("hang.part", sentence(found), fields)
        case AllQuiet():
            fields = {"hang": found.hang, "step": found.step, "quiet_s": round(found.quiet_s, 3)}
            return Record("hang.quiet", sentence(found), fields)
        case _:
            assert_never(found)


def sentence(found: Suspected | Cleared | Condemned | Stuck | Parted | AllQuiet) -> str:
    """One sentence for people, without a full stop."""
    match found:
        case Suspected():
            at = f"{found.words}; " if found.words else ""
            return (
                f"rank {found.rank} has kept {_named(found.waiting)} waiting for "
                f"{found.lag_s:.1f} s ({at}step {found.step}, {PHASES[found.phase]}; "
                f"the limit there is {found.limit_s:.0f} s)"
            )
        case Cleared():
            return f"rank {found.rank} goes on after {found.lag_s:.1f} s: it was slow, not hung"
        case Condemned():
            how = f"hangs, {found.words}" if found.proof != "none" else f"is late, {found.words}"
            return (
                f"rank {found.rank} {how.rstrip(', ')} (step {found.step}, {PHASES[found.phase]}): "
                f"others waited {found.lag_s:.1f} s for it in {found.what}"
            )
        case Stuck():
            then = "members meet anew" if found.meet else "the job stops"
            return (
                f"all ranks have joined {found.what}, and it has not ended for {found.lag_s:.1f} s "
                f"(the network, or a library){f': {then}' if found.acts else ''}"
            )
        case Parted():
            return f"the ranks wait for each other in different operations: {_places(found)}"
        case AllQuiet():
            at = f" ({found.words})" if found.words else ""
            if not found.started:
                return f"no rank has reached its training loop for {found.quiet_s:.0f} s{at}"
            return (
                f"no rank has moved for {found.quiet_s:.0f} s, in step {found.step}, "
                f"{PHASES[found.phase]}{at}"
            )
        case _:
            assert_never(found)


def _waits_in_vain(mark: Progress, members: Membership) -> str:
    """The reason to meet anew if `mark` waits for a process that has ended, and whose script has
    not said that it ends. Sockets need not tell: a child that it left holds them (a daemon).
    """
    if not mark.waits or mark.generation != members.generation:
        return ""
    among = spread(mark.ranks) or ()
    for rank in members.ended:
        met = rank in members.absent  # since it has ended
        if rank in among and rank in members.gone and members.finished[rank] < 0 and not met:
            return f"rank {rank} exited with code 0, and rank {mark.rank} waits for it"
    return ""


def _named(ranks: Iterable[int]) -> str:
    known = sorted(ranks)
    if len(known) > NAMED:
        return f"{len(known)} ranks"
    return f"rank{'s' * (len(known) > 1)} {', '.join(map(str, known))}"


def _places(found: Parted) -> str:
    together: dict[tuple[str, str], list[int]] = {}
    for rank, what, where in found.places:
        together.setdefault((what, where), []).append(rank)
    parts = [
        f"{_named(ranks)} in {what}" + (f" ({where})" if where else "")
        for (what, where), ranks in together.items()
    ]
    return "; ".join(parts[:NAMED])
