"""The records of a node's journal that are told to others, and their words. Pure.

Every node has a journal, and each event has to be told once. So a node tells what its own journal
alone has: losses, hangs and returns are recorded by the coordinator. All nodes record the end; the
one tells it that coordinates. After a takeover something may be told twice: `id` says which.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from recoverrun.text import named_signals, sanitize
from rendezvous.journal.reader import Entry
from rendezvous.protocol.records import INHERITED, PART, Json

CLASS_OF: Mapping[str, str] = {
    "replica.lost": "loss",
    "hang.condemn": "hang",
    "hang.stick": "hang",
    "hang.part": "hang",
    "straggler.find": "straggler",
    "replica.prove": "return",
    "job.restart": "restart",
    "run.end": "end",
}

LEADING = ("node.join", "leader.succeed")
"""Only the node that coordinates has records of these."""


@dataclass(frozen=True, slots=True)
class ToldEvent:
    """One event, as it goes out."""

    kind: str
    text: str
    record: Mapping[str, Json]

    def payload(self) -> dict[str, Json]:
        return {"text": self.text, "record": dict(self.record)}


@dataclass(slots=True)
class TellingNode:
    """Follows the journal of one node."""

    pid: int  # of its launcher
    node: str = ""
    run_id: str = ""
    name: str = ""  # of the script
    leads: bool = False

    def events(self, entries: Iterable[Entry]) -> Iterator[ToldEvent]:
        """The events in new records of any journal of the run, in order."""
        for entry in entries:
            if entry.event == "run.start" and entry.integer("pid") == self.pid:
                argv = entry.fields.get("argv")
                self.node, self.run_id = entry.node, entry.text("run_id")
                self.name = str(argv[0]) if isinstance(argv, list) and argv else "run"
            if not self.node or entry.node != self.node:
                continue
            self.leads |= entry.event in LEADING
            kind = CLASS_OF.get(entry.event, "")
            part = entry.flag(PART) and not entry.flag(INHERITED)
            if not kind or part or (kind == "end" and not self.leads):
                continue
            yield ToldEvent(kind, self._text(kind, entry), self._record(kind, entry))

    def _text(self, kind: str, entry: Entry) -> str:
        if kind == "end":
            code = entry.integer("exit_code", 1)
            how = "ended well" if not code else f"failed with exit code {code}"
            why = f": {named_signals(entry.reason)}" if code else ""
            return sanitize(f"{self.name} {how}{why}")
        where = f"replica {entry.integer('slot')} is lost: " if kind == "loss" else ""
        return sanitize(f"{self.name}: {kind}: {where}{named_signals(entry.reason)}")

    def _record(self, kind: str, entry: Entry) -> dict[str, Json]:
        return {
            "id": f"{self.run_id}/{entry.node}/{entry.seq}",
            "class": kind,
            "ts": entry.ts,
            "node": entry.node,
            "event": entry.event,
            "reason": entry.reason,
            **entry.fields,
        }
