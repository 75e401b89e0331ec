"""The pace of snapshots: all ranks alike, and at a cost that is bounded."""

import pytest

from recoverrun.worker.snapshots.pace import ELSEWHERE, SHARE, SOON, AutoPace, FixedPace


class Rank:
    """One that trains, with a clock of its own."""

    def __init__(
        self,
        told: dict[int, int],
        *,
        leads: bool,
        step_s: float,
        cost_s: float,
        after_s: float = 0.0,
        given_up: list[str] | None = None,
        aside_s: float = 0.0,
    ) -> None:
        self.told, self.whys = told, list[str]()
        ended = [] if given_up is None else given_up
        self.pace = AutoPace(
            self._tell if leads else None,
            told.get,
            after_s=after_s,
            give_up=ended.append,
            given_up=lambda: "".join(ended),
            worked=lambda: (self.now, 0.2 + aside_s * len(self.taken)),
        )
        self.now, self.step_s, self.cost_s = 0.0, step_s, cost_s
        self.taken: list[int] = []

    def _tell(self, step: int, following: int, why: str) -> None:
        self.told[step] = following
        self.whys += [why] if why else []

    def trains(self, step: int) -> None:
        if self.pace.is_due(step, self.now):
            first = not self.taken
            self.taken.append(step)
            spent = self.cost_s * (20 if first else 1)
            self.pace.took(spent, learning=first)
            self.now += spent
        self.now += self.step_s


def test_a_fixed_pace_is_the_users() -> None:
    pace = FixedPace(5)

    assert [step for step in range(1, 17) if pace.is_due(step, 0.0)] == [5, 10, 15]


@pytest.mark.parametrize(("cost_s", "every"), [(0.0005, SOON), (0.0095, 10), (0.0995, 100)])
def test_snapshots_cost_no_more_than_their_share(cost_s: float, every: int) -> None:
    rank = Rank({}, leads=True, step_s=0.1, cost_s=cost_s)

    for step in range(1, 1500):
        rank.trains(step)

    gaps = [after - before for before, after in zip(rank.taken[4:], rank.taken[5:], strict=False)]
    assert set(gaps) == {every}
    assert cost_s / (every * rank.step_s) <= SHARE * 1.001


@pytest.mark.parametrize(("aside_s", "every"), [(0.003, 10), (0.019, 19)])
def test_what_is_done_beside_training_takes_no_more_than_its_share(
    aside_s: float, every: int
) -> None:
    """Nor does what a keeper needs to begin, which comes before."""
    rank = Rank({}, leads=True, step_s=0.1, cost_s=0.0095, aside_s=aside_s)

    for step in range(1, 1500):
        rank.trains(step)

    assert rank.taken[-1] - rank.taken[-2] == every
    assert rank.whys[-1].startswith(f"a snapshot every {every} steps: one ")


def test_ranks_that_measure_otherwise_take_the_same_ones() -> None:
    told: dict[int, int] = {}
    first = Rank(told, leads=True, step_s=0.1, cost_s=0.0095)
    second = Rank(told, leads=False, step_s=0.12, cost_s=0.5)

    for step in range(1, 300):
        first.trains(step)
        second.trains(step)

    assert first.taken == second.taken and len(first.taken) > 20


def test_after_a_restart_the_pace_is_found_anew_from_where_ranks_went_back_to() -> None:
    rank = Rank({}, leads=True, step_s=0.1, cost_s=0.0095)
    rank.pace.begins_at(40)

    for step in range(41, 60):
        rank.trains(step)

    assert rank.taken[:2] == [40 + SOON, 40 + 2 * SOON]


def test_a_change_is_said_and_a_small_one_is_none() -> None:
    rank = Rank({}, leads=True, step_s=0.1, cost_s=0.0095)
    for step in range(1, 200):
        rank.trains(step)
    rank.cost_s = 0.0115
    for step in range(200, 900):
        rank.trains(step)
    assert len(rank.whys) == 1 and rank.whys[0].startswith("a snapshot every 10 steps")

    rank.cost_s = 0.0495
    for step in range(900, 9000):
        rank.trains(step)

    assert rank.whys[-1].startswith("a snapshot every 50 steps")


def test_what_a_copy_slows_a_step_down_is_a_cost_too() -> None:
    rank = Rank({}, leads=True, step_s=0.1, cost_s=0.001)

    for step in range(1, 400):
        before = len(rank.taken)
        rank.trains(step)
        if len(rank.taken) > before:
            rank.now += 0.02  # the copier takes the processor away

    assert rank.taken[-1] - rank.taken[-2] == pytest.approx(21, abs=1)


@pytest.mark.parametrize("step_s", [0.02, 0.1, 4.0])
def test_where_nobody_asked_training_lasts_a_while_before_the_first(step_s: float) -> None:
    told: dict[int, int] = {}
    one = Rank(told, leads=True, step_s=step_s, cost_s=0.001, after_s=3.0)
    other = Rank(told, leads=False, step_s=3 * step_s, cost_s=0.5, after_s=3.0)

    for step in range(1, 200):
        one.trains(step)
        other.trains(step)

    assert 3.0 / step_s <= one.taken[0] <= 3.0 / step_s + 2 * SOON + 1
    assert one.taken == other.taken and len(one.taken) > 1


def test_where_nobody_asked_none_is_taken_of_steps_that_are_too_short() -> None:
    told: dict[int, int] = {}
    one = Rank(told, leads=True, step_s=0.001, cost_s=0.0001, after_s=3.0)
    other = Rank(told, leads=False, step_s=0.001, cost_s=0.0001, after_s=3.0)

    for step in range(1, 9000):
        one.trains(step)
        other.trains(step)

    assert not one.taken and not other.taken
    assert one.pace.over.startswith("a step takes 1.0 ms") and other.pace.over == ELSEWHERE


def test_once_one_rank_takes_none_any_more_nobody_does() -> None:
    told: dict[int, int] = {}
    given_up: list[str] = []
    one = Rank(told, leads=True, step_s=0.1, cost_s=0.001, given_up=given_up)
    other = Rank(told, leads=False, step_s=0.1, cost_s=0.001, given_up=given_up)

    for step in range(1, 40):
        one.trains(step)
        other.trains(step)
        if step == 20:
            other.pace.ends("no room")

    assert one.pace.over == "no room" and one.taken[-1] <= 21


@pytest.mark.parametrize("at", range(20, 27))
def test_nobody_waits_for_a_rank_that_decides_no_more(at: int) -> None:
    told: dict[int, int] = {}
    one = Rank(told, leads=True, step_s=0.1, cost_s=0.001)
    other = Rank(told, leads=False, step_s=0.1, cost_s=0.001)

    for step in range(1, 60):
        one.trains(step)
        if step == at:
            one.pace.ends("its own")
        other.trains(step)

    assert other.pace.over == ELSEWHERE and one.taken[-1] <= at


def test_nobody_waits_for_a_rank_that_ends_before_its_first_step() -> None:
    told: dict[int, int] = {}
    one = Rank(told, leads=True, step_s=0.1, cost_s=0.001)
    other = Rank(told, leads=False, step_s=0.1, cost_s=0.001)

    one.pace.ends("its own")
    for step in range(1, 10):
        other.trains(step)

    assert other.pace.over == ELSEWHERE and not other.taken[1:]


@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_nobody_waits_for_a_rank_that_is_behind(ahead: int) -> None:
    """Ranks that average their parameters now and then are steps apart."""
    told: dict[int, int] = {}
    one = Rank(told, leads=True, step_s=0.1, cost_s=0.0095)
    other = Rank(told, leads=False, step_s=0.1, cost_s=0.0095)

    for step in range(1, 400):
        other.trains(step)
        if step > ahead:
            one.trains(step - ahead)

    assert len(set(one.taken) & set(other.taken)) > 20
    late = [step for step in one.taken[:-1] if step not in other.taken]
    assert len(late) == other.pace.missed and bool(late) is (ahead > 1)
    assert set(other.taken) <= {*one.taken, max(other.taken)}


def test_nobody_waits_for_a_rank_that_has_no_more_steps() -> None:
    told: dict[int, int] = {}
    one = Rank(told, leads=True, step_s=0.1, cost_s=0.0095)
    other = Rank(told, leads=False, step_s=0.1, cost_s=0.0095)

    for step in range(1, 400):
        if step < 100:
            one.trains(step)
        other.trains(step)

    assert set(other.taken) >= set(one.taken)
    assert len(other.taken) <= len(one.taken) + 1
