"""The common output of benchmarks: the machine, small tables, medians and their worth."""

import os
import platform
import random
import statistics
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

RESAMPLES = 2000

median = statistics.median


def facts() -> str:
    """The machine, now, as two lines."""
    cpu = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "pyzmq"))
    cores = len(os.sched_getaffinity(0))
    return (
        f"machine: {cores} cores ({cpu}), Linux {platform.release()}, load {load}\n"
        f"python {platform.python_version()}, {versions}; one thread per rank; "
        f"{time.strftime('%Y-%m-%d %H:%M')}"
    )


def heading(title: str, note: str = "") -> None:
    print(f"\n== {title}\n{facts()}", flush=True)
    if note:
        print(note, flush=True)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print `rows` below `head`: first column to the left, figures to the right."""
    lines = [head, *rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
    for line in lines:
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        print("  ".join(cells).rstrip())
    print(flush=True)


def goal(sentence: str, met: bool) -> None:
    print(f"goal: {sentence}: {'yes' if met else 'no'}", flush=True)


def spread(values: Sequence[float], digits: int = 2) -> str:
    """n, median, and the range of the middle half."""
    if not values:
        return "none"
    low, _, high = quartiles(values)
    return f"{median(values):.{digits}f} [{low:.{digits}f}-{high:.{digits}f}] n={len(values)}"


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


Pair = tuple[float, float]
"""What two launchers needed for the same, one right after the other."""


def ratio(pairs: Sequence[Pair]) -> float:
    """The median of the pairs' own ratios: a slow moment slows both of a pair."""
    return median([ours / theirs for ours, theirs in pairs])


def interval(pairs: Sequence[Pair]) -> tuple[float, float]:
    """95 % interval of `ratio(pairs)` by drawing the pairs anew."""
    rng = random.Random(0)
    found = sorted(ratio(rng.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    return found[int(0.025 * RESAMPLES)], found[int(0.975 * RESAMPLES)]
