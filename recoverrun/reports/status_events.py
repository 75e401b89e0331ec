"""The event list of `status`: the records of a journal that are worth a line, in words."""

from dataclasses import dataclass
from typing import Literal

from recoverrun.reports.history import History
from recoverrun.reports.postmortem import meaning
from recoverrun.reports.proof import lacking
from recoverrun.reports.recoveries import recovery_in, step_complete
from recoverrun.reports.returns import is_back
from recoverrun.text import named_signals, plural, sanitize
from rendezvous.journal.reader import Entry

Kind = Literal["lost", "survived", "moved", "joined", "warning", "note", "end"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """One line of the event list."""

    ts: float
    kind: Kind
    text: str


def happening_of(entry: Entry, facts: History) -> Happening | None:
    """The line of the event list that a record is worth, if any."""
    found = _line(entry, facts)
    if found is None:
        return None
    text = sanitize(named_signals(found[1]))
    return Happening(ts=entry.ts, kind=found[0], text=text)


def _line(entry: Entry, facts: History) -> tuple[Kind, str] | None:
    match entry.event:
        case "replica.lost":
            return "lost", f"replica {entry.integer('slot')} lost: {entry.reason}"
        case "recovery.done":
            return "survived", step_complete(recovery_in(entry))
        case "replica.start" | "replica.ready":
            return "note", entry.reason
        case "replica.prove":
            way = facts.returns.at(entry.integer("slot"), entry.integer("step"))
            return "joined", is_back(way)
        case "node.lost":
            return "lost", f"node lost: {entry.reason}"
        case "node.join":
            joined = entry.text("name") or entry.node
            return "joined", f"{joined} joined with {plural(entry.integer('nproc', 0), 'worker')}"
        case "worker.exit":
            if facts.returns.failed(entry) is not None:
                return "warning", f"{entry.reason}, before it took part again"
            death = facts.deaths[-1] if facts.deaths else None
            faulty = death is not None and not death.ours and bool(death.signal or death.code)
            return ("lost", entry.reason) if faulty and not facts.replicas else None
        case "snapshot.plan" | "snapshot.restored":
            return "moved", str(facts.steps_back.found[-1])
        case "topology.learn":
            return "note", f"topology: {_shape(facts)}, strategy {entry.text('strategy')}"
        case "promise.state":
            return "note", f"promise {entry.text('promise')}: {entry.reason}"
        case "hang.suspect" | "hang.quiet" | "hang.part" | "hang.stick" | "straggler.find":
            return "warning", entry.reason
        case "hang.clear" | "straggler.clear":
            return "note", entry.reason
        case "invariant.break":
            return "warning", f"{entry.text('invariant')} is broken: {entry.reason}"
        case "digest.differ":
            return "warning", f"replicas differ: {entry.reason}"
        case "journal.drop":
            return "warning", lacking(facts)
        case "notice.give":
            rank = entry.integer("rank")  # -1: no rank said so, but a launcher
            return "note", f"rank {rank}: {entry.reason}" if rank >= 0 else entry.reason
        case "run.end":
            told = any(end.same(facts.ends[-1]) for end in facts.ends[:-1])
            return None if told else ("end", _ended(entry))
        case _:
            return None


def _shape(facts: History) -> str:
    if not facts.replicas:
        return "unknown"
    return f"{plural(len(facts.replicas), 'replica')} of {plural(len(facts.replicas[0]), 'rank')}"


def _ended(entry: Entry) -> str:
    code = entry.integer("exit_code", 1)
    words = meaning(code) or entry.reason
    return f"ended with code {code}" + (f": {words}" if words else "")
