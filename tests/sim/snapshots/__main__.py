"""`python -m tests.sim.snapshots --seed 53` replays one history; `--seeds 1000` runs many."""

import sys
from functools import partial

from tests.sim.simulator_command import Told, parser_of, run
from tests.sim.snapshots.world import simulate


def told(replicated: bool, returning: bool, seed: int, verbose: bool) -> Told:
    outcome = simulate(seed, verbose=verbose, replicated=replicated, returning=returning)
    return Told(outcome, outcome.plan)


def main() -> int:
    parser = parser_of("tests.sim.snapshots", __doc__)
    parser.add_argument("--replicated", action="store_true", help="jobs with several replicas")
    parser.add_argument("--returning", action="store_true", help="jobs whose replicas come back")
    options = parser.parse_args()
    return run(options, partial(told, options.replicated, options.returning))


if __name__ == "__main__":
    sys.exit(main())
