"""`python -m tests.chaos --trials 30 [--only WORDS]`: every fault so often, and what it took."""

import argparse
import io
import os
import statistics
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

from tests.chaos.trials import TRIALS, Trial
from tests.e2e.launching import launching


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--only", default="", help="kinds with these words in their names")
    options = parser.parse_args()
    bad = 0
    print(f"{'fault':<50} {'trials':>6} {'bad':>4} {'p50 s':>7} {'p99 s':>7} {'max s':>7}")
    for name, trial in TRIALS.items():
        if options.only not in name:
            continue
        if trial.__name__.endswith(("cut_off", "deaf")) and os.geteuid():
            print(f"{name:<50} needs root for network namespaces: not run")
            continue
        times, wrong = _repeat(name, trial, options.trials)
        bad += wrong
        row = f"{name:<50} {options.trials:>6} {wrong:>4}"
        if any(times):
            cuts = statistics.quantiles(times, n=100, method="inclusive") if times[1:] else times
            row += f" {statistics.median(times):>7.2f} {cuts[-1]:>7.2f} {max(times):>7.2f}"
        print(row, flush=True)
    return 1 if bad else 0


def _repeat(name: str, trial: Trial, many: int) -> tuple[list[float], int]:
    times: list[float] = []
    wrong = 0
    for number in range(many):
        with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
            try:
                # What launchers print is for tests that fail.
                with redirect_stdout(io.StringIO()), launching(Path(folder)) as launcher:
                    times.append(trial(launcher))
            except AssertionError as error:
                wrong += 1
                print(f"{name}, trial {number}: {error}", file=sys.stderr)
    return times, wrong


if __name__ == "__main__":
    raise SystemExit(main())
