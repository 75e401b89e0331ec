"""`python -m tests.sim.views --seed 53` replays one history; `--seeds 10000` runs many and counts.

Many histories are followed by a search through every order of messages in a small one.
"""

import sys
from collections import Counter
from collections.abc import Callable
from functools import partial

from tests.sim.simulator_command import Told, parser_of, run
from tests.sim.views.plan import Plan, draw, draw_etcd, draw_in_turn, draw_witnessed
from tests.sim.views.search import PAIR, THREE, Search
from tests.sim.views.times import table
from tests.sim.views.world import simulate

Drawn = Callable[[int, float], Plan]


def told(chaos_s: float, drawn: Drawn, seed: int, verbose: bool) -> Told:
    outcome = simulate(seed, verbose=verbose, chaos_s=chaos_s, drawn=drawn)
    counted = Counter({"steps": outcome.book.steps})
    return Told(outcome, outcome.plan, (f"digest {outcome.digest}",), counted)


def search(most: int) -> int:
    for first, candidates, faults in ((THREE, (1,), 2), (THREE, (1, 2), 0), (PAIR, (1,), 2)):
        looked = Search(most, first)
        looked.run(faults=faults, candidates=candidates)
        how = "all" if looked.complete else "the first"
        who = "two and a witness" if first.witness else "three"
        print(f"{who}, {len(candidates)} rivals, {faults} faults: {how} {looked.states} states")
    return 0


def main() -> int:
    parser = parser_of("tests.sim.views", __doc__, seeds=300)
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
    code = run(options, partial(told, options.chaos, drawn))
    return code or (search(options.search) if options.search else 0)


if __name__ == "__main__":
    sys.exit(main())
