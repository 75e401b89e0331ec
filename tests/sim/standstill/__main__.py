"""`python -m tests.sim.standstill --seed 53` replays one run; `--seeds 1000` runs many and counts.

`--heavy` measures alarms and healthy ranks lost, where healthy ranks stall with a heavy tail.
"""

import sys
from collections import Counter

from tests.sim.simulator_command import Told, parser_of, run
from tests.sim.standstill.heavy import table
from tests.sim.standstill.world import simulate


def told(seed: int, verbose: bool) -> Told:
    outcome = simulate(seed, verbose=verbose)
    return Told(outcome, outcome.plan, (outcome.end,), Counter([f"end: {outcome.end}"]))


def main() -> int:
    parser = parser_of("tests.sim.standstill", __doc__)
    parser.add_argument("--heavy", type=int, metavar="STEPS", help="measure so many steps of each")
    options = parser.parse_args()
    if options.heavy is None:
        return run(options, told)
    for line in table(options.heavy):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
