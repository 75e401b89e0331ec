"""`python -m tests.sim.snapshots --seed 53` replays one history; `--seeds 1000` runs many."""

import sys

from tests.sim.simulator_command import Told, parser_of, run
from tests.sim.snapshots.world import simulate


def told(seed: int, verbose: bool) -> Told:
    outcome = simulate(seed, verbose=verbose)
    return Told(outcome, outcome.plan)


if __name__ == "__main__":
    sys.exit(run(parser_of("tests.sim.snapshots", __doc__).parse_args(), told))
