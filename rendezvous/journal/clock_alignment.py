"""One time for the journals of several nodes, whatever their wall clocks say.

A launcher writes two times into each line: its wall clock, which may be an hour off or be set while
the run goes on, and the seconds since it was started, which always go on evenly. Two wall clocks
are compared by what both nodes have written down of one moment: the coordinator gives a node its
place (`node.join`), and the launcher there begins its journal with that (`run.start`). Where they
differ by more than such a message may take, the node's times are moved; else they are left alone,
because clocks that are kept right are closer than that.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self, TypeVar

STEP_S = 1.0
"""A wall clock that strays by more from the even one was set."""

SKEW_S = 2.0
"""Clocks that differ by less are as good as the message that they are compared by."""


class Line(Protocol):
    """The fields of a journal's entry that are read."""

    @property
    def ts(self) -> float: ...
    @property
    def mono(self) -> float: ...
    @property
    def seq(self) -> int: ...
    @property
    def node(self) -> str: ...
    @property
    def event(self) -> str: ...
    def text(self, name: str, default: str = "") -> str: ...
    def moved(self, ts: float) -> Self: ...


L = TypeVar("L", bound=Line)


@dataclass(slots=True)
class _Even:
    """The two clocks of one launcher process when it began to write."""

    ts: float
    mono: float
    latest: float

    def time(self, line: Line) -> float:
        """The time at which the line was written, by the wall clock as it was when the process
        began.
        """
        self.latest = line.mono
        even = self.ts + line.mono - self.mono
        return even if abs(even - line.ts) > STEP_S else line.ts


@dataclass(slots=True)
class Clocks:
    """Those of all nodes of a run, as far as has been read."""

    _even: dict[str, _Even] = field(default_factory=dict)
    _began: dict[str, float] = field(default_factory=dict)  # node -> its first `run.start`
    _placed: dict[str, tuple[str, float]] = field(default_factory=dict)  # node -> by whom, when
    _ahead: dict[str, float] = field(default_factory=dict)  # node -> seconds, if they are many

    def align(self, files: Sequence[Sequence[L]]) -> list[list[L]]:
        """The lines of each file with times that can be compared."""
        even = [[line.moved(self._evened(line)) for line in lines] for lines in files]
        for line in (line for lines in even for line in lines):
            self._learn(line)
        self._compare()
        return [
            [line.moved(line.ts - self._ahead.get(line.node, 0.0)) for line in lines]
            for lines in even
        ]

    def _evened(self, line: Line) -> float:
        if not line.mono:  # as where it is not written at all
            return line.ts
        known = self._even.get(line.node)
        # Another launcher under the same name has a clock of its own.
        if known is None or line.seq == 0 or line.mono < known.latest:
            known = self._even[line.node] = _Even(line.ts, line.mono, line.mono)
        return known.time(line)

    def _learn(self, line: Line) -> None:
        if line.event == "run.start":
            self._began.setdefault(line.node, line.ts)
        elif line.event == "node.join" and (name := line.text("name")):
            self._placed.setdefault(name, (line.node, line.ts))

    def _compare(self) -> None:
        """Compute how far each node's clock is ahead of that of the first coordinator."""
        unknown = self._began.keys() & self._placed.keys() - self._ahead.keys()
        for node in sorted(unknown, key=lambda name: self._placed[name][1]):
            coordinator, placed_at = self._placed[node]
            if coordinator == node:
                continue
            ahead = self._began[node] - (placed_at - self._ahead.get(coordinator, 0.0))
            if abs(ahead) > SKEW_S:
                self._ahead[node] = ahead


def merged(files: Iterable[Sequence[L]]) -> list[L]:
    """Entries of several files by time, then number; the order of each file is kept.

    A clock that is set back must not turn a file's own order around, so an entry counts as not
    earlier than those before it in its file. Between nodes the order is as good as their clocks.
    """
    keyed: list[tuple[float, int, str, L]] = []
    for lines in files:
        latest = -math.inf
        for line in lines:
            latest = max(latest, line.ts)
            keyed.append((latest, line.seq, line.node, line))
    # The sort is stable, and a restarted number at the same instant is the only tie within a file.
    keyed.sort(key=lambda item: item[:3])
    return [item[3] for item in keyed]
