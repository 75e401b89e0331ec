"""The operand of a lost rank in a reduction of the script, and how sure it is."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ft_collectives.process_group.substitution_policy import LostInputs
from recoverrun.worker.make_up.lost_operands import LostOperands
from recoverrun.worker.replay.lost_rank import LostRank
from tests.unit.contexts import at

LOST, THIS_RANK = 0, 1


def inputs_of_lost(
    given: list[float],
    *,
    before: dict[str, Any],
    here: dict[str, Any],
    there: dict[str, Any],
    made: Sequence[dict[str, Any]] = ({}, {}),
    made_there: dict[str, Any] | None = None,
) -> LostInputs:
    """For `given`, with such variables as a microbatch begins, at its end, and on the lost rank;
    iterations, the last one among them, have `made` such numbers.
    """
    *earlier, after = (
        at(5 - len(made) + step, kind="after", names=here, made=one)
        for step, one in enumerate(made)
    )
    lost = LostRank(LOST, apart=False)
    lost.learn(at(4, kind="after", names=there, made=made_there or {}), after)
    worker: Any = SimpleNamespace(
        lost={LOST}, acting=False, env=SimpleNamespace(rank=THIS_RANK),
        guarantee=SimpleNamespace(exact=True),
        protection=SimpleNamespace(layout=SimpleNamespace(place=lambda rank: (rank, 0))),
    )  # fmt: skip
    executor: Any = SimpleNamespace(
        captures=SimpleNamespace(points=[*earlier, at(4, names=before), after]), lost={LOST: lost}
    )
    find = LostOperands(worker, executor).find((LOST, THIS_RANK), [torch.tensor(given)])
    assert find is not None
    return find((THIS_RANK,))


@pytest.mark.parametrize(("before", "certain"), [(0, True), (5, False)])
def test_a_count_is_the_lost_rank_s_own(before: int, certain: bool) -> None:
    found = inputs_of_lost(
        [5.0], before={"tokens": before}, here={"tokens": 5}, there={"tokens": 7}
    )

    assert [[one.tolist() for one in rank] for rank in found.inputs] == [[[7.0]]]
    assert found.certain is certain and not found.flags


@pytest.mark.parametrize("given", [[0.0], [1.0], [5.0, 1.0]])
def test_a_zero_or_a_one_may_be_a_variable_s_by_chance(given: list[float]) -> None:
    names = {"epoch": 0, "micro": 1, "tokens": 5}

    found = inputs_of_lost(given, before={}, here=names, there=names)

    assert found.flags and len(found.inputs) == 1


def test_what_is_no_variable_is_not_known() -> None:
    assert not inputs_of_lost([2.5], before={}, here={"n": 1}, there={"n": 1}).inputs


@pytest.mark.parametrize(("earlier", "certain"), [((3, 5), True), ((5, 5), False), ((), True)])
def test_a_count_that_each_iteration_makes_anew_is_the_lost_ranks_own(
    earlier: tuple[int, ...], certain: bool
) -> None:
    made = [{"tokens": one} for one in (*earlier, 5)]

    found = inputs_of_lost([5.0], before={}, here={}, there={}, made=made, made_there={"tokens": 7})

    assert [[one.tolist() for one in rank] for rank in found.inputs] == [[[7.0]]]
    assert found.certain is certain


def test_a_number_that_the_lost_rank_has_not_come_to_tells_nothing() -> None:
    made = [{"tokens": 5, "rate": 5}]

    found = inputs_of_lost([5.0], before={}, here={}, there={}, made=made, made_there={"tokens": 7})

    assert [[one.tolist() for one in rank] for rank in found.inputs] == [[[7.0]]]
