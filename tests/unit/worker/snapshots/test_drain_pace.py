"""All ranks take one snapshot more at the same step, whenever each of them was told."""

from recoverrun.worker.snapshots.drain_pace import LEAD, DrainPace
from recoverrun.worker.snapshots.pace import FixedPace


class Ranks:
    def __init__(self, told_at: tuple[int, ...], *, alone: bool = False) -> None:
        self.named = -1
        self.step = 0
        self.paces = [
            DrainPace(
                FixedPace(1_000),
                drains=lambda at=at: self.step >= at,
                alone=alone,
                tell=None if rank else self._tell,
                look=lambda: self.named,
            )
            for rank, at in enumerate(told_at)
        ]

    def _tell(self, step: int) -> None:
        self.named = step

    def taken(self, steps: int) -> list[list[int]]:
        """The steps at which each rank takes one."""
        found: list[list[int]] = [[] for _ in self.paces]
        for self.step in range(1, steps):
            for rank, pace in enumerate(self.paces):
                if pace.is_due(self.step, 0.0):
                    found[rank].append(self.step)
        return found


def test_nobody_takes_one_as_long_as_nothing_ends() -> None:
    assert Ranks((99, 99)).taken(30) == [[], []]


def test_all_take_the_same_one() -> None:
    first, second = Ranks((7, 9)).taken(7 + LEAD + 1)

    assert first == second == [7 + LEAD]


def test_where_one_is_told_too_late_another_one_follows() -> None:
    first, second = Ranks((7, 12)).taken(40)

    assert first[0] == 7 + LEAD
    assert first[1:] == second
    assert second


def test_a_process_that_is_alone_takes_it_at_once() -> None:
    assert Ranks((7,), alone=True).taken(8) == [[7]]
