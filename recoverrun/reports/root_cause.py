"""The first failure: the root cause of a run's failure, and of every loss that it survived.

Rules, in this order; each can be explained to a person from the journal alone:
1. An end that we caused (the kill ledger, `ours`) is never a cause. An end with code 0 is one only
   where the coordinator lost a replica by it, or where nothing but cascades came after it.
2. An error that tells of another process's end (connection closed, collective aborted) is a
   cascade: it can be first in the journal without being first in the world.
3. The root is the earliest end that is neither. Ends of one node are ordered by its launcher, which
   sees them in the order of the kernel; between nodes only as far as wall clocks agree, after those
   that are wrong by seconds have been set right (`rendezvous.journal.clock_alignment`), so ends of
   other nodes within CLOCK_S are named as tied.
4. A silent node is one fault; its ranks are never blamed one by one, nor if they have come to the
   end of the script meanwhile.
5. With nothing but cascades the first stands in, and the confidence says so.
6. Where the coordinator has named a rank as it ended the run, that rank is the root: it has judged
   by the same rules, heard all nodes, and every console has said so already. The exception is an
   end with code 0 by rule 1: to the coordinator that is nobody's failure.
"""

import signal as signals
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from recoverrun.reports.happenings import Death, End, Loss, Recovery
from recoverrun.reports.history import History, history, recovery_of
from recoverrun.reports.named_cause import Confidence, RootCause, ended_otherwise, told, unexplained
from recoverrun.reports.single_end import (
    cause_class,
    describe,
    is_cascade,
    is_early_end,
    is_fault,
)
from recoverrun.text import named_signals, ranges, ranks, sanitize, span
from rendezvous.coordinator.error_kinds import tells_of_a_disk
from rendezvous.journal.reader import CUT, RunLog
from rendezvous.protocol.exit_codes import ExitCode

CLOCK_S = 0.5
"""How far wall clocks of two nodes may be apart: ends closer than this have no order."""

SCRIPTS_OWN = "the script, its data or settings, not a machine"
"""Errors that several ranks raise alike: the script's, or a machine's."""

NEEDS_THE_LOST = "the script needs what only a lost rank could tell"
"""An error that survivors raise alike (`PeerLost`): no slip of the script, and no machine."""

NO_PRIMARY = "this error is only a consequence, and the process behind it is not in the journal"


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCause:
    """One lost replica with its own root rank, and the recovery that made it good."""

    loss: Loss
    root: RootCause
    recovery: Recovery | None


def root_cause(log: RunLog) -> RootCause | None:
    """The cause of the run's failure, or, if it survived all faults, of the first of them; None: no
    fault.
    """
    return root_of(history(log), blind=blind_spot(log))


def losses(log: RunLog) -> tuple[LossCause, ...]:
    """Every lost replica of the run, in the order of the journal."""
    return losses_of(history(log), blind=blind_spot(log))


def blind_spot(log: RunLog) -> str:
    """The reason why the journal may not show the first fault, or ""."""
    missing = log.missing_nodes()
    if missing:
        return f"the journal of {sanitize(', '.join(missing), 120)} is missing"
    # A record cut off at the end of a file is later than all that can be read of it.
    inside = log.unreadable_places > sum(place.why == CUT for place in log.unreadable)
    if inside or log.gaps:
        return "parts of the journal are missing or unreadable"
    return ""


def root_of(facts: History, *, blind: str = "") -> RootCause | None:
    """`root_cause` on facts; `blind` says what the journal cannot show."""
    faults = [death for death in facts.deaths if is_fault(death)]
    end = naming(facts)
    if end is not None:
        named = _end_of(end.root_rank, facts)
        if named is None:
            return told(end, facts)
        absorbed = _absorbed(facts)
        pool = [death for death in faults if death.attempt == facts.attempt]
        pool = [death for death in pool if not _covers(absorbed, death, facts)]
        return _judge([*pool, *([] if named in pool else [named])], facts, blind=blind, named=named)
    if not faults:
        return None
    absorbed = _absorbed(facts)
    open_faults = [death for death in faults if not _covers(absorbed, death, facts)]
    if not open_faults and facts.exit_code:
        return None  # It survived all of them, so none of them is why it failed.
    newest = max((death.attempt for death in open_faults), default=0)
    pool = [death for death in open_faults if death.attempt == newest] or faults
    if all(map(is_cascade, pool)):
        pool = _left_early(pool[0], facts) + pool
    return _judge(pool, facts, blind=blind)


def naming(facts: History) -> End | None:
    """The end of a failed run that names a rank as its cause (rule 6)."""
    if not facts.exit_code or facts.exit_code == ExitCode.INVARIANT:
        return None  # The rank that reports a broken invariant is not the cause.
    ends = (end for end in facts.ends if end.code == facts.exit_code and end.root_rank >= 0)
    end = next(ends, None)
    named = None if end is None else _end_of(end.root_rank, facts)
    if named is None or not is_cascade(named) or not _left_early(named, facts):
        return end
    faults = (d for d in facts.deaths if is_fault(d) and d.attempt == named.attempt)
    return None if all(map(is_cascade, faults)) else end


def _end_of(rank: int, facts: History) -> Death | None:
    """The end of a rank in the newest attempt: that of its node, or that of its newest life."""
    found = [d for d in facts.deaths if rank in d.ranks and d.attempt == facts.attempt]
    lost = [death for death in found if death.kind == "node-lost"]
    newest = max((death.life for death in found), default=0)
    found = [death for death in found if death.life == newest]
    return next(iter(lost + [death for death in found if is_fault(death)] + found), None)


def _left_early(cascade: Death, facts: History) -> list[Death]:
    """The ends with code 0 of that attempt that come before an error which tells of some end."""
    early = [death for death in facts.deaths[: facts.deaths.index(cascade)] if is_early_end(death)]
    absorbed = _absorbed(facts) if early else []
    return [d for d in early if d.attempt == cascade.attempt and not _covers(absorbed, d, facts)]


def _absorbed(facts: History) -> list[tuple[Loss, Recovery]]:
    pairs = ((loss, recovery_of(facts, loss)) for loss in facts.losses)
    return [(loss, recovery) for loss, recovery in pairs if recovery is not None]


def _covers(absorbed: Sequence[tuple[Loss, Recovery]], death: Death, facts: History) -> bool:
    """True if a loss that was made good explains this end."""
    mine = [
        (loss, recovery)
        for loss, recovery in absorbed
        if _ends(loss, death, facts) and death.ts <= max(loss.ts, recovery.ts) + CLOCK_S
    ]
    if death.kind == "node-lost":
        return any(loss.root_rank in death.ranks for loss, _ in mine)
    return any(death.rank in loss.ranks for loss, _ in mine)


def _ends(loss: Loss, death: Death, facts: History) -> bool:
    """True if `death` is of the life of the replica that `loss` ended."""
    if loss.attempt != death.attempt or death.kind != "node-lost":
        return (loss.attempt, loss.life) == (death.attempt, death.life)
    if death.failed_at > loss.ts + CLOCK_S:
        return False  # The node went later, while the replica was away.
    return loss.life == facts.returns.life_when(loss.attempt, loss.slot, death.ts)


def losses_of(facts: History, *, blind: str = "") -> tuple[LossCause, ...]:
    """Match every replica.lost to the end that caused it; an end explains one loss of a slot."""
    used: set[tuple[int, int]] = set()  # (slot, place in deaths)
    found: list[LossCause] = []
    for loss in facts.losses:
        places = [
            place
            for place, death in enumerate(facts.deaths)
            if (loss.slot, place) not in used
            and (is_fault(death) or is_early_end(death) and death.rank == loss.root_rank)
            and _ends(loss, death, facts)
            and set(death.ranks) & set(loss.ranks)
        ]
        mine = _of_one_loss([facts.deaths[place] for place in places])
        if any(death.kind == "node-lost" and death.ts <= loss.ts for death in mine):
            mine = [death for death in mine if not is_early_end(death)]  # rule 4
        used |= {(loss.slot, place) for place in places if facts.deaths[place] in mine}
        named = next((d for d in mine if d.rank == loss.root_rank and not is_cascade(d)), None)
        root = (
            _judge(mine, facts, blind=blind, scope=frozenset(loss.ranks), named=named)
            if mine
            else unexplained(loss, facts, blind)
        )
        root = _within(root, loss)
        found.append(LossCause(loss=loss, root=root, recovery=recovery_of(facts, loss)))
    return tuple(found)


def _of_one_loss(deaths: list[Death]) -> list[Death]:
    """The ends up to the first rank that ends a second time: that one is a later loss."""
    seen: set[int] = set()
    kept: list[Death] = []
    for death in deaths:
        if death.kind != "node-lost" and death.rank in seen:
            break
        seen.add(death.rank)
        kept.append(death)
    return kept


def _within(root: RootCause, loss: Loss) -> RootCause:
    """The verdict about one replica: everybody else in it is a victim."""
    rank = loss.root_rank if root.cause in ("node-lost", "unknown", "parameters") else root.rank
    return RootCause(
        rank=rank,
        node=root.node,
        pid=root.pid,
        cause=root.cause,
        what=root.what,
        ts=root.ts,
        victims=tuple(sorted(set(loss.ranks) - {rank, *root.same, *root.others})),
        cascades=root.cascades,
        tied=root.tied,
        same=root.same,
        others=root.others,
        why_first=root.why_first,
        confidence=root.confidence,
        evidence=root.evidence or loss.reason,
    )


def _judge(
    faults: Sequence[Death],
    facts: History,
    *,
    blind: str,
    scope: frozenset[int] = frozenset(),
    named: Death | None = None,
) -> RootCause:
    """The verdict over `faults`; `scope`: the ranks of one replica, empty for the whole job.

    `named`: the one of them that the coordinator holds to be the cause.
    """
    primaries = [death for death in faults if not is_cascade(death)]
    silent = {rank for death in primaries if death.kind == "node-lost" for rank in death.ranks}
    # Rule 4: what a lost node's ranks did afterwards is its fault.
    primaries = [d for d in primaries if d.kind == "node-lost" or d.rank not in silent]
    root = named or min(primaries or faults, key=lambda death: death.failed_at)
    same, others = _also_failed(root, facts, scope)
    tied = tuple(
        death.rank
        for death in primaries
        if death is not root
        and death.node != root.node
        and abs(death.failed_at - root.failed_at) <= CLOCK_S
        and death.rank not in same
    )
    in_order = sorted(faults, key=lambda death: death.failed_at)
    following = [death for death in in_order if death is not root]
    confidence: Confidence = "proved"
    if not primaries:
        confidence = "unknown"
    elif tied or blind or (is_early_end(root) and not scope and named is None):
        confidence = "likely"
    if named is not None:
        tied = ()  # The coordinator has heard how long ago each failed, and compared no clocks.
    return RootCause(
        rank=root.rank,
        node=root.node,
        pid=root.pid,
        cause=cause_class(root),
        what=describe(root, injects=bool(facts.inject)),
        ts=root.ts,
        victims=_victims(root, facts, {*same, *others, *tied}),
        cascades=sum(1 for death in faults if death is not root and is_cascade(death)),
        tied=tied,
        same=same,
        others=tuple(rank for rank in others if rank not in tied),
        why_first="; ".join(
            [
                *([] if primaries else [NO_PRIMARY]),
                _order(root, following, _stopped(root, facts, scope)) or _alone(root, facts, scope),
                *_caveats(root, facts, blind),
            ]
        ),
        confidence=confidence,
        evidence=root.reason,
        alike_on=root.node if same and _is_of_one_node(root, same, facts) else "",
    )


def _is_of_one_node(root: Death, same: Iterable[int], facts: History) -> bool:
    """True if a job of several nodes has all ranks with the root's error on its own."""
    return facts.nnodes > 1 and {facts.nodes.get(rank) for rank in same} == {root.node}


def _also_failed(
    root: Death, facts: History, scope: frozenset[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ranks of this attempt with the root's error, and those with another one of their own.

    Who was about to end by its own error is no victim, even if our signal came before its end.
    """
    same: list[int] = []
    others: list[int] = []
    for death in facts.deaths:
        own = death.kind == "exception" and not is_cascade(death)
        of_life = death.life == root.life or root.kind == "node-lost"
        here = death.attempt == root.attempt and (not scope or death.rank in scope and of_life)
        if death is root or not (own and here) or death.rank in root.ranks:
            continue
        (same if death.error == root.error else others).append(death.rank)
    return tuple(same), tuple(others)


def _victims(root: Death, facts: History, others: set[int]) -> tuple[int, ...]:
    """Ranks of this attempt that ended without a fault of their own."""
    extra = set(root.ranks) if root.kind == "node-lost" else set()
    return tuple(sorted((ended_otherwise(facts, root.attempt) | extra) - {root.rank} - others))


def _stopped(root: Death, facts: History, scope: frozenset[int]) -> Death | None:
    """The first end that we caused after the root."""
    later = (d for d in facts.deaths if d.ours and d.attempt == root.attempt and d.ts >= root.ts)
    others = (death for death in later if death.rank != root.rank)  # A hang's own end is no other.
    return next((death for death in others if not scope or death.rank in scope), None)


def _order(root: Death, following: Sequence[Death], stopped: Death | None) -> str:
    """The evidence in words: what came next, and how much later; "" if nothing did."""
    if following:
        after = following[0]
        clocks = "" if after.node == root.node else ", by the clocks of two nodes"
        who = f"node {sanitize(after.node, 60)}" if after.rank < 0 else f"rank {after.rank}"
        kind = "cascade" if is_cascade(after) else "fault"
        later = span(max(0.0, after.failed_at - root.failed_at))
        return f"{later} before the next {kind}, {who}{clocks}"
    if stopped is not None:
        later = span(max(0.0, stopped.ts - root.ts))
        return (
            f"the only end here that recoverrun did not cause (rank {stopped.rank}: {later} later)"
        )
    return ""


def _alone(root: Death, facts: History, scope: frozenset[int]) -> str:
    """The words for a fault beside which there is none that belongs to it."""
    if not any(is_fault(death) for death in facts.deaths if death is not root):
        return "the only fault in the journal"
    return "the only fault of this loss" if scope else "the only fault that was not survived"


def _caveats(root: Death, facts: History, blind: str) -> list[str]:
    found = []
    if facts.inject and root.signal == signals.SIGKILL:
        found.append(f"this run injects faults: {sanitize(facts.inject, 80)}")
    return [*found, blind] if blind else found


def evidence(root: RootCause) -> str:
    """The words of the launcher about it, "" if `what` says the same."""
    wrote = named_signals(root.evidence)
    same = root.what.startswith(wrote) or wrote.startswith(root.what)
    return "" if same or root.cause == "exception" else wrote


def also(root: RootCause) -> str:
    """The other ranks: ties and equals of the root, or ""."""
    if root.same:
        own = f"; errors of their own on {ranks(root.others)}" if root.others else ""
        equals = f"the very same error on {ranks(root.same)}"
        whose = "a disk" if tells_of_a_disk(root.what) else SCRIPTS_OWN
        if "PeerLost: " in root.what:
            whose = NEEDS_THE_LOST
        elif root.alike_on:
            whose = f"of one node, {sanitize(root.alike_on, 60)}, or of the script"
        return f"{equals}: {whose}{own}"
    if root.others:
        return f"after it, errors of their own on {ranks(root.others)}"
    if root.tied:
        shown = ranges(rank for rank in root.tied if rank >= 0)
        others = f"ranks {shown}" if shown else "another node"
        return f"tied within {span(CLOCK_S)} of clock error: {others}"
    return ""
