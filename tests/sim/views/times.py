"""The simulated seconds of a loss, from the crash to the next step."""

from rendezvous.consensus.configuration import Configuration
from tests.sim.views.plan import Fault, Plan
from tests.sim.views.world import World

CASES = (
    ("a member, silent", 4, False),
    ("a member, proved", 4, True),
    ("the leader, silent", -1, False),
    ("the leader, proved", -1, True),
)


def at(values: tuple[float, ...], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))]


def measure(target: int, proved: bool, trials: int) -> tuple[float, ...]:
    """Sorted, one for each trial."""
    steps_s = []
    for seed in range(trials):
        crash_s = 5.0 + 0.003 * seed
        fault = Fault(kind="crash", at_s=crash_s, targets=(target,), proved=proved)
        plan = Plan(
            seed=seed, nodes=5, rates=(1.0,) * 5, work_s=0.1, chaos_s=6.0, quiet_s=16.0,
            faults=(fault,),
        )  # fmt: skip
        book = World(plan).run().book
        first = next(
            configuration
            for number, configuration in sorted(book.configurations.items())
            if number > 1
        )
        steps_s.append(_since(crash_s, first, book.first_steps))
    return tuple(sorted(steps_s))


def _since(crash_s: float, first: Configuration, times: dict[int, float]) -> float:
    return min(at_s for number, at_s in times.items() if number >= first.number) - crash_s


def table(trials: int) -> list[str]:
    lines = []
    for name, target, proved in CASES:
        steps_s = measure(target, proved, trials)
        lines.append(f"| {name} | {at(steps_s, 0.5):.1f} s / {at(steps_s, 0.99):.1f} s |")
    return lines
