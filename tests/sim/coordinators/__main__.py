"""`python -m tests.sim.coordinators --seed 5` replays one history; `--seeds 1000` many."""

import sys
from functools import partial

from tests.sim.coordinators.job import simulate
from tests.sim.coordinators.plan import draw
from tests.sim.simulator_command import Told, parser_of, run


def told(stalled: bool, leaving: bool, seed: int, verbose: bool) -> Told:
    return Told(simulate(draw(seed, stalled=stalled, leaving=leaving), verbose=verbose))


def main() -> int:
    parser = parser_of("tests.sim.coordinators", __doc__, seeds=300)
    parser.add_argument("--stalled", action="store_true", help="launchers also stand still")
    parser.add_argument("--leaving", action="store_true", help="some leave as planned")
    options = parser.parse_args()
    return run(options, partial(told, options.stalled, options.leaving))


if __name__ == "__main__":
    sys.exit(main())
