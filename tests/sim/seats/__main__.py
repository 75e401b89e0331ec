"""`python -m tests.sim.seats --seed 5` replays one history; `--seeds 1000` runs many and counts."""

import argparse
import sys
from collections import Counter

from tests.sim.seats.job import simulate
from tests.sim.seats.plan import draw


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.seats", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one, with its trace")
    parser.add_argument("--seeds", type=int, default=300, help="how many to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--stalled", action="store_true", help="launchers also stand still")
    options = parser.parse_args()
    if options.seed is not None:
        outcome = simulate(draw(options.seed, stalled=options.stalled), verbose=True)
        print("\n".join(outcome.lines))
        print(f"# seed {options.seed}: {outcome.violation or 'no violation'}")
        return 1 if outcome.violation else 0
    wrong, coverage = 0, Counter[str]()
    for seed in range(options.first, options.first + options.seeds):
        outcome = simulate(draw(seed, stalled=options.stalled))
        coverage += outcome.coverage
        if outcome.violation is not None:
            wrong += 1
            print(f"seed {seed}: {outcome.violation}")
    print(f"{options.seeds} seeds, {wrong} bad; {dict(sorted(coverage.items()))}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
