"""A kill strikes where it is meant to, and nowhere else."""

import os
import signal
import time

import pytest

from recoverrun.worker.step import failpoints
from recoverrun.worker.step.failpoints import Failpoints


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    signals: list[int] = []
    monkeypatch.setattr(failpoints, "end", lambda _, number: signals.append(number))
    return signals


def test_a_kill_strikes_its_rank_in_its_step_and_phase(killed: list[int]) -> None:
    own, other = (Failpoints("r1@step:2:forward", rank, lambda: None) for rank in (1, 0))
    for step in range(4):
        other.strike(step, "forward")
        own.strike(step, "backward")
    assert not killed

    own.strike(2, "forward")

    assert killed == [signal.SIGKILL]


def test_where_nothing_is_protected_a_kill_strikes_before_its_update(killed: list[int]) -> None:
    failpoints = Failpoints("r1@step:2:forward", 1, lambda: None)
    for refused in (False, True):
        failpoints.update(refused=refused)
    assert not killed

    failpoints.update(refused=True)

    assert killed == [signal.SIGKILL]


def test_optimizers_that_step_after_the_same_backward_take_one_step(killed: list[int]) -> None:
    failpoints = Failpoints("r1@step:2:forward", 1, lambda: None)
    for _ in range(2):
        failpoints.backward_begins()
        for _ in range(3):
            failpoints.update(refused=True)
    assert not killed

    failpoints.backward_begins()
    failpoints.update(refused=True)

    assert killed == [signal.SIGKILL]


def test_a_script_that_may_be_protected_yet_is_not_struck_by_its_updates(killed: list[int]) -> None:
    failpoints = Failpoints("r1@step:0:forward", 1, lambda: None)

    failpoints.update(refused=False)

    assert not killed


def points(schedule: str, rank: int, *, birth: int = 0) -> Failpoints:
    return Failpoints(schedule, rank, lambda: None, birth=birth)


def test_a_newcomer_dies_on_its_way_in_the_birth_that_is_meant(killed: list[int]) -> None:
    schedule = "r1@return:2:ready"
    for one in (points(schedule, 1, birth=1), points(schedule, 0, birth=2)):
        one.comes("ready")
    points(schedule, 1, birth=2).comes("wind")
    assert not killed

    said: list[str] = []
    points(schedule, 1, birth=2).comes("ready", before=lambda: said.append("ready"))

    assert (killed, said) == ([signal.SIGKILL], ["ready"])


def test_a_newcomer_may_die_in_its_first_step_and_in_no_other(killed: list[int]) -> None:
    newcomer = points("r1@return:vote", 1, birth=1)
    newcomer.return_begins(40)
    for step in (39, 41):
        newcomer.strike(step, "vote")
    newcomer.strike(40, "forward")
    assert not killed

    newcomer.strike(40, "vote")

    assert killed == [signal.SIGKILL]


def test_a_member_dies_the_nth_time_that_it_stops_for_others(killed: list[int]) -> None:
    member = points("r0@welcome:2:send,r0@welcome:2:backward", 0)
    member.stops()
    member.welcomes("send")
    member.return_begins(7)
    member.strike(7, "backward")
    member.stops()
    assert not killed

    member.welcomes("send")
    member.return_begins(12)
    member.strike(12, "backward")

    assert killed == 2 * [signal.SIGKILL]


def test_a_member_dies_after_what_it_waits_for(killed: list[int]) -> None:
    member = points("r0@welcome:give", 0)
    member.stops()
    seen: list[int] = []

    member.welcomes("give", before=lambda: seen.append(len(killed)))

    assert (seen, killed) == ([0], [signal.SIGKILL])


def test_who_has_come_back_himself_does_not_die_of_what_his_first_process_was_to(
    killed: list[int],
) -> None:
    member = points("r0@welcome:hold", 0, birth=1)
    member.stops()

    member.welcomes("hold")

    assert not killed and not member.armed


def test_a_lost_node_loses_its_launcher_first(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(failpoints, "end", lambda pid, _: ended.append(pid))

    points("r1@step:2:vote:node", 1).strike(2, "vote")

    assert ended == [os.getppid(), os.getpid()]


def test_the_keeper_ends_in_the_place_of_the_rank_and_once(
    killed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    launchers: list[int] = []
    monkeypatch.setattr(failpoints, "end_keeper", launchers.append)
    one = points("keeper1@step:10:snapshot", 1)

    for _ in range(2):
        one.strike(10, "snapshot")

    assert (launchers, killed) == ([os.getppid()], [])


def test_what_is_for_all_ranks_strikes_each_and_a_snapshots_phase_no_update(
    killed: list[int],
) -> None:
    for rank in range(2):
        points("all@step:3:forward", rank).strike(3, "forward")
    assert len(killed) == 2
    one = points("r1@step:0:restore,r1@step:0:parity", 1)

    one.update(refused=True)

    assert len(killed) == 2


def test_a_step_keeps_the_pace_only_while_somebody_is_away() -> None:
    one = points("pace:60", 0)
    one.keep_pace(away=False)
    began = time.monotonic()

    one.keep_pace(away=False)
    in_between = time.monotonic()
    one.keep_pace(away=True)

    assert in_between - began < 0.06 <= time.monotonic() - began
