"""`python -m tests.sim.views --seed 53` replays one history; `--seeds 10000` runs many and counts.

Many histories are followed by a search through every order of messages in a small one.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable

from tests.sim.views.plan import Plan, draw, draw_etcd, draw_in_turn, draw_witnessed
from tests.sim.views.search import PAIR, THREE, Search
from tests.sim.views.times import table
from tests.sim.views.world import simulate

Drawn = Callable[[int, float], Plan]


def replay(seed: int, chaos_s: float, drawn: Drawn) -> int:
    outcome = simulate(seed, verbose=True, chaos_s=chaos_s, drawn=drawn)
    for line in outcome.lines:
        print(line)
    print(f"# {outcome.plan}")
    print(f"# seed {seed}: {outcome.violation or 'no violation'}; digest {outcome.digest}")
    return 1 if outcome.violation else 0


def survey(first: int, seeds: int, chaos_s: float, drawn: Drawn) -> int:
    begun = time.monotonic()
    coverage: Counter[str] = Counter()
    bad: list[str] = []
    for seed in range(first, first + seeds):
        outcome = simulate(seed, chaos_s=chaos_s, drawn=drawn)
        coverage += outcome.coverage
        coverage["steps"] += outcome.book.steps
        coverage["external effects"] += outcome.book.effects
        if outcome.violation is not None:
            bad.append(f"seed {seed}: {str(outcome.violation)[:300]}")
    spent_s = time.monotonic() - begun
    for name in sorted(coverage):
        print(f"{coverage[name]:9d}  {name}")
    print("\n".join(bad[:40]))
    print(f"{seeds} seeds, {len(bad)} bad, {seeds / spent_s:.0f} seeds/s")
    return 1 if bad else 0


def search(most: int) -> int:
    for first, candidates, faults in ((THREE, (1,), 2), (THREE, (1, 2), 0), (PAIR, (1,), 2)):
        looked = Search(most, first)
        looked.run(faults=faults, candidates=candidates)
        how = "all" if looked.complete else "the first"
        who = "two and a witness" if first.witness else "three"
        print(f"{who}, {len(candidates)} rivals, {faults} faults: {how} {looked.states} states")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.views", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one, with its trace")
    parser.add_argument("--seeds", type=int, default=300, help="how many to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--chaos", type=float, default=20.0, help="seconds of faults in each")
    parser.add_argument("--search", type=int, default=0, help="states to search afterwards")
    parser.add_argument("--times", type=int, default=0, help="trials of each kind of loss")
    parser.add_argument("--witness", action="store_true", help="histories with a witness")
    parser.add_argument("--in-turn", action="store_true", help="proved deaths, one after another")
    parser.add_argument("--etcd", action="store_true", help="histories with etcd in place of votes")
    options = parser.parse_args()
    drawn = draw_witnessed if options.witness else draw_etcd if options.etcd else draw
    drawn = draw_in_turn if options.in_turn else drawn
    if options.times:
        print("\n".join(table(options.times)))
        return 0
    if options.seed is not None:
        return replay(options.seed, options.chaos, drawn)
    code = survey(options.first, options.seeds, options.chaos, drawn)
    return code or (search(options.search) if options.search else 0)


if __name__ == "__main__":
    sys.exit(main())
