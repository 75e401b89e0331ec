"""`python -m tests.bench.returns`: from a kill to the first step with all replicas again.

One replica of two is killed from outside, again and again, and started again at once each time.
Times are those of the journal: from the end of the process to the commit of the first step that it
takes part in. Beside it what a step without losses costs with and without `--no-return`, in turns.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.bench.machine import median
from tests.e2e.runs import Record, Run
from tests.e2e.torture import Tireless, Tortured, started

WITHIN_S = 1200.0
LARGE_MB = 600
STEPS = 100_000
"""More than are made: a run ends when it has been measured."""

PARTS = ("wait_ms", "hold_ms", "transfer_ms", "place_ms", "first_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wide(Tortured):
    """With parameters and optimizer state of so many megabytes."""

    megabytes: int = 0

    @property
    def arguments(self) -> tuple[str, ...]:
        width = round((self.megabytes * 1e6 / 3 / 4) ** 0.5)  # float32, and twice that by AdamW
        more = (f"--width={width}", "--dtype=float32") if self.megabytes else ()
        return (*super(Wide, self).arguments, "--mute", *more)


@dataclass(frozen=True, slots=True)
class Back:
    """One return, in milliseconds."""

    total: float
    parts: dict[str, float]
    megabytes: float


def returns(job: Tortured, folder: Path, count: int, spares: int) -> list[Back]:
    """Kill rank 1 so often, and measure how it comes back each time."""
    options = ("--return", *([f"--spares={spares}"] if spares else []))
    with started(job, folder, Tireless, options, WITHIN_S) as run:
        run.await_record("step.commit", lambda one: one["step"] >= 5)
        found = []
        for number in range(count):
            if spares:
                settle(run, 10 + number)
            os.kill(newest_pid(run, 1), 9)
            run.await_record(
                "replica.parts", lambda _, n=number: len(run.records("replica.parts")) > n
            )
            found.append(measured(run, number))
        return found


def settle(run: Run, least: int) -> None:
    """A spare that was used is replaced: some steps later it is there, too."""
    newest = len(run.records("step.commit"))
    run.await_record("step.commit", lambda _: len(run.records("step.commit")) >= newest + least)


def newest_pid(run: Run, rank: int) -> int:
    return int([one for one in run.records("worker.spawn") if one["rank"] == rank][-1]["pid"])


def measured(run: Run, number: int) -> Back:
    said, back = run.records("replica.parts")[number], run.records("replica.return")[number]
    dead = [one for one in run.records("worker.exit") if one["rank"] == 1][number]
    step = int(said["step"])
    whole = run.await_record("step.commit", lambda one: one["step"] == step)
    parts = {name: float((said | back)[name]) for name in PARTS}
    return Back(1000 * (whole["mono"] - dead["mono"]), parts, int(said["bytes"]) / 1e6)


def calm_ms(job: Tortured, folder: Path, options: tuple[str, ...], steps: int) -> float:
    """The median step of a run without a loss."""
    with started(job, folder, Run, options, WITHIN_S) as run:
        (run.out / "go").touch()
        run.await_record("step.commit", lambda one: one["step"] >= steps)
        commits: list[Record] = run.records("step.commit")
        return median([float(one["ms"]) for one in commits[20:]])


def lines(args: argparse.Namespace, folder: Path) -> Iterator[str]:
    small = Wide(ranks=2, shards=0, steps=STEPS, pace_s=0.05)
    large = Wide(ranks=2, shards=0, steps=STEPS, pace_s=0.05, megabytes=LARGE_MB)
    kinds = [("cold", small, 0), ("spare", small, 1)]
    kinds += [] if args.small else [(f"cold, {LARGE_MB} MB", large, 0)]
    yield f"{'return':<14} {'n':>3} {'p50 ms':>8} {'max ms':>8}  " + "  ".join(
        f"{name.removesuffix('_ms'):>8}" for name in PARTS
    )
    for name, job, spares in kinds:
        count = args.kills if job is small else 2
        found = returns(job, folder / name.replace(" ", ""), count, spares)
        totals = [one.total for one in found]
        parts = "  ".join(f"{median([one.parts[part] for one in found]):>8.1f}" for part in PARTS)
        yield f"{name:<14} {len(found):>3} {median(totals):>8.0f} {max(totals):>8.0f}  {parts}"
        yield f"{'':<14} state {found[-1].megabytes:.1f} MB, load {load()}"
    pairs = []
    for number in range(args.pairs):
        never = ("--no-return",)
        without = calm_ms(small, folder / f"without{number}", never, args.steps)
        pairs.append((without, calm_ms(small, folder / f"with{number}", ("--return",), args.steps)))
    ratio = median([one / other for other, one in pairs])
    plain, returning = (median([pair[at] for pair in pairs]) for at in (0, 1))
    yield f"a step without losses: {returning:.2f} ms, with --no-return {plain:.2f} ms"
    yield f"{'':<14} median ratio of {args.pairs} pairs {ratio:.3f}, load {load()}"


def load() -> str:
    return " ".join(f"{one:.1f}" for one in os.getloadavg())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.returns", description=__doc__)
    parser.add_argument("--kills", type=int, default=9)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400, help="of a run without losses")
    parser.add_argument("--small", action="store_true", help="leave the large state out")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="returns-") as folder:
        for line in lines(args, Path(folder)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
