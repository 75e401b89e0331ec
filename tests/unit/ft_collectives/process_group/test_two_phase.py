"""Operations in two phases: what counts as everybody's result, and calls of several operations."""

import threading
from datetime import timedelta

import pytest

from ft_collectives.communicators.channel import Communicator, Totals
from ft_collectives.communicators.errors import Superseded
from ft_collectives.communicators.fabric import Fabric
from ft_collectives.communicators.limits import TimeLimits
from ft_collectives.process_group.two_phase import (
    TwoPhaseOperations,
    UnconfirmedResult,
    settle_disagreement,
)
from rendezvous.protocol.views import View

RANKS = (0, 1, 2)


def operations_of_rank_0() -> TwoPhaseOperations:
    fabric = Fabric(
        rank=0, view=View(generation=1, live=(), live_ranks=RANKS, losses=()),
        store=lambda generation: None, changed=threading.Condition(),
        limits=TimeLimits(lambda: timedelta(seconds=5)), on_hint=lambda *_: None,
    )  # fmt: skip
    return TwoPhaseOperations(fabric, "world", RANKS, "native", lambda: timedelta(seconds=3))


class Withdrawn(Exception):
    """The process has ended."""


def withdraw(reason: str) -> None:
    raise Withdrawn(reason)


def fabric_of(rank: int, *, came_back: bool) -> Fabric:
    return Fabric(
        rank=rank, view=View(generation=1, live=(), live_ranks=RANKS, losses=()),
        store=lambda generation: None, changed=threading.Condition(),
        limits=TimeLimits(lambda: timedelta(seconds=5)), on_hint=lambda *_: None,
        withdraw=withdraw if came_back else None,
    )  # fmt: skip


A, B, C = [1, 1], [2, 1], [3, 1]


def test_who_came_back_and_calls_otherwise_withdraws_and_the_others_go_on() -> None:
    said = [(A, 0), (B, 5), (A, 0)]

    with pytest.raises(Withdrawn, match="they differ"):
        settle_disagreement(said, B, fabric_of(1, came_back=True), "they differ")
    with pytest.raises(Superseded):
        settle_disagreement(said, A, fabric_of(0, came_back=False), "they differ")


def test_who_came_back_and_calls_as_the_first_ones_do_stays() -> None:
    said = [(A, 0), (B, 5), (A, 7)]

    with pytest.raises(Superseded):
        settle_disagreement(said, A, fabric_of(2, came_back=True), "they differ")


def test_where_all_were_lost_before_who_came_back_last_withdraws() -> None:
    said = [(A, 5), (B, 9), (A, 7)]

    with pytest.raises(Withdrawn, match="they differ"):
        settle_disagreement(said, B, fabric_of(1, came_back=True), "they differ")
    with pytest.raises(Superseded):
        settle_disagreement(said, A, fabric_of(0, came_back=True), "they differ")


@pytest.mark.parametrize("said", [[(A, 0), (B, 0), (A, 5)], [(A, 5), (B, 5)]])
def test_where_those_who_stayed_differ_it_is_the_script_s(
    said: list[tuple[list[int], int]],
) -> None:
    for own, since in said:
        with pytest.raises(RuntimeError, match="they differ"):
            settle_disagreement(said, own, fabric_of(0, came_back=since > 0), "they differ")


def test_an_operation_waits_as_long_as_the_script_waits_in_its_group() -> None:
    limit = operations_of_rank_0().channel.limit

    assert limit is not None and limit() == timedelta(seconds=3)


def settled(held_in: int, *aligned: Totals) -> bool:
    operations = operations_of_rank_0()
    held = UnconfirmedResult(5, [], Communicator(held_in, (0, 1, 2), None))
    return operations._settled(held, Communicator(9, (0, 1), None, aligned))


@pytest.mark.parametrize(
    ("aligned", "expected"),
    [
        ([(4, 5, 1), (4, 5, 1)], True),  # all hold it
        ([(4, 5, 1), (5, 5, 0)], True),  # a member has completed it, so all do
        ([(4, 5, 1), (5, 6, 2)], True),  # and is further
        ([(4, 5, 1), (4, 4, 0)], False),  # a member does not hold it
        ([(4, 5, 1), (4, 5, 2)], False),  # held, but of other members
        ([], False),  # the first generation: no meeting has been
    ],
)
def test_a_held_result_counts_if_it_is_everybody_s(aligned: list[Totals], expected: bool) -> None:
    assert settled(1, *aligned) == expected


def test_a_call_of_parts_is_made_again_if_a_loss_came_between_them() -> None:
    operations = operations_of_rank_0()
    rounds = iter([[(0, 1, 2), (0, 1)], [(0, 1), (0, 1)]])
    calls = []

    def whole() -> str:
        calls.append(len(calls))
        assert operations._among is not None
        operations._among.update(next(rounds))
        if len(calls) == 1:
            raise EOFError("half a pickle")
        return "done"

    assert operations.call(whole) == "done"
    assert calls == [0, 1]


def test_an_error_among_the_same_members_is_the_script_s() -> None:
    operations = operations_of_rank_0()

    def whole() -> None:
        raise EOFError("half a pickle")

    with pytest.raises(EOFError):
        operations.call(whole)
