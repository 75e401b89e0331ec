"""`python -m tests.bench.overlap`: how much of the reduction is hidden behind backward.

One DDP job of two ranks with several buckets, under torchrun, recoverrun and recoverrun --exact.
The script traces a step with torch's profiler; what it prints is drawn here. On a machine with no
more cores than ranks the threads that reduce take their time from those that compute: overlap is
there to be seen, and a gain in time is not to be expected.
"""

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.bench import jobs, machine

RANKS = 2
WIDTH = 72  # of the time line
KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "torchrun": ("torchrun", ()),
    "recoverrun": ("recoverrun", ()),
    "recoverrun --exact": ("recoverrun", ("--exact",)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One step of one rank; milliseconds since its backward began."""

    rank: int
    computed_ms: float
    reductions: tuple[tuple[str, float, float], ...]  # operation, begin, end

    @property
    def reduced_ms(self) -> float:
        return sum(end - begin for _, begin, end in self.reductions)

    @property
    def hidden_ms(self) -> float:
        """Of the reductions, while backward computes."""
        return sum(
            max(0.0, min(end, self.computed_ms) - begin) for _, begin, end in self.reductions
        )

    @property
    def late_ms(self) -> float:
        """From the end of backward's computation until all is reduced."""
        return max(0.0, max(end for _, _, end in self.reductions) - self.computed_ms)


def traced(kind: str) -> list[Trace]:
    """A trace of each rank."""
    launcher, options = KINDS[kind]
    with tempfile.TemporaryDirectory() as folder:
        ran = jobs.run(
            launcher, RANKS, "overlap.py", [], directory=Path(folder), options=options
        )  # fmt: skip
    lines = [line for line in jobs.must(ran).output.splitlines() if line.startswith("{")]
    found = [json.loads(line) for line in lines]
    return [
        Trace(
            rank=one["rank"],
            computed_ms=one["computed_ms"],
            reductions=tuple((name, begin, end) for name, begin, end in one["reductions"]),
        )
        for one in sorted(found, key=lambda one: int(one["rank"]))
    ]


def draw(trace: Trace) -> None:
    """A line for backward, and one for each reduction below it."""
    end_ms = max(trace.computed_ms, *(end for _, _, end in trace.reductions))
    rows = [("backward", 0.0, trace.computed_ms), *trace.reductions]
    for name, begin, end in rows:
        left, right = (round(WIDTH * ms / end_ms) for ms in (begin, end))
        bar = " " * left + ("=" if name == "backward" else "-") * max(1, right - left)
        print(f"  {name.removeprefix('gloo:'):<10} |{bar:<{WIDTH}}| {begin:6.1f} - {end:6.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.overlap", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    machine.heading("overlap", "DDP, 8 layers of 1M parameters, buckets of 8 MB, one step traced")
    found: dict[str, list[list[Trace]]] = {kind: [] for kind in KINDS}
    for _ in range(args.runs):
        for kind in KINDS:
            found[kind].append(traced(kind))
    rows = []
    for kind, runs in found.items():
        traces = [trace for run in runs for trace in run]
        shares = [trace.hidden_ms / trace.reduced_ms for trace in traces]
        rows.append(
            [
                kind,
                machine.spread([trace.computed_ms for trace in traces], 0),
                machine.spread([trace.reduced_ms for trace in traces], 0),
                f"{100 * machine.median(shares):.0f} % ({100 * min(shares):.0f}-"
                f"{100 * max(shares):.0f})",
                machine.spread([trace.late_ms for trace in traces], 0),
            ]
        )
    head = ["ms of a step", "backward computes", "reductions", "of which within", "after it"]
    machine.table(head, rows)
    for kind, runs in found.items():
        print(f"{kind}, rank 0 of the last run:")
        draw(runs[-1][0])


if __name__ == "__main__":
    main()
