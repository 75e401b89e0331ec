"""A row of which no step outlives a loss: a rank is killed, and all go back to a snapshot."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rendezvous.journal.reader import Entry
from tests.compat.row import PHASES, Row
from tests.compat.trials import Outcome, judge, run
from tests.compat.watched_run import PATIENCE, watched

WITHIN_S = 400.0
"""Of two starts of all processes, on a machine that is busy."""

FIRST_KILL = 5
"""A step that `patience` lets nobody come to before a snapshot is safe."""


def tried(row: Row, folder: Path) -> Iterator[Outcome]:
    """One trial for each phase, with another rank and step."""
    plain, options = folder / "plain", (f"--snapshot-every={row.every}",)
    run(row, plain, options=options)
    for place, phase in enumerate(PHASES):
        inject = f"r{(place * 2 + 1) % row.ranks}@step:{FIRST_KILL + place}:{phase}"
        with _once_safe(folder / phase) as safe:
            trial = run(
                row,
                folder / phase,
                inject,
                {"COMPAT_SAFE": str(safe)},
                options=options,
                path=(PATIENCE,),
                within_s=WITHIN_S,
            )
        yield judge(row, plain, folder / phase, inject, trial)


@contextmanager
def _once_safe(folder: Path) -> Iterator[Path]:
    """A file that is there as soon as a snapshot is safe."""
    with watched(folder / "run", folder / "safe", _is_safe):
        yield folder / "safe"


def _is_safe(entry: Entry) -> bool:
    return entry.event == "snapshot.safe"
