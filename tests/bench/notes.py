"""Reads what scripts/losses.py noted: when ranks were killed, and when they applied a step.

All times are in milliseconds of CLOCK_MONOTONIC; the wall clock of a note only serves to find the
place of a journal's records on it, which were written on the same host.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.machine import median

WARM_UP_STEPS = 2
"""The first steps learn, allocate and connect."""


@dataclass(frozen=True, slots=True)
class Note:
    what: str
    step: int
    mono_ms: float
    wall_ms: float


Notes = Mapping[int, Sequence[Note]]
"""By rank, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Killing:
    rank: int
    step: int
    mono_ms: float
    wall_ms: float


def read(directory: Path, ranks: int) -> Notes:
    return {rank: _file(directory / f"notes.{rank}.jsonl") for rank in range(ranks)}


def _file(path: Path) -> list[Note]:
    if not path.exists():
        return []
    found = []
    for line in path.read_text().splitlines():
        fields = json.loads(line)
        at = fields["mono_ns"] / 1e6, fields["wall_ns"] / 1e6
        found.append(Note(fields["what"], fields["step"], *at))
    return found


def killings(notes: Notes) -> list[Killing]:
    """In order of time. Each is of the step that its rank had last spoken of."""
    found = []
    for rank, lines in notes.items():
        step = -1
        for line in lines:
            if line.what == "kill":
                found.append(
                    Killing(rank=rank, step=step, mono_ms=line.mono_ms, wall_ms=line.wall_ms)
                )
            elif line.what != "commit":
                step = line.step
    return sorted(found, key=lambda one: one.mono_ms)


def committed_ms(notes: Notes, killing: Killing, ranks: Sequence[int]) -> float | None:
    """When the last of `ranks` applied the step of the loss, after it; None if one never did."""
    last = 0.0
    for rank in ranks:
        times = [
            line.mono_ms
            for line in notes[rank]
            if line.what == "commit"
            and line.step == killing.step
            and line.mono_ms > killing.mono_ms
        ]
        if not times:
            return None
        last = max(last, times[0])
    return last


def calm_ms(notes: Notes, rank: int, phase: str, before: int) -> float:
    """The same stretch without a loss: from the point of `phase` to the last rank's commit."""
    spans = []
    for step in range(WARM_UP_STEPS, before):
        marks = [n.mono_ms for n in notes[rank] if n.what == phase and n.step == step]
        ends = [
            n.mono_ms for ns in notes.values() for n in ns if n.what == "commit" and n.step == step
        ]
        if marks and ends:
            spans.append(max(ends) - marks[0])
    return median(spans) if spans else float("nan")
