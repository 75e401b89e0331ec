"""`python -m tests.sim.snapshots --seed 53` replays one history; `--seeds 1000` runs many."""

import argparse
import sys
import time
from collections import Counter

from tests.sim.snapshots.world import simulate


def replay(seed: int, *, replicated: bool) -> int:
    outcome = simulate(seed, verbose=True, replicated=replicated)
    for line in outcome.lines:
        print(line)
    print(f"# {outcome.plan}")
    print(f"# seed {seed}: {outcome.violation or 'no violation'}")
    return 1 if outcome.violation else 0


def survey(first: int, seeds: int, *, replicated: bool) -> int:
    begun = time.monotonic()
    coverage: Counter[str] = Counter()
    bad: list[str] = []
    for seed in range(first, first + seeds):
        outcome = simulate(seed, replicated=replicated)
        coverage += outcome.coverage
        if outcome.violation is not None:
            bad.append(f"seed {seed}: {outcome.violation}")
    for name in sorted(coverage):
        print(f"{coverage[name]:9d}  {name}")
    for words in bad[:40]:
        print(words[:300])
    print(f"{seeds} seeds, {len(bad)} bad, {seeds / (time.monotonic() - begun):.0f} seeds/s")
    return 1 if bad else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.snapshots", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one, with its trace")
    parser.add_argument("--seeds", type=int, default=200, help="how many to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--replicated", action="store_true", help="jobs with several replicas")
    options = parser.parse_args()
    if options.seed is not None:
        return replay(options.seed, replicated=options.replicated)
    return survey(options.first, options.seeds, replicated=options.replicated)


if __name__ == "__main__":
    sys.exit(main())
