"""A run for programs: what `recoverrun.read_run` returns. Fields are only ever added.

Values are those of `postmortem`, made by the same functions. Instants are seconds since 1970.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from recoverrun.reports.commits import Commit
from recoverrun.reports.goodput import Goodput
from recoverrun.reports.history import history
from recoverrun.reports.named_cause import Confidence
from recoverrun.reports.postmortem import LossReport, Outcome, judged, verdict
from recoverrun.reports.returns import ReturnWay
from rendezvous.journal.reader import read_run as read_log


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """One committed step."""

    attempt: int
    step: int
    at: float  # when it was committed
    ms: float  # on the slowest rank, since the step before it; 0 unknown
    generation: int
    microbatches: int  # in the sum, of all replicas
    quota: Mapping[int, int]  # microbatches by replica
    redone: int  # of them: lost in this step, and computed again
    taken_over: int  # of them: of lost replicas, computed by others as planned


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLoss:
    """One lost replica."""

    at: float
    replica: int
    step: int  # that was made whole without it, -1 unknown
    rank: int  # the root cause, -1: a node
    node: str
    cause: str  # sigkill, exception, hang, node-lost, ...
    what: str  # in one sentence
    confidence: Confidence
    victims: tuple[int, ...]  # ranks that went with it
    redone: int  # microbatches
    survived: bool  # others took its microbatches over
    total_ms: float  # from the loss to the whole step, 0 if it was not survived
    parts_ms: Mapping[str, float]  # of that


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedReturn:
    """One lost replica that takes part again."""

    at: float
    replica: int
    step: int  # the first in which it takes part
    after_s: float  # since it was lost, 0 unknown
    held_ms: float  # for so long the first of the others stood still for it, 0 unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """One run, as far as its journals tell it."""

    run_dir: Path
    title: str
    run_id: str
    argv: tuple[str, ...]
    version: str
    outcome: Outcome
    verdict: str  # in one sentence
    exit_code: int | None  # None: no end on record
    root_cause: str  # of a run that failed, in one sentence, "" unknown
    proved: bool  # that each step had each microbatch exactly once
    began: float
    latest: float  # the newest record
    attempts: int
    replicas: tuple[tuple[int, ...], ...]  # ranks
    promise: str
    steps: tuple[RecordedStep, ...]
    losses: tuple[RecordedLoss, ...]
    returns: tuple[RecordedReturn, ...]
    goodput: Goodput


def recorded_run(run_dir: Path, *others: Path) -> RecordedRun:
    """Read a run that is over, dead or still going; `others` are directories of its other nodes.

    What cannot be read is left out. A directory without a journal is a run with outcome "empty".
    """
    log = read_log(run_dir, *others)
    facts = history(log)
    found = judged(facts, log)
    return RecordedRun(
        run_dir=run_dir,
        title=found.title,
        run_id=found.run_id,
        argv=found.argv,
        version=found.version,
        outcome=found.outcome,
        verdict=verdict(found),
        exit_code=found.exit_code,
        root_cause=found.root.what if found.root is not None else "",
        proved=found.proof.verdict == "proved",
        began=found.began,
        latest=found.latest,
        attempts=found.attempts,
        replicas=found.replicas,
        promise=found.promise,
        steps=tuple(map(_step, facts.commits)),
        losses=tuple(map(_loss, found.losses)),
        returns=tuple(_return(way) for way in found.ways if way.back),
        goodput=found.goodput,
    )


def _step(commit: Commit) -> RecordedStep:
    return RecordedStep(
        attempt=commit.attempt,
        step=commit.step,
        at=commit.ts,
        ms=commit.ms,
        generation=commit.generation,
        microbatches=commit.total,
        quota=commit.quota,
        redone=commit.redone,
        taken_over=commit.taken_over,
    )


def _loss(loss: LossReport) -> RecordedLoss:
    root = loss.cause.root
    return RecordedLoss(
        at=loss.cause.loss.ts,
        replica=loss.slot,
        step=loss.step,
        rank=root.rank,
        node=root.node,
        cause=root.cause,
        what=root.what,
        confidence=root.confidence,
        victims=root.victims,
        redone=loss.redone,
        survived=loss.total_ms >= 0,
        total_ms=max(0.0, loss.total_ms),
        parts_ms=dict(loss.parts_ms),
    )


def _return(way: ReturnWay) -> RecordedReturn:
    return RecordedReturn(
        at=way.back,
        replica=way.slot,
        step=way.step,
        after_s=max(0.0, way.lost_for_s),
        held_ms=max(0.0, way.hold_ms),
    )
