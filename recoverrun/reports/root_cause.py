"""What failed first: the root cause of a run's failure, and of every loss that it survived.

Rules, in this order; each can be explained to a person from the journal alone:
1. An end that we caused (the kill ledger, `ours`) and an end with code 0 are never a cause.
2. An error that tells of another process's end (connection closed, collective aborted) is a
   cascade: it can be first in the journal without being first in the world.
3. The root is the earliest end that is neither. Ends of one node are ordered by its launcher, which
   sees them in the order of the kernel; between nodes only as far as wall clocks agree, after those
   that are wrong by seconds have been set right (`rendezvous.journal.clock_alignment`), so ends of
   other nodes within CLOCK_S are named as tied.
4. A silent node is one fault; its ranks are never blamed one by one.
5. With nothing but cascades the first stands in, and the confidence says so.
"""

import re
import signal as signals
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from recoverrun.reports.history import Death, History, Loss, Recovery, history, recovery_of
from recoverrun.text import ranges, ranks, sanitize, span
from rendezvous.journal.reader import CUT, RunLog

Confidence = Literal["proved", "likely", "unknown"]

CLOCK_S = 0.5
"""How far wall clocks of two nodes may be apart: ends closer than this have no order."""

NO_PRIMARY = "this error is only a consequence, and the process behind it is not in the journal"

_CASCADE = re.compile(
    r"connection (?:was )?(?:closed|reset|refused|aborted)|broken pipe|remote process exited"
    r"|peer (?:has )?(?:closed|exited|died)|processgroup\w* .*abort|\babort(?:ed)? by"
    r"|collective .*(?:abort|timed? ?out)|watchdog|store .*(?:closed|gone|unreachable)"
    r"|superseded|socket (?:closed|timeout)|unexpected eof"
    r"|connectfullmesh|pair closure|ncclremoteerror|likely closed|recvvalue failed|sendbytes failed"
    r"|timed out waiting \d+ ?ms for (?:recv|send)|client socket has timed out",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RootCause:
    """The verdict about one failure. `cause` is a class; `what` says it in words."""

    rank: int  # -1: a node, or unknown
    node: str
    pid: int
    cause: str  # sigkill, sigsegv, ..., exception, exit, node-lost, unknown
    what: str
    ts: float
    victims: tuple[int, ...]  # healthy ranks that went down with it
    cascades: int  # errors of others that tell of this one
    tied: tuple[int, ...]  # ranks that may have been first as well
    same: tuple[int, ...]  # ranks with the very same error
    why_first: str
    confidence: Confidence
    evidence: str  # what the launcher wrote about it


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCause:
    """One lost replica with its own root rank, and the recovery that made it good."""

    loss: Loss
    root: RootCause
    recovery: Recovery | None


def signal_name(number: int) -> str:
    """ "SIGKILL" for 9; "signal 77" for what this system does not know."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def tells_of_another(error: str) -> bool:
    """True if an exception's line is about the end of another process, and not its own cause."""
    return _CASCADE.search(error) is not None


def is_cascade(death: Death) -> bool:
    """True if this end only tells of another one."""
    return death.kind == "exception" and tells_of_another(death.error)


def is_fault(death: Death) -> bool:
    """True if this end can be a cause at all (rule 1)."""
    return not death.ours and (death.kind == "node-lost" or death.signal != 0 or death.code != 0)


def cause_class(death: Death) -> str:
    return signal_name(death.signal).lower() if death.kind == "signal" else death.kind


def describe(death: Death) -> str:
    """One sentence without a full stop: who ended how."""
    who = f"rank {death.rank}"
    match death.kind:
        case "node-lost":
            name = "a node" if death.node == "?" else f"node {sanitize(death.node, 60)}"
            return f"{name} was lost with {ranks(death.ranks)}"
        case "signal":
            return f"{who} was killed by {signal_name(death.signal)}, which recoverrun did not send"
        case "exception":
            return f"{who} raised {sanitize(death.error)}"
        case "exit":
            return f"{who} exited with code {death.code}"


def root_cause(log: RunLog) -> RootCause | None:
    """Why the run failed, or, where it survived all faults, the first of them; None: no fault."""
    return root_of(history(log), blind=_blind(log))


def losses(log: RunLog) -> tuple[LossCause, ...]:
    """Every lost replica of the run, in the order of the journal."""
    return losses_of(history(log), blind=_blind(log))


def _blind(log: RunLog) -> str:
    """Why the journal may not show the first fault, or ""."""
    missing = log.missing_nodes()
    if missing:
        return f"the journal of {sanitize(', '.join(missing), 120)} is missing"
    # What was cut off at the end of a file is later than all that can be read of it.
    inside = log.unreadable_places > sum(place.why == CUT for place in log.unreadable)
    if inside or log.gaps:
        return "parts of the journal are missing or unreadable"
    return ""


def root_of(facts: History, *, blind: str = "") -> RootCause | None:
    """`root_cause` on facts; `blind` says what the journal cannot show."""
    faults = [death for death in facts.deaths if is_fault(death)]
    if not faults:
        return None
    absorbed = _absorbed(facts)
    open_faults = [death for death in faults if not _covers(absorbed, death)]
    if not open_faults and facts.exit_code:
        return None  # It survived all of them, so none of them is why it failed.
    newest = max((death.attempt for death in open_faults), default=0)
    pool = [death for death in open_faults if death.attempt == newest] or faults
    return _judge(pool, facts, blind=blind)


def _absorbed(facts: History) -> list[tuple[Loss, Recovery]]:
    pairs = ((loss, recovery_of(facts, loss)) for loss in facts.losses)
    return [(loss, recovery) for loss, recovery in pairs if recovery is not None]


def _covers(absorbed: Sequence[tuple[Loss, Recovery]], death: Death) -> bool:
    """True if a loss that was made good explains this end."""
    mine = [
        (loss, recovery)
        for loss, recovery in absorbed
        if loss.attempt == death.attempt and death.ts <= max(loss.ts, recovery.ts) + CLOCK_S
    ]
    if death.kind == "node-lost":
        return any(loss.root_rank in death.ranks for loss, _ in mine)
    return any(death.rank in loss.ranks for loss, _ in mine)


def losses_of(facts: History, *, blind: str = "") -> tuple[LossCause, ...]:
    """Match every replica.lost to the end that caused it; an end explains one loss of a slot."""
    used: set[tuple[int, int]] = set()  # (slot, place in deaths)
    found: list[LossCause] = []
    for loss in facts.losses:
        places = [
            place
            for place, death in enumerate(facts.deaths)
            if (loss.slot, place) not in used
            and is_fault(death)
            and death.attempt == loss.attempt
            and set(death.ranks) & set(loss.ranks)
        ]
        mine = _of_one_loss([facts.deaths[place] for place in places])
        used |= {(loss.slot, place) for place in places if facts.deaths[place] in mine}
        root = (
            _judge(mine, facts, blind=blind, scope=frozenset(loss.ranks))
            if mine
            else _unexplained(loss, facts, blind)
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
    rank = loss.root_rank if root.cause in ("node-lost", "unknown") else root.rank
    return RootCause(
        rank=rank,
        node=root.node,
        pid=root.pid,
        cause=root.cause,
        what=root.what,
        ts=root.ts,
        victims=tuple(sorted(set(loss.ranks) - {rank})),
        cascades=root.cascades,
        tied=root.tied,
        same=root.same,
        why_first=root.why_first,
        confidence=root.confidence,
        evidence=root.evidence or loss.reason,
    )


def _unexplained(loss: Loss, facts: History, blind: str) -> RootCause:
    """The coordinator lost a replica, but no end in the journal explains it."""
    return RootCause(
        rank=loss.root_rank,
        node=facts.nodes.get(loss.root_rank, "?"),
        pid=facts.pids.get(loss.root_rank, -1),
        cause="unknown",
        what=f"replica {loss.slot} was lost with rank {loss.root_rank}",
        ts=loss.ts,
        victims=(),
        cascades=0,
        tied=(),
        same=(),
        why_first="the coordinator named this rank; no end of it is in the journal"
        + (f" ({blind})" if blind else ""),
        confidence="unknown",
        evidence=loss.reason,
    )


def _judge(
    faults: Sequence[Death], facts: History, *, blind: str, scope: frozenset[int] = frozenset()
) -> RootCause:
    """The verdict over `faults`; `scope`: the ranks of one replica, empty for the whole job."""
    primaries = [death for death in faults if not is_cascade(death)]
    silent = {rank for death in primaries if death.kind == "node-lost" for rank in death.ranks}
    # Rule 4: what a lost node's ranks did afterwards is its fault.
    primaries = [d for d in primaries if d.kind == "node-lost" or d.rank not in silent]
    root = (primaries or list(faults))[0]
    later = [death for death in primaries if death is not root]
    same = tuple(d.rank for d in later if d.kind == "exception" and d.error == root.error)
    tied = tuple(
        death.rank
        for death in later
        if death.node != root.node and death.ts - root.ts <= CLOCK_S and death.rank not in same
    )
    following = [death for death in faults if death is not root]
    confidence: Confidence = "proved"
    if not primaries:
        confidence = "unknown"
    elif tied or blind:
        confidence = "likely"
    return RootCause(
        rank=root.rank,
        node=root.node,
        pid=root.pid,
        cause=cause_class(root),
        what=describe(root),
        ts=root.ts,
        victims=_victims(root, facts, {*same, *tied}),
        cascades=sum(1 for death in following if is_cascade(death)),
        tied=tied,
        same=same,
        why_first="; ".join(
            [
                *([] if primaries else [NO_PRIMARY]),
                _order(root, following, _stopped(root, facts, scope)),
                *_caveats(root, facts, blind),
            ]
        ),
        confidence=confidence,
        evidence=root.reason,
    )


def _victims(root: Death, facts: History, others: set[int]) -> tuple[int, ...]:
    """Ranks of this attempt that ended after the root without a fault of their own."""
    after = {
        rank
        for death in facts.deaths
        if death.attempt == root.attempt
        and (death.ours or is_cascade(death) or death.kind == "node-lost")
        for rank in death.ranks
    }
    extra = set(root.ranks) if root.kind == "node-lost" else set()
    return tuple(sorted((after | extra) - {root.rank} - others))


def _stopped(root: Death, facts: History, scope: frozenset[int]) -> Death | None:
    """The first end that we caused after the root."""
    later = (d for d in facts.deaths if d.ours and d.attempt == root.attempt and d.ts >= root.ts)
    return next((death for death in later if not scope or death.rank in scope), None)


def _order(root: Death, following: Sequence[Death], stopped: Death | None) -> str:
    """The evidence in words: what came next, and how much later."""
    if following:
        after = following[0]
        clocks = "" if after.node == root.node else ", by the clocks of two nodes"
        who = f"node {sanitize(after.node, 60)}" if after.rank < 0 else f"rank {after.rank}"
        kind = "cascade" if is_cascade(after) else "fault"
        return f"{span(max(0.0, after.ts - root.ts))} before the next {kind}, {who}{clocks}"
    if stopped is not None:
        later = span(max(0.0, stopped.ts - root.ts))
        return (
            f"the only end here that recoverrun did not cause (rank {stopped.rank}: {later} later)"
        )
    return "the only fault in the journal"


def _caveats(root: Death, facts: History, blind: str) -> list[str]:
    found = []
    if facts.inject and root.signal == signals.SIGKILL:
        found.append(f"this run injects faults: {sanitize(facts.inject, 80)}")
    return [*found, blind] if blind else found


def also(root: RootCause) -> str:
    """Who else: ties and twins of the root, or ""."""
    if root.same:
        return f"the very same error on {ranks(root.same)}: the script or its data, not a machine"
    if root.tied:
        shown = ranges(rank for rank in root.tied if rank >= 0)
        others = f"ranks {shown}" if shown else "another node"
        return f"tied within {span(CLOCK_S)} of clock error: {others}"
    return ""
