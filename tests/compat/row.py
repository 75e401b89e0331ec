"""One script or a feature that is tried, and what must come of it."""

from dataclasses import dataclass, replace
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"
PHASES = ("forward", "reduce", "vote")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`apart` bounds max |Δw| between the runs with and without a kill; scripts train in double
    precision where they can, so that nothing but another order of sums is below it.
    """

    name: str
    script: str
    arguments: tuple[str, ...] = ()
    ranks: int = 3
    promise: str = "exact-samples"
    why: str = ""  # of another promise: part of the reason that the run must give
    taken_back: str = ""  # part of the reason for which a loss ends the promise of exact samples
    apart: float = 1e-12
    kills: tuple[str, ...] = ()  # what `test_compat` tries
    victims: tuple[int, ...] = ()  # ranks that the table's kills strike; empty: any
    returns_after: int = 3  # the step in which a rank is killed whose replica is to come back
    returns_at: str = "forward"  # the phase of that step
    every: int = 0  # so many steps a snapshot is taken, where all ranks go back to one
    needs: str = ""  # a package beside torch

    @property
    def goes_back(self) -> bool:
        """No step outlives a loss, which sends all ranks back to a snapshot."""
        return self.promise == "rollback"

    @property
    def command(self) -> tuple[str, ...]:
        return (f"--nproc-per-node={self.ranks}", str(SCRIPTS / self.script), *self.arguments)


def going_back(row: Row, *, why: str, ranks: int = 0, name: str = "", apart: float = 0.0) -> Row:
    """The same job, of which no step outlives a loss; under this `name` and with so many `ranks`,
    if they are given. It is over before anybody takes snapshots without being asked.
    """
    return replace(
        row,
        name=name or row.name,
        ranks=ranks or row.ranks,
        promise="rollback",
        why=why,
        apart=apart,
        kills=(),
        every=2,
    )
