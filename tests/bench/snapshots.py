"""`python -m tests.bench.snapshots`: what a snapshot in memory costs, beside torch's async_save.

One process takes snapshots, and saves the same state with `torch.distributed.checkpoint.async_save`
in steps between, by a thread and by a process, each with a stager that it keeps: in one run, so
that a slow moment slows all three. Held up is the script's own thread: at the top of the step and
at the fence for a snapshot (less what both are in steps without one), in the call for a save; what
threads and processes do beside the steps that follow counts for none of them. Where others use the
machine the CPU time of that thread says more than the wall clock. Then the process is killed, and
what it takes to put a snapshot back in place is compared with `load` of a save that the system
still has in memory.
"""

import argparse
import json
import statistics
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


@dataclass(frozen=True, slots=True)
class Measured:
    """The findings of one run of the script, as it has written them."""

    found: dict[str, list[list[float]]]
    loads: list[float]
    nbytes: int
    keeper: dict[str, float]
    state_ms: float  # 0: nobody went back

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
        restored = list(read_run(place / "run").of("snapshot.restored"))
        state_ms = restored[-1].number("state_ms") if restored else 0.0
        assert bool(restored) == killed, ran.output
    return Measured(told["found"], told["loads"], told["bytes"], told["keeper"], state_ms)


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
        machine.goal(f"as often within 1 %, {OFTENER:g} times ({least:.1f})", least >= OFTENER)
    later = one.first_ms / max(median(one.held("snapshot", 1)), 0.001)
    words = f"the first snapshot takes {FIRST:g} times the CPU of a later one ({later:.1f})"
    machine.goal(words, later <= FIRST)
    taken = len(one.found["snapshot"]) - 1  # there is none at step 0
    cpu_s = one.keeper["cpu_s"] / (taken * one.nbytes / 1e9)
    private_mb = one.keeper["bytes"] / 1e6
    words = f"the keeper has {KEEPER_MB:g} MB besides ({private_mb:.0f})"
    machine.goal(words, private_mb <= KEEPER_MB)
    words = f"{KEEPER_S:g} s of its CPU for each GB ({cpu_s:.2f}, its start included)"
    machine.goal(words, cpu_s <= KEEPER_S)
    _restoring([measured(layers, 1, killed=True) for _ in range(max(1, rounds // 3))])


def _restoring(runs: Sequence[Measured]) -> None:
    ours, theirs = [run.state_ms for run in runs], [one for run in runs for one in run.loads]
    times = statistics.median(theirs) / median(ours)
    machine.table(
        ["all is in place again", "ms"],
        [["snapshot", machine.spread(ours, 0)], ["load of a save", machine.spread(theirs, 0)]],
    )
    machine.goal(f"{LOADS:g} times sooner than by load ({times:.1f})", times >= LOADS)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.snapshots")
    parser.add_argument("--mb", type=float, default=300)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    show(max(1, round(args.mb / LAYER_MB)), args.rounds)


if __name__ == "__main__":
    main()
