"""The newest of several runs whose journals lie in one directory.

A directory that is used again keeps what was written there before, and a launcher appends to the
file of its predecessor. All launchers of a run write the same `folder` into their `run.start`: a
name that the run's first coordinator has made, which no other run has. So a launcher that takes
part again continues its run, and one that begins another run begins anew. Which run came later is
told by the order in a file: clocks are set.

A launcher that was never let in writes a start, too, without a rank. It is a run of its own only
where none is under way: one that has begun and not ended is what people ask for.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar


class Line(Protocol):
    """A record as it is read."""

    @property
    def ts(self) -> float: ...
    @property
    def event(self) -> str: ...
    def text(self, name: str) -> str: ...
    def integer(self, name: str) -> int: ...


L = TypeVar("L", bound=Line)


@dataclass(slots=True)
class _Run:
    """One run, as far as it is known: its beginning, its latest end, if it was formed."""

    began: float
    place: int = 0  # after so many others in the same file
    formed: bool = False
    ended: float = math.inf


@dataclass(slots=True)
class NewestRun:
    """Passes on what was written of the newest run in one directory, as files grow."""

    name: str = ""  # of the newest run, "" as long as none is known
    _runs: dict[str, _Run] = field(default_factory=dict)
    _at: dict[str, str] = field(default_factory=dict)  # file -> the run that it tells of now

    @property
    def earlier(self) -> int:
        """The number of the others."""
        return max(0, len(self._runs) - 1)

    def take(self, files: Sequence[tuple[str, Sequence[L]]]) -> list[list[L]]:
        """The lines of the newest run, of each file by its name.

        Where another run is the newest from now on (`name`), what was passed on before is void.
        """
        told = [[(self._run_of(name, line), line) for line in lines] for name, lines in files]
        self.name = self._newest()
        # What stands before any start cannot be told apart.
        return [[line for run, line in lines if run in ("", self.name)] for lines in told]

    def _run_of(self, file: str, line: Line) -> str:
        if line.event == "run.start":
            before, name = self._at.get(file, ""), line.text("folder") or line.text("run_id")
            self._at[file] = name
            if name:
                run = self._runs.setdefault(name, _Run(line.ts))
                if before and before != name:
                    run.place = max(run.place, self._runs[before].place + 1)
                run.began = min(run.began, line.ts)
                run.formed |= line.integer("world_size") != 0
        at = self._at.get(file, "")
        if line.event == "run.end" and at:
            ended = self._runs[at].ended
            self._runs[at].ended = line.ts if math.isinf(ended) else max(ended, line.ts)
        return at

    def _newest(self) -> str:
        by_age = sorted(self._runs.items(), key=lambda one: (one[1].place, one[1].began, one[0]))
        newest = ""
        for name, run in by_age:
            if not newest or run.formed or run.began > self._runs[newest].ended:
                newest = name
        return newest
