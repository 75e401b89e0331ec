"""`python -m tests.sim.written --seed 53` replays one history; `--seeds 1000` runs many."""

import argparse
import sys
import time
from collections import Counter

from tests.sim.written.world import simulate_alone


def replay(seed: int) -> int:
    outcome = simulate_alone(seed)
    for line in outcome.lines:
        print(line)
    print(f"# seed {seed}: {outcome.violation or 'no violation'}")
    return 1 if outcome.violation else 0


def survey(first: int, seeds: int) -> int:
    begun = time.monotonic()
    coverage: Counter[str] = Counter()
    bad: list[str] = []
    for seed in range(first, first + seeds):
        outcome = simulate_alone(seed)
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
    parser = argparse.ArgumentParser(prog="python -m tests.sim.written", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one, with its trace")
    parser.add_argument("--seeds", type=int, default=200, help="how many to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    options = parser.parse_args()
    if options.seed is not None:
        return replay(options.seed)
    return survey(options.first, options.seeds)


if __name__ == "__main__":
    sys.exit(main())
