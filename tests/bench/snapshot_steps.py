"""`python -m tests.bench.snapshot_steps`: a step with snapshots against one without.

One process trains the same steps in turns without snapshots, with `auto` and with one in each step.
Compared is the processor time of the whole process in a step, the thread that copies included, the
keeper not; the mean over all steps behind the first ones, as only some have a snapshot.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from tests.bench import jobs, machine
from tests.bench.machine import median

FIRST = 10  # these learn, and take memory from the system
GOALS = {"auto": 1.01, "1": 1.03}


def cpu_ms(every: str, layers: int, steps: int) -> float:
    """Of a step, in one run."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        ran = jobs.run(
            "recoverrun",
            1,
            "counted_steps.py",
            [f"--layers={layers}", f"--steps={steps}", f"--into={place / 'spent.json'}"],
            directory=place,
            options=[f"--snapshot-every={every}", f"--run-dir={place / 'run'}"],
            timeout_s=1800.0,
        )
        jobs.must(ran)
        return statistics.mean(json.loads((place / "spent.json").read_text())[FIRST:])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.snapshot_steps")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    machine.heading("a step with snapshots", f"{12.6 * args.layers:.0f} MB, one process")
    found: dict[str, list[float]] = {every: [] for every in ("0", *GOALS)}
    for _ in range(args.rounds):
        for every, times in found.items():
            times.append(cpu_ms(every, args.layers, args.steps))
    ratios = {
        every: [one / usual for one, usual in zip(found[every], found["0"], strict=True)]
        for every in found
    }
    rows = [[e, machine.spread(found[e], 1), machine.spread(ratios[e], 3)] for e in found]
    machine.table(["--snapshot-every", "CPU of a step, ms", "ratio"], rows)
    for every, most in GOALS.items():
        ratio = median(ratios[every])
        machine.goal(f"a step with {every} takes {most} times one without ({ratio:.3f})",
                     ratio <= most)  # fmt: skip


if __name__ == "__main__":
    main()
