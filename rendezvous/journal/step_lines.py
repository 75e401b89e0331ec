"""Lines of committed steps that say only what has changed since the last full one.

Nearly all steps of a run differ in nothing but their number and their time. Such a step is a list,
`[seq, back, step, mono, ms]`, and stands for the full record of a step `back` numbers before it in
the same file: the writer leaves out what is the same, the reader puts it back, and whoever counts
afterwards sees whole records only. Without that very record a short line says nothing, so damage
costs records and never changes one.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeGuard, cast

from rendezvous.protocol.records import Json, Record

STEPS = ("step.commit", "step.part")
"""Events of which one is written for each step."""

FULL_EVERY = 256
"""Steps from one full record to the next, where nothing changes: damage costs no more."""

MOST = 1e11
"""Numbers beyond that are none that we have written."""

Line = Mapping[str, Json]
"""A full line, envelope and fields, as JSON has it."""

_OWN = frozenset({"step", "ms", "reason", "ts", "mono", "seq"})  # what differs in each line


def step_reason(step: int, microbatches: Json, total: Json) -> str:
    """The reason of the record of a step, which need not be written to be known."""
    return f"step {step}: {microbatches} of {total} microbatches"


@dataclass(slots=True)
class StepWriter:
    """The writer of one file's step lines. `seq` and `mono` are those of the line in question."""

    _full: Record | None = None
    _seq: int = 0  # of that
    _left: int = 0  # short lines that may follow it

    @property
    def full_seq(self) -> int:
        """The number of the full line that a short one stands on."""
        return self._seq

    def short(self, record: Record, seq: int, mono: float) -> str:
        """The short line of a record, or "" if it has to be written in full."""
        full, fields = self._full, record.fields
        if full is None or full.event != record.event or not self._left:
            return ""
        step, ms = fields.get("step"), fields.get("ms")
        same = _rest(fields) == _rest(full.fields) and record.reason == _reason(fields)
        if not same or not isinstance(step, int) or not _bounded(ms):
            return ""
        line = [seq, seq - self._seq, step, round(mono, 3), round(ms, 3)]
        return json.dumps(line, separators=(",", ":"))

    def written(self, record: Record, seq: int, *, short: bool) -> None:
        """The line of a record is in the file."""
        if short:
            self._left -= 1
        elif record.event in STEPS:
            self._full, self._seq, self._left = record, seq, FULL_EVERY - 1


@dataclass(slots=True)
class StepReader:
    """The reader of one file's step lines: takes its lines in their order, as JSON."""

    _full: Line | None = None
    _seq: int = -1
    sound: bool = False  # the numbers of the full line are such that a run can have
    _ts: float = 0.0  # of the last full line of any kind, by both clocks
    _mono: float = 0.0
    _refusing: bool = field(default=False)

    def whole(self, raw: object) -> tuple[object, str]:
        """The full line that `raw` stands for, or None and why not; "" if that was said before."""
        if not isinstance(raw, list):
            if isinstance(raw, dict):
                self._follow(cast("dict[str, Json]", raw))
            return raw, ""
        match raw:
            case [int(seq), int(back), int(step), mono, ms] if all(map(_bounded, raw)):
                pass
            case _:
                return None, "not a record"
        restarted, self._seq = seq < self._seq, seq
        if self._full is None or restarted or self._full["seq"] != seq - back:
            refusing, self._refusing, self._full = self._refusing, True, None
            return None, "" if refusing else "steps whose full record is not there"
        times = {"ts": round(self._ts + mono - self._mono, 6), "mono": mono, "seq": seq}
        line = {**self._full, **times, "step": step, "ms": ms}
        return {**line, "reason": _reason(line)}, ""

    def _follow(self, line: dict[str, Json]) -> None:
        seq, ts, mono = line.get("seq"), line.get("ts"), line.get("mono")
        if not isinstance(seq, int) or not _bounded(ts) or not _bounded(mono):
            return
        if seq < self._seq:  # another launcher, which appends to the file of its predecessor
            self._full = None
        self._seq, self._ts, self._mono = seq, ts, mono
        if line.get("ev") in STEPS:
            self._full, self._refusing, self.sound = line, False, False


def full_lines(lines: Iterable[bytes]) -> list[dict[str, Json]]:
    """The records of whole lines of one file, each in full; ValueError for one that is none."""
    reader = StepReader()
    found = []
    for line in lines:
        raw, why = reader.whole(json.loads(line))
        if not isinstance(raw, dict):
            raise ValueError(why or "not a record")
        found.append(raw)
    return found


def _bounded(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and abs(value) < MOST  # False for NaN too


def _rest(fields: Line) -> dict[str, Json]:
    return {name: value for name, value in fields.items() if name not in _OWN}


def _reason(fields: Line) -> str:
    step = fields.get("step")
    known = step if isinstance(step, int) else -1
    return step_reason(known, fields.get("microbatches"), fields.get("total"))
