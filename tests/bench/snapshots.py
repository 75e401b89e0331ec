"""`python -m tests.bench.snapshots`: what a snapshot in memory costs, beside torch's async_save.

One process takes snapshots, and saves the same state with `torch.distributed.checkpoint.async_save`
in steps between, by a thread and by a process, each with a stager that it keeps: in one run, so
that a slow moment slows all three. Held up is the script's own thread: at the top of the step and
at the fence for a snapshot (less what both are in steps without one), in the call for a save; what
threads and processes do beside the steps that follow counts for none of them. Where others use the
machine the CPU time of that thread says more than the wall clock. Then the process is killed.
Putting a snapshot back in place is compared with `load` of a save, from the system's cache and from
the disk. From the kill to the end of the first new step counts what that takes beyond the same of
the first process: its imports, its first lines and a first step.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rendezvous.journal.reader import read_run
from tests.bench import jobs, machine
from tests.bench.machine import median

EVERY = 9
LAYER_MB = 12.6  # 1024 x 1024 numbers of 4 bytes, and two more in the optimizer
SKIPPED = 2  # the first of each kind learns, and takes memory from the system

SHORTER, OFTENER, LOADS, FIRST = 14.0, 10.0, 12.0, 3.0
KEEPER_MB, KEEPER_S = 30.0, 1.5
BUDGET = 0.01  # of training time
AWAY_S, BYTES_PER_S = 1.0, 2e9


@dataclass(frozen=True, slots=True)
class GoneBack:
    """Seconds by wall clock (0) and CPU (1)."""

    put: list[float]  # from the loop until all is in place
    beyond: list[float]  # until the first new step is done, less the same of the first process


@dataclass(frozen=True, slots=True)
class Measured:
    """The findings of one run of the script, as it has written them."""

    found: dict[str, list[list[float]]]
    loads: list[list[list[float]]]  # milliseconds: from the cache, from the disk
    nbytes: int
    keeper: dict[str, float]
    back: GoneBack | None

    def held(self, kind: str, at: int) -> list[float]:
        """Milliseconds by wall clock (0) or CPU (1), without what a step has without a snapshot."""
        return [self._beyond(one, kind, at) for one in self.found[kind][SKIPPED:]]

    @property
    def first_ms(self) -> float:
        """CPU of the first snapshot: there is none at step 0."""
        return self._beyond(self.found["snapshot"][1], "snapshot", 1)

    def _beyond(self, one: list[float], kind: str, at: int) -> float:
        usual = median([each[at] for each in self.found["none"]]) if kind == "snapshot" else 0.0
        return max(one[at] - usual, 0.0)


def measured(layers: int, rounds: int, *, killed: bool) -> Measured:
    steps = EVERY * (rounds + SKIPPED) + EVERY - 1
    options = [f"--snapshot-every={EVERY}"]
    if killed:
        options.append(f"--inject=r0@step:{steps - 3}:forward")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        arguments = [f"--layers={layers}", f"--steps={steps}", f"--every={EVERY}"]
        ran = jobs.run(
            "recoverrun",
            1,
            "kept.py",
            [*arguments, f"--into={place / 'saves'}"],
            directory=place,
            options=[*options, f"--run-dir={place / 'run'}"],
            timeout_s=1800.0,
        )
        jobs.must(ran)
        told = json.loads((place / "saves" / "found.json").read_text())
        back = _gone_back(place) if killed else None
    return Measured(told["found"], told["loads"], told["bytes"], told["keeper"], back)


def _gone_back(place: Path) -> GoneBack:
    """Of the second process, beside the first."""
    journal = read_run(place / "run")
    began, *_ = (entry.ts for entry in journal.of("worker.spawn"))
    killed, *_ = (entry.ts for entry in journal.of("worker.exit"))
    files = sorted((place / "saves").glob("places-*"), key=lambda path: path.stat().st_mtime)
    first, second = ([list(map(float, line.split())) for line in path.read_text().splitlines()]
                     for path in files)  # fmt: skip
    put = [second[1][at] - second[0][at] - (first[1][at] - first[0][at]) for at in range(2)]
    wall = (second[2][0] - killed) - (first[2][0] - began)
    return GoneBack(put, [wall, second[2][1] - first[2][1]])


def rows(one: Measured) -> list[list[str]]:
    table = []
    for kind in ("snapshot", "thread", "process"):
        cells = [kind if kind == "snapshot" else f"async_save, {kind}"]
        for at in (0, 1):
            cells.append(machine.spread(one.held(kind, at), 1))
            cells.append(f"{_ratio(one, kind, at):.1f}")
        table.append(cells)
    return table


def _ratio(one: Measured, kind: str, at: int) -> float:
    """The time that it takes, in snapshots."""
    return median(one.held(kind, at)) / max(median(one.held("snapshot", at)), 0.001)


def show(layers: int, rounds: int) -> None:
    one = measured(layers, rounds, killed=False)
    mb = one.nbytes / 1e6
    machine.heading("snapshots", f"{mb:.0f} MB of parameters and optimizer state, one process")
    machine.table(["training is held up", "wall, ms", "ratio", "CPU, ms", "ratio"], rows(one))
    for at, clock in enumerate(("wall clock", "CPU")):
        least = min(_ratio(one, kind, at) for kind in ("thread", "process"))
        words = f"held up {SHORTER:g} times shorter than by async_save, by {clock}"
        machine.goal(f"{words} ({least:.1f})", least >= SHORTER)
    later = one.first_ms / max(median(one.held("snapshot", 1)), 0.001)
    words = f"the first snapshot takes {FIRST:g} times the CPU of a later one ({later:.1f})"
    machine.goal(words, later <= FIRST)
    taken = len(one.found["snapshot"]) - 1  # there is none at step 0
    cpu_s = one.keeper["cpu_s"] / (taken * one.nbytes / 1e9)
    _budget(one, 1000 * cpu_s * one.nbytes / 1e9)
    private_mb = one.keeper["bytes"] / 1e6
    words = f"the keeper has {KEEPER_MB:g} MB besides ({private_mb:.0f})"
    machine.goal(words, private_mb <= KEEPER_MB)
    words = f"{KEEPER_S:g} s of its CPU for each GB ({cpu_s:.2f}, its start included)"
    machine.goal(words, cpu_s <= KEEPER_S)
    _restoring([measured(layers, 1, killed=True) for _ in range(max(1, rounds // 3))])


def _budget(one: Measured, keeper_ms: float) -> None:
    """As often as costs `BUDGET` of training, and not before the one before is kept."""
    apart = {"snapshot": max(median(one.held("snapshot", 1)) / BUDGET, keeper_ms)}
    for kind in ("thread", "process"):
        done = median([each[2] for each in one.found[kind][SKIPPED:]])
        apart[kind] = max(median(one.held(kind, 1)) / BUDGET, done)
    rows = [[kind, f"{ms / 1000:.2f}"] for kind, ms in apart.items()]
    machine.table([f"within {100 * BUDGET:g} % of training, by CPU", "one in, s"], rows)
    times = min(apart["thread"], apart["process"]) / apart["snapshot"]
    words = f"{OFTENER:g} times as often as async_save within {100 * BUDGET:g} %"
    machine.goal(f"{words} ({times:.1f})", times >= OFTENER)


def _restoring(runs: Sequence[Measured]) -> None:
    backs = [run.back for run in runs if run.back is not None]
    found = {"snapshot": [[1000 * one for one in back.put] for back in backs]}
    for at, name in enumerate(("load of a save, from the cache", "load of a save, from the disk")):
        found[name] = [one for run in runs for one in run.loads[at]]
    rows = [
        [name, *(machine.spread([one[at] for one in times], 0) for at in range(2))]
        for name, times in found.items()
    ]
    machine.table(["all is in place again", "wall, ms", "CPU, ms"], rows)
    ours, *theirs = ([median([one[at] for one in each]) for at in range(2)]
                     for each in found.values())  # fmt: skip
    for place, (wall, cpu) in zip(("cache", "disk"), theirs, strict=True):
        times, by_cpu = wall / ours[0], cpu / ours[1]
        words = f"{LOADS:g} times sooner than by load from the {place}"
        met = times >= LOADS and (place == "disk" or by_cpu >= LOADS)
        machine.goal(f"{words} ({times:.1f}; by CPU {by_cpu:.1f})", met)
    most = AWAY_S + runs[0].nbytes / BYTES_PER_S
    wall, cpu = (median([back.beyond[at] for back in backs]) for at in range(2))
    words = f"kill to first new step: imports, prologue, first step and {most:.2f} s"
    machine.goal(f"{words} ({wall:.2f}; by CPU {cpu:.2f})", max(wall, cpu) <= most)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.snapshots")
    parser.add_argument("--mb", type=float, default=300)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    show(max(1, round(args.mb / LAYER_MB)), args.rounds)


if __name__ == "__main__":
    main()
