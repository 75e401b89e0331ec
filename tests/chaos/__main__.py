"""`python -m tests.chaos --trials 30 [--only WORDS]`: every fault so often, and what it took."""

import argparse
import io
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from itertools import repeat
from multiprocessing.util import Finalize
from pathlib import Path

from tests.chaos import cells
from tests.chaos.trials import ALONE, COLD, LONG, TRIALS
from tests.e2e.launching import launching
from tests.warm.launchers import LAUNCHERS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--trials", type=int, default=30, help="of each kind; a fifth of those that take a minute"
    )
    parser.add_argument("--only", default="", help="kinds with these words in their names")
    parser.add_argument(
        "--at-once", type=int, default=1, help="trials of a kind; more than cores: longer times"
    )
    cells.options(parser)
    options = parser.parse_args()
    if options.strategies:
        with LAUNCHERS.forked():
            return cells.main(options.only, options.kills)
    return _faults(options)


def _faults(options: argparse.Namespace) -> int:
    bad = 0
    print(f"{'fault':<50} {'trials':>6} {'bad':>4} {'p50 s':>7} {'p99 s':>7} {'max s':>7}")
    for name, trial in TRIALS.items():
        if options.only not in name:
            continue
        if trial.__name__.endswith(("cut_off", "deaf", "link_flaps")) and os.geteuid():
            print(f"{name:<50} needs root for network namespaces: not run")
            continue
        at_once = 1 if trial in ALONE else options.at_once
        trials = max(1, options.trials // 5) if trial in LONG else options.trials
        times, wrong = _repeat(name, trials, at_once)
        bad += wrong
        row = f"{name:<50} {trials:>6} {wrong:>4}"
        if any(times):
            cuts = statistics.quantiles(times, n=100, method="inclusive") if times[1:] else times
            row += f" {statistics.median(times):>7.2f} {cuts[-1]:>7.2f} {max(times):>7.2f}"
        print(row, flush=True)
    return 1 if bad else 0


def _repeat(name: str, many: int, at_once: int) -> tuple[list[float], int]:
    times: list[float] = []
    wrong = 0
    for number, came in enumerate(_outcomes(name, many, at_once)):
        if isinstance(came, str):
            wrong += 1
            print(f"{name}, trial {number}: {came}", file=sys.stderr)
        else:
            times.append(came)
    return times, wrong


def _outcomes(name: str, many: int, at_once: int) -> Iterator[float | str]:
    # A process of its own for each that runs at a time: what is printed is told apart by it, and
    # names of network namespaces are made of its pid. It forks its launchers from a template.
    warm = TRIALS[name] not in COLD
    with ProcessPoolExecutor(at_once, initializer=_begin, initargs=(warm,)) as pool:
        yield from pool.map(_once, repeat(name, many))


def _begin(warm: bool) -> None:
    forked = LAUNCHERS.forked(warm)
    forked.__enter__()
    Finalize(None, forked.__exit__, (None, None, None), exitpriority=1)


def _once(name: str) -> float | str:
    """The seconds that the survivors took, or what went wrong."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        try:
            # What launchers print is for tests that fail.
            with redirect_stdout(io.StringIO()), launching(Path(folder)) as launcher:
                return TRIALS[name](launcher)
        except AssertionError as error:
            return str(error)


if __name__ == "__main__":
    raise SystemExit(main())
