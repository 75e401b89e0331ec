"""The first failure, where what is heard first need not be it."""

import pytest

from recoverrun.launcher.leadership.first_failure import (
    ACROSS_S,
    ALONE_S,
    NOTICE_S,
    Concluded,
    Ended,
    FirstFailure,
    Lost,
    Stopping,
    Tick,
)
from rendezvous.protocol.heartbeat import QUICK, SLOW
from rendezvous.protocol.messages import Exited, Stop

CLOSED = "RuntimeError: Connection closed by peer [127.0.0.1]:4711"
BAD = "ValueError: bad"


class Case:
    """An attempt of four ranks; every end is heard by the machine and by a coordinator."""

    def __init__(self, nodes: int = 2) -> None:
        self.first_failure = FirstFailure(nodes=nodes, world_size=4)
        self.concluded: list[Concluded] = []

    def end(
        self, rank: int, now: float, error: str = "", *, code: int = 1, age_s: float = 0.0,
        ours: bool = False,
    ) -> None:  # fmt: skip
        exited = Exited(
            rank=rank, incarnation=0, node="n", code=code, ours=ours, error=error,
            detected_s=0.0, age_s=age_s,
        )  # fmt: skip
        self.concluded += self.first_failure.step(Ended(exited), now)
        if code and not ours and not self.first_failure.pending:
            stop = Stop(exit_code=1, reason="the first", root_rank=rank)
            self.concluded += self.first_failure.step(Stopping(stop), now)

    def wait(self, now: float) -> None:
        self.concluded += self.first_failure.step(Tick(), now)

    @property
    def root(self) -> int:
        (conclusion,) = self.concluded
        return conclusion.stop.root_rank


@pytest.mark.parametrize("gap_s", [0.0, 0.1, 2.0])
def test_the_victim_is_heard_first_and_the_cause_named(gap_s: float) -> None:
    case = Case()
    case.end(0, 1.0, CLOSED)
    case.end(3, 1.0 + gap_s, BAD)
    case.wait(1.0 + gap_s + ACROSS_S)

    assert case.root == 3


def test_of_two_causes_it_is_the_one_that_failed_first_whoever_is_heard_first() -> None:
    case = Case()
    case.end(0, 1.0, "MyError: a peer is gone", age_s=0.05)
    case.end(3, 1.2, BAD, age_s=0.5)
    case.wait(1.0 + ACROSS_S)

    assert case.root == 3


def test_a_signal_that_no_peer_brings_about_needs_no_wait() -> None:
    case = Case()
    case.end(2, 1.0, code=-9)

    assert case.root == 2


def test_a_library_that_aborts_may_be_a_victim() -> None:
    case = Case()
    case.end(0, 1.0, code=-6)
    assert case.concluded == []
    case.end(3, 1.1, BAD, age_s=0.4)
    case.wait(1.0 + ACROSS_S)

    assert case.root == 3


def test_on_one_node_the_kernels_order_is_enough() -> None:
    case = Case(nodes=1)
    case.end(2, 1.0, code=7)

    assert case.root == 2


def test_on_one_node_too_a_victim_may_end_before_its_cause() -> None:
    case = Case(nodes=1)
    case.end(0, 1.0, CLOSED)
    case.end(1, 1.4, BAD)

    assert case.root == 1


@pytest.mark.parametrize(
    ("nodes", "wait_s"),
    [(1, ALONE_S), (2, QUICK.silent_s + NOTICE_S), (500, SLOW.silent_s + NOTICE_S)],
)
def test_with_nothing_but_victims_the_first_stands_in(nodes: int, wait_s: float) -> None:
    case = Case(nodes)
    case.end(1, 1.0, CLOSED)
    case.end(2, 1.1, CLOSED)
    case.wait(1.0 + wait_s - 0.01)
    assert case.concluded == [] and case.first_failure.deadline() == 1.0 + wait_s
    case.wait(1.0 + wait_s)

    assert case.root == 1


def test_nobody_is_waited_for_when_all_have_ended() -> None:
    case = Case()
    for rank in range(4):
        case.end(rank, 1.0 + rank / 10, CLOSED)

    assert case.root == 0


def test_a_node_that_falls_silent_explains_its_victims() -> None:
    case = Case()
    case.end(0, 1.0, CLOSED)
    case.concluded += case.first_failure.step(Lost(2, "node b is lost"), 3.0)

    assert case.root == 2 and case.concluded[0].lost


def test_what_we_ended_ourselves_is_no_cause() -> None:
    case = Case()
    case.end(0, 1.0, BAD, age_s=9.0, ours=True)
    case.end(3, 1.1, BAD)
    case.wait(1.1 + ACROSS_S)

    assert case.root == 3
