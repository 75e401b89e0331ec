"""All ranks wait: connections are black holes, one is stopped as it waits, or ranks have parted.

Rank 1 holds in its step, the others come to wait for it. Then the fault strikes, and rank 1 goes
on.
"""

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from rendezvous.protocol.exit_codes import ExitCode
from tests.e2e.hangs_alone import LIMIT_S, STEP, Weights, same_weights
from tests.e2e.hangs_black_holes import swallow
from tests.e2e.jobs import HANGING, HANGING_HSDP, Job
from tests.e2e.judge import ended_well, nothing_left
from tests.e2e.runs import Run, running

HOLDER = 1

PARTED = "the ranks wait for each other in different operations: "


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """`ranks` are struck while rank 1 holds at `where`."""

    ranks: tuple[int, ...]
    where: str = "body"
    job: Job = HANGING
    limit_s: float = LIMIT_S

    @property
    def _who(self) -> str:
        return f"{self.job.name.removeprefix('hanging-')} {'+'.join(map(str, self.ranks))}"

    @property
    def arguments(self) -> tuple[str, ...]:
        return ("--hang", f"hold:{self.where}:{HOLDER}:{STEP}")

    def _hold(self, run: Run) -> list[int]:
        """Wait until it holds; the processes of `ranks`."""
        os.mkfifo(run.out / "go")
        run.await_file(run.out / f"hangs{HOLDER}.json")
        return [run.pid_of(rank) for rank in self.ranks]

    def _go(self, run: Run) -> float:
        (run.out / "go").write_bytes(b"on")
        return time.time()


def _committed(run: Run) -> float:
    (commit,) = (r["ts"] for r in run.records("step.commit") if r["step"] == STEP)
    return float(commit)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlackHole(_Held):
    """Swallows what arrives at `ranks` from ranks `of`; `new`: also over new connections.

    `lost` are the ranks of replicas that this ends: those within which it happens.
    """

    of: tuple[int, ...]
    new: bool = False
    lost: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        of = "+".join(map(str, self.of))
        return f"{self._who} cannot hear {of}{', for ever' if self.new else ''}"

    def strike(self, folder: Path, weights: Weights) -> float:
        """Seconds until the step is over, or the job."""
        bound_s = self.limit_s + 90.0
        with running(self.job, folder, arguments=self.arguments, bound_s=bound_s) as run:
            deaf, others = self._hold(run), [run.pid_of(rank) for rank in self.of]
            assert swallow(deaf, others, new=self.new), "no connection"
            since = self._go(run)
            if self.new:
                assert run.finish() == ExitCode.HANG, run.story()
                nothing_left(run)
                return float(run.records("run.end")[-1]["ts"]) - since
            ended_well(run)
            nothing_left(run)
            met = [record["reason"] for record in run.records("hang.stick")]
            assert len(met) == (not self.lost), f"{met}{run.story()}"
            assert run.finishers() == sorted(set(range(self.job.ranks)) - {*self.lost})
            same_weights(run, weights)
            return _committed(run) - since


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped(_Held):
    """SIGSTOP, as it waits."""

    @property
    def name(self) -> str:
        return f"{self._who} stop as it waits"

    def strike(self, folder: Path, weights: Weights) -> float:
        """Seconds from the stop until the step is over."""
        (rank,) = self.ranks
        with running(self.job, folder, arguments=self.arguments) as run:
            (pid,) = self._hold(run)
            run.await_wait(pid, STEP)
            os.kill(pid, signal.SIGSTOP)
            since = self._go(run)
            ended_well(run)
            nothing_left(run)
            (condemned,) = run.records("hang.condemn")
            assert (condemned["rank"], condemned["proof"]) == (rank, "stopped"), run.story()
            lost = set(self.job.replica_of(rank))
            assert run.finishers() == sorted(set(range(self.job.ranks)) - lost), run.story()
            same_weights(run, weights)
            return _committed(run) - since


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Rank 1 makes one barrier too many."""

    places: tuple[str, ...]
    job: Job = HANGING
    limit_s: float = LIMIT_S

    @property
    def name(self) -> str:
        return f"{self.job.name.removeprefix('hanging-')} one barrier too many of {HOLDER}"

    def strike(self, folder: Path, weights: Weights) -> float:
        """Seconds until the job has ended."""
        del weights
        barrier = ("--hang", f"barrier:body:{HOLDER}:{STEP}")
        with running(self.job, folder, arguments=barrier) as run:
            assert run.finish() == ExitCode.DO_NOT_REQUEUE, run.story()
            nothing_left(run)
            (parted,) = run.records("hang.part")
            for place in (PARTED, *self.places):
                assert place in parted["reason"], run.story()
            assert not run.records("replica.lost"), run.story()
            mark = json.loads((run.out / f"hangs{HOLDER}.json").read_text())
            return float(run.records("run.end")[-1]["ts"]) - float(mark["at"])


BARRIER = "rank 1 in dist.barrier (at hanging.py:"
CELLS = (
    BlackHole(ranks=(0, 1, 2), of=(0, 1, 2)),
    BlackHole(ranks=(1,), of=(0, 2)),
    BlackHole(ranks=(2,), of=(0, 1), where="backward"),
    BlackHole(ranks=(0,), of=(2,), job=HANGING_HSDP),
    BlackHole(ranks=(0, 1), of=(2, 3), job=HANGING_HSDP),
    BlackHole(ranks=(3,), of=(2,), job=HANGING_HSDP, lost=(2, 3)),
    BlackHole(ranks=(0, 1, 2), of=(0, 1, 2), new=True, limit_s=80),
    Stopped(ranks=(2,)),
    Stopped(ranks=(3,), job=HANGING_HSDP),
    Parts(places=(BARRIER, "ranks 0, 2 in the reduction of gradients (at hanging.py:")),
    Parts(
        job=HANGING_HSDP,
        places=(
            "rank 0 in torch's own communication (at hanging.py:", BARRIER,
            "ranks 2, 3 in the reduction of gradients (at hanging.py:",
        ),
    ),
)  # fmt: skip
