"""`python -m tests.sim --seed 53` replays one history; `--seeds 5000` runs many and counts."""

import argparse
import multiprocessing
import sys
import time
from collections import Counter

from tests.sim.history import simulate


def judge(seed: int) -> tuple[int, str, Counter[str]]:
    """(seed, what went wrong or "", coverage)."""
    outcome = simulate(seed)
    return seed, str(outcome.violation or ""), outcome.coverage


def replay(seed: int) -> int:
    outcome = simulate(seed, verbose=True)
    for line in outcome.lines:
        print(line)
    print(f"# {outcome.plan}")
    print(f"# seed {seed}: {outcome.violation or 'no violation'}; digest {outcome.digest}")
    return 1 if outcome.violation else 0


def survey(first: int, seeds: int, processes: int) -> int:
    begun = time.monotonic()
    coverage: Counter[str] = Counter()
    bad: list[tuple[int, str]] = []
    with multiprocessing.Pool(processes) as pool:
        for seed, wrong, seen in pool.imap(judge, range(first, first + seeds), chunksize=16):
            coverage += seen
            if wrong:
                bad.append((seed, wrong))
    spent_s = time.monotonic() - begun
    for name in sorted(coverage):
        print(f"{coverage[name]:9d}  {name}")
    for seed, wrong in bad[:40]:
        print(f"seed {seed}: {wrong[:300]}")
    print(f"{seeds} seeds, {len(bad)} bad, {seeds / spent_s:.0f} seeds/s")
    return 1 if bad else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one, with its trace")
    parser.add_argument("--seeds", type=int, default=200, help="how many to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    if options.seed is not None:
        return replay(options.seed)
    return survey(options.first, options.seeds, options.processes)


if __name__ == "__main__":
    sys.exit(main())
