"""`python -m tests.sim.written --seed 53` replays one history; `--seeds 1000` runs many."""

import sys

from tests.sim.simulator_command import Told, parser_of, run
from tests.sim.written.world import simulate_alone


def told(seed: int, verbose: bool) -> Told:
    del verbose  # its lines are few
    return Told(simulate_alone(seed))


if __name__ == "__main__":
    sys.exit(run(parser_of("tests.sim.written", __doc__).parse_args(), told))
