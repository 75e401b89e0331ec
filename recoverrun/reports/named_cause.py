"""The verdict about one failure, and those that rest on what the coordinator has named."""

from dataclasses import dataclass
from typing import Literal

from recoverrun.reports.happenings import End, Loss
from recoverrun.reports.history import History
from recoverrun.reports.single_end import is_cascade, signal_name
from recoverrun.text import named_signals, sanitize, signal_told

Confidence = Literal["proved", "likely", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RootCause:
    """The verdict about one failure. `cause` is a class; `what` says it in words."""

    rank: int  # -1: a node, or unknown
    node: str
    pid: int
    cause: str  # sigkill, sigsegv, ..., exception, exit, hang, node-lost, parameters, unknown
    what: str
    ts: float
    victims: tuple[int, ...]  # healthy ranks that went down with it
    cascades: int  # errors of others that tell of this one
    tied: tuple[int, ...]  # ranks that may have been first as well
    same: tuple[int, ...]  # ranks with the very same error
    others: tuple[int, ...]  # ranks with another error of their own
    why_first: str
    confidence: Confidence
    evidence: str  # what the launcher wrote about it
    alike_on: str = ""  # the node of all ranks with that error, if the job has others


def told(end: End, facts: History) -> RootCause:
    """The coordinator has named a rank whose end is in no journal that can be read here."""
    where = f"node {sanitize(end.root_node, 60)}" if end.root_node else "another node"
    return RootCause(
        rank=end.root_rank,
        node=end.root_node or facts.nodes.get(end.root_rank, "?"),
        pid=facts.pids.get(end.root_rank, -1),
        cause="unknown",
        what=named_signals(end.reason),
        ts=facts.latest,
        victims=tuple(sorted(ended_otherwise(facts, facts.attempt) - {end.root_rank})),
        cascades=0,
        tied=(),
        same=(),
        others=(),
        why_first=f"the coordinator named it; its end is in the journal of {where}",
        confidence="likely",
        evidence="",
    )


def ended_otherwise(facts: History, attempt: int) -> set[int]:
    """Ranks that were ended, or ended because others did."""
    return {
        rank
        for death in facts.deaths
        if death.attempt == attempt
        and (death.ours or is_cascade(death) or death.kind == "node-lost")
        for rank in death.ranks
    }


def unexplained(loss: Loss, facts: History, blind: str) -> RootCause:
    """The coordinator lost a replica, but no end in the journal explains it."""
    step = facts.outvoted.get(loss.root_rank)
    if step is not None:
        return _outvoted(loss, facts, step)
    number = signal_told(loss.reason)
    return _named(
        loss,
        facts,
        cause=signal_name(number).lower() if number else "unknown",
        what=named_signals(loss.reason),
        why_first="the coordinator named this rank; no end of it is in the journal"
        + (f" ({blind})" if blind else ""),
        confidence="likely" if number else "unknown",
    )


def _outvoted(loss: Loss, facts: History, step: int) -> RootCause:
    """The replica had to leave, because most others agreed on other parameters."""
    return _named(
        loss,
        facts,
        cause="parameters",
        what=f"rank {loss.root_rank}: its parameters differ from the others'",
        why_first=f"at step {step} most ranks of its shard held the same, and it did not",
        confidence="proved",
    )


def _named(
    loss: Loss, facts: History, *, cause: str, what: str, why_first: str, confidence: Confidence
) -> RootCause:
    """The rank that the coordinator has named for a loss."""
    return RootCause(
        rank=loss.root_rank,
        node=facts.nodes.get(loss.root_rank, "?"),
        pid=facts.pids.get(loss.root_rank, -1),
        cause=cause,
        what=what,
        ts=loss.ts,
        victims=(),
        cascades=0,
        tied=(),
        same=(),
        others=(),
        why_first=why_first,
        confidence=confidence,
        evidence=loss.reason,
    )
