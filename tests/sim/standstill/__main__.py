"""`python -m tests.sim.standstill --seed 53` replays one run; `--seeds 1000` runs many and counts.

`--heavy` measures alarms and healthy ranks lost, where healthy ranks stall with a heavy tail.
"""

import argparse
import sys
import time
from collections import Counter

from tests.sim.standstill.heavy import table
from tests.sim.standstill.world import simulate


def replay(seed: int) -> int:
    outcome = simulate(seed, verbose=True)
    for line in outcome.lines:
        print(line)
    print(f"# {outcome.plan}")
    print(f"# seed {seed}: {outcome.violation or 'no violation'}; {outcome.end}")
    return 1 if outcome.violation else 0


def survey(first: int, seeds: int) -> int:
    begun = time.monotonic()
    coverage: Counter[str] = Counter()
    bad: list[str] = []
    for seed in range(first, first + seeds):
        outcome = simulate(seed)
        coverage += outcome.coverage
        coverage[f"end: {outcome.end}"] += 1
        if outcome.violation is not None:
            bad.append(f"seed {seed}: {outcome.violation}")
    for name in sorted(coverage):
        print(f"{coverage[name]:9d}  {name}")
    for words in bad[:40]:
        print(words[:300])
    print(f"{seeds} seeds, {len(bad)} bad, {seeds / (time.monotonic() - begun):.0f} seeds/s")
    return 1 if bad else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.standstill", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one, with its trace")
    parser.add_argument("--seeds", type=int, default=200, help="how many to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--heavy", type=int, metavar="STEPS", help="measure so many steps of each")
    options = parser.parse_args()
    if options.heavy is not None:
        for line in table(options.heavy):
            print(line, flush=True)
        return 0
    if options.seed is not None:
        return replay(options.seed)
    return survey(options.first, options.seeds)


if __name__ == "__main__":
    sys.exit(main())
