"""`python -m tests.sim --seed 53` replays one history; `--seeds 5000` runs many and counts."""

import sys

from tests.sim.history import simulate
from tests.sim.simulator_command import Told, parser_of, run


def told(seed: int, verbose: bool) -> Told:
    outcome = simulate(seed, verbose=verbose)
    return Told(outcome, outcome.plan, (f"digest {outcome.digest}",))


def main() -> int:
    parser = parser_of("tests.sim", __doc__)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    return run(options, told, options.processes)


if __name__ == "__main__":
    sys.exit(main())
