"""Records as the lines of a journal: checked, numbered, encoded as JSON."""

import json
import math
from dataclasses import dataclass, replace

from rendezvous.journal.events import ENVELOPE, ESSENTIAL, EVENTS, FORMAT
from rendezvous.journal.step_lines import STEPS, StepWriter
from rendezvous.protocol.records import Json, Record

TEXT_LIMIT = 4096
"""Characters that one string of a record may have; longer ones are clipped at the writer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalLine:
    """One record as it goes into the file, with its end of line."""

    data: bytes
    record: Record
    refers: int  # to the number of a full line that it cannot be read without; -1: it is full
    seq: int
    mono: float  # seconds since the launcher started
    wall: float  # seconds since 1970
    step: int  # committed here, or else under way; -1 unknown
    essential: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Records that the file lacks; times are those of `JournalLine`."""

    records: int
    seq: int  # of the last of them
    step: int  # under way at the first of them; -1 unknown
    since: float  # wall
    mono: float  # of the last of them
    wall: float

    @classmethod
    def of(cls, line: JournalLine) -> "Missing":
        return cls(
            records=1, seq=line.seq, step=line.step, since=line.wall, mono=line.mono, wall=line.wall
        )  # fmt: skip


def joined(one: Missing | None, two: Missing) -> Missing:
    """Both together."""
    if one is None:
        return two
    first = min(one, two, key=lambda missing: missing.since)
    last = max(one, two, key=lambda missing: missing.seq)
    records = one.records + two.records
    return replace(first, records=records, seq=last.seq, mono=last.mono, wall=last.wall)


class Lines:
    """Makes the lines of one node's journal."""

    def __init__(self, node: str, origin: float) -> None:
        """`origin` is the monotonic time at which the launcher started."""
        self._node = node
        self._origin = origin
        self._seq = 0
        self._step = -1
        self._steps = StepWriter()

    def begin_anew(self) -> None:
        """A line is missing: the next one must not rely on any before it. From any thread."""
        self._steps = StepWriter()

    def line(self, record: Record, *, mono: float, wall: float) -> JournalLine:
        """The next line. `mono` is of the clock that gave `origin`, `wall` in seconds since 1970.

        A record that is not as the table of events says is a programming error.
        """
        _check(record)
        step = self._step
        if record.event in STEPS and isinstance(record.fields["step"], int):
            step = record.fields["step"]
            self._step = step + 1
        since = round(mono - self._origin, 6)
        steps = self._steps
        short = steps.short(record, self._seq, since)
        refers = steps.full_seq if short else -1
        steps.written(record, self._seq, short=bool(short))
        full = b"" if short else self._encoded(record, seq=self._seq, mono=since, wall=wall)
        line = JournalLine(
            data=f"{short}\n".encode("ascii") if short else full,
            record=record,
            refers=refers,
            seq=self._seq,
            mono=since,
            wall=wall,
            step=step,
            essential=record.event in ESSENTIAL,
        )
        self._seq += 1
        return line

    def full(self, line: JournalLine) -> JournalLine:
        """`line` so that it can be read without any other."""
        data = self._encoded(line.record, seq=line.seq, mono=line.mono, wall=line.wall)
        return replace(line, data=data, refers=-1)

    def told(self, missing: Missing, why: str) -> bytes:
        """The line that stands in the place of missing ones; it has the number of the last."""
        fields: dict[str, Json] = {
            "records": missing.records, "since": round(missing.since, 6), "step": missing.step
        }  # fmt: skip
        record = Record("journal.drop", why, fields)
        return self._encoded(record, seq=missing.seq, mono=missing.mono, wall=missing.wall)

    def _encoded(self, record: Record, *, seq: int, mono: float, wall: float) -> bytes:
        line: dict[str, Json] = {
            "v": FORMAT,
            "ts": round(wall, 6),
            "mono": mono,
            "seq": seq,
            "node": self._node,
            "ev": record.event,
            "reason": record.reason,
        }
        line.update(record.fields)
        text = json.dumps(_plain(line), separators=(",", ":"), allow_nan=False)
        return text.encode("ascii") + b"\n"


def _plain(value: Json) -> Json:
    """`value` with long strings clipped and non-finite numbers (no JSON) as null."""
    if isinstance(value, str):
        return value if len(value) <= TEXT_LIMIT else value[: TEXT_LIMIT - 1] + "…"
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


def _check(record: Record) -> None:
    known = EVENTS.get(record.event)
    assert known is not None, f"no such journal event: {record.event!r} (see EVENTS)"
    absent = [name for name in known.required if name not in record.fields]
    assert not absent, f"{record.event} without {absent}: {dict(record.fields)}"
    clash = sorted(ENVELOPE & record.fields.keys())
    assert not clash, f"{record.event}: fields {clash} belong to the line, not to the event"
