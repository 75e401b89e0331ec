"""Many histories of one simulator, none of which may go wrong."""

from collections import Counter
from collections.abc import Callable, Iterable

from tests.sim.simulator_command import Outcome


def swept(replay: str, simulate: Callable[[int], Outcome], seeds: Iterable[int]) -> Counter[str]:
    """Return their coverage. An error names bad ones by the command that replays them: `replay`."""
    coverage: Counter[str] = Counter()
    wrong = []
    for seed in seeds:
        outcome = simulate(seed)
        coverage += outcome.coverage
        if outcome.violation is not None:
            wrong.append(f"{replay}{seed}: {outcome.violation}")
    assert not wrong, "\n".join(wrong)
    return coverage
