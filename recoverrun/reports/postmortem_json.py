"""The postmortem of a run for programs: JSON whose fields are only ever added within a schema."""

from collections import Counter
from dataclasses import asdict

from recoverrun.reports.goodput import goodput_json
from recoverrun.reports.named_cause import RootCause
from recoverrun.reports.postmortem import LossReport, Postmortem
from recoverrun.reports.proof import Proof
from recoverrun.reports.returns import WAY_PARTS, ReturnWay
from rendezvous.protocol.records import Json

SCHEMA = 1


def to_json(found: Postmortem) -> dict[str, Json]:
    """The stable form for programs; fields are only ever added within a schema."""
    root = found.root
    return {
        "schema": SCHEMA,
        "run_dir": found.run_dir,
        "run_id": found.run_id,
        "version": found.version,
        "argv": list(found.argv),
        "outcome": found.outcome,
        "exit_code": found.exit_code,
        "end_reason": found.end_reason,
        "began": found.began,
        "latest": found.latest,
        "wall_s": round(found.wall_s, 6),
        "nodes": list(found.nodes),
        "missing_nodes": list(found.missing_nodes),
        "earlier_runs": found.earlier_runs,
        "world_size": found.world_size,
        "replicas": [list(replica) for replica in found.replicas],
        "strategy": found.strategy,
        "promise": found.promise,
        "weakened": {"step": found.weakened_at, "reason": found.weakened}
        if found.weakened
        else None,
        "steered": {"step": found.steered_at, "reason": found.steered} if found.steered else None,
        "inject": found.inject,
        "attempts": found.attempts,
        "last_step": found.last_step,
        "steps_done": found.steps_done,
        "steps_again": found.steps_again,
        "survived": found.survived,
        "returned": found.returned,
        "median_step_ms": found.goodput.usual_us / 1000,
        "goodput": goodput_json(found.goodput),
        "redone_microbatches": found.redone,
        "taken_over_microbatches": found.taken_over,
        "lost_s": round(found.lost_s, 6),
        "total_microbatches": found.total,
        "invariant": proof_json(found.proof),
        "losses": [_loss_json(loss) for loss in found.losses],
        "returns": [_way_json(way) for way in found.ways],
        "steps_back": [asdict(one) for one in found.steps_back],
        "stragglers": [asdict(one) for one in found.slow],
        "root_cause": None if root is None else _root_json(root),
        "causes": dict(Counter(loss.cause.root.cause for loss in found.losses)),
        "missing_records": found.missing_records,
        "missing_from_step": found.missing_from,
        "unreadable": list(found.unreadable),
        "unreadable_places": found.unreadable_places,
        "unknown_events": list(found.unknown_events),
    }


def proof_json(proof: Proof) -> dict[str, Json]:
    return {
        "verdict": proof.verdict,
        "steps": proof.steps,
        "exact": proof.exact,
        "microbatches": proof.microbatches,
        "violations": [
            {"invariant": one.invariant, "step": one.step, "what": one.what}
            for one in proof.violations
        ],
        "unproved": list(proof.unproved),
        "notes": list(proof.notes),
    }


def _root_json(root: RootCause) -> dict[str, Json]:
    return {
        "rank": root.rank,
        "node": root.node,
        "pid": root.pid,
        "cause": root.cause,
        "what": root.what,
        "ts": root.ts,
        "victims": list(root.victims),
        "cascades": root.cascades,
        "tied": list(root.tied),
        "same_error": list(root.same),
        "own_errors": list(root.others),
        "why_first": root.why_first,
        "confidence": root.confidence,
        "evidence": root.evidence,
    }


def _way_json(way: ReturnWay) -> dict[str, Json]:
    return {
        "replica": way.slot,
        "ranks": list(way.ranks),
        "attempt": way.attempt,
        "number": way.number,
        "state": way.state,
        "lost": way.lost or None,
        "started": way.started or None,
        "ready": way.ready or None,
        "back": way.back or None,
        "step": way.step,
        **dict.fromkeys(f"{part.replace(' ', '_')}_ms" for part in WAY_PARTS),
        **way.fields_ms,
        "bytes": way.parts.size,
        "sources": list(way.parts.sources),
        "replicas": way.live,
        "ended": way.why,
    }


def _loss_json(loss: LossReport) -> dict[str, Json]:
    times: dict[str, Json] = {f"{part}_ms": ms for part, ms in loss.parts_ms}
    return {
        "number": loss.number,
        "ts": loss.cause.loss.ts,
        "replica": loss.slot,
        "generation": loss.generation,
        "root_rank": loss.cause.root.rank,
        "root_cause": _root_json(loss.cause.root),
        "survived": loss.total_ms >= 0,
        "step": loss.step,
        "redone": loss.redone,
        "redone_identities": [list(identity) for identity in loss.again],
        "moved": [
            {"replica": move.replica, "identities": [list(i) for i in move.identities]}
            for move in loss.moved
        ],
        "total_ms": loss.total_ms if loss.total_ms >= 0 else None,
        **times,
    }
