"""A simulator's command line: one history again with its trace, or many and what they cover."""

import argparse
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Protocol

SHOWN = 40
"""Bad seeds that are named; the rest is counted."""


class Outcome(Protocol):
    """Of one history."""

    @property
    def violation(self) -> Any: ...
    @property
    def coverage(self) -> Counter[str]: ...
    @property
    def lines(self) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True)
class Told:
    """`remarks` end the last line of a replay; `plan` is a line of its own before it."""

    outcome: Outcome
    plan: object = ""
    remarks: tuple[str, ...] = ()
    counted: Counter[str] | None = None  # beside the outcome's own


Simulate = Callable[[int, bool], Told]
"""(seed, whether lines are kept) -> what came of it."""

Judged = tuple[int, str, Counter[str]]


def parser_of(name: str, doc: str | None, seeds: int = 200) -> argparse.ArgumentParser:
    """With the options that all simulators have; `seeds` are run unless told otherwise."""
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=doc)
    parser.add_argument("--seed", type=int, help="replay this one, with its trace")
    parser.add_argument("--seeds", type=int, default=seeds, help="how many to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    return parser


def run(options: argparse.Namespace, simulate: Simulate, processes: int = 1) -> int:
    """Replay the one that was asked for, or survey many; the exit code."""
    if options.seed is not None:
        return _replay(options.seed, simulate)
    numbers = range(options.first, options.first + options.seeds)
    if processes == 1:
        return _survey(len(numbers), map(partial(_judged, simulate), numbers))
    with multiprocessing.Pool(processes) as pool:
        found = pool.imap(partial(_judged, simulate), numbers, chunksize=16)
        return _survey(len(numbers), found)


def _judged(simulate: Simulate, seed: int) -> Judged:
    told = simulate(seed, False)
    coverage = told.outcome.coverage + (told.counted or Counter())
    return seed, str(told.outcome.violation or ""), coverage


def _replay(seed: int, simulate: Simulate) -> int:
    told = simulate(seed, True)
    for line in told.outcome.lines:
        print(line)
    if told.plan:
        print(f"# {told.plan}")
    wrong = told.outcome.violation
    print("; ".join([f"# seed {seed}: {wrong or 'no violation'}", *told.remarks]))
    return 1 if wrong else 0


def _survey(seeds: int, found: Iterable[Judged]) -> int:
    begun = time.monotonic()
    coverage: Counter[str] = Counter()
    bad: list[str] = []
    for seed, wrong, seen in found:
        coverage += seen
        if wrong:
            bad.append(f"seed {seed}: {wrong[:300]}")
    for name in sorted(coverage):
        print(f"{coverage[name]:9d}  {name}")
    for words in islice(bad, SHOWN):
        print(words)
    print(f"{seeds} seeds, {len(bad)} bad, {seeds / (time.monotonic() - begun):.0f} seeds/s")
    return 1 if bad else 0
