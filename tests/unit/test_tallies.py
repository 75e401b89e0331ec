"""Which numbers are counts of a step's tokens, and by which factor gradients were multiplied."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recoverrun.hooks.reading import CHANGED, Reading
from recoverrun.hooks.tallies import LATE, UNKNOWN, Tallies
from rendezvous.layout import Layout


class Gradients:
    name = "ddp"
    early = True
    synced = False  # so nothing is lent but what is there
    lender = None

    def __init__(self, *gradients: torch.Tensor) -> None:
        self.gradients = list(gradients)

    def accumulators(self) -> list[torch.Tensor]:
        return self.gradients


def session_of(names: dict[str, Any], now: dict[str, Any], **more: Any) -> Any:
    """One microbatch that began with `names`, in a loop at the level of a module."""
    loop = SimpleNamespace(carried=frozenset(names), module_level=True)
    turn = SimpleNamespace(loop=loop, globals=now, frame_id=0)
    first = SimpleNamespace(turn=turn, names=names, attributes=more.get("attributes", {}))
    return SimpleNamespace(
        impersonator=SimpleNamespace(),
        runtime=SimpleNamespace(microbatches=[first], heard=0),
        layout=Layout(((0,), (1,))),
        strategy=Gradients(torch.tensor([1.0, -2.0]), torch.tensor([4.0])),
        microbatch=1,
        promise=None,
    )


def recognised(session: Any, tensor: torch.Tensor) -> Any:
    tallies = Tallies(session)
    tallies._before = tallies._candidates()
    return tallies._recognised(tensor, torch.distributed.ReduceOp.SUM, None)


def test_a_sum_that_began_at_zero_is_known_by_identity_and_by_value() -> None:
    tokens = torch.tensor(17)
    session = session_of({"tokens": 0, "loss": 0.0, "step": 3}, {"tokens": tokens, "loss": 2.5})

    assert recognised(session, tokens).keys == ("tokens",)
    assert recognised(session, torch.tensor([2.5, 17.0])).keys == ("loss", "tokens")
    assert recognised(session, torch.tensor(3)).why == UNKNOWN


def test_where_no_loop_is_known_no_sum_is() -> None:
    session = session_of({"tokens": 0}, {"tokens": 17})
    session.runtime.microbatches = []

    assert recognised(session, torch.tensor(17)).why == UNKNOWN


def test_attributes_are_counted_in_too() -> None:
    trainer = SimpleNamespace(seen=12)
    session = session_of({}, {"trainer": trainer}, attributes={("trainer", "seen"): 0})

    assert recognised(session, torch.tensor(12)).keys == (("trainer", "seen"),)


def test_two_sums_of_the_same_value_are_not_guessed() -> None:
    session = session_of({"tokens": 0, "words": 0}, {"tokens": 8, "words": 8})

    assert recognised(session, torch.tensor(8)).why == UNKNOWN


def test_what_grows_after_the_backward_is_refused() -> None:
    session = session_of({"tokens": 0}, {"tokens": 0})
    tallies = Tallies(session)
    tallies._before = tallies._candidates()
    session.runtime.microbatches[0].turn.globals["tokens"] = 9

    told = tallies._recognised(torch.tensor(9), torch.distributed.ReduceOp.SUM, None)

    assert told.why == LATE.format("tokens")


def read(session: Any) -> Reading:
    reading = Reading(session)
    reading._note()
    return reading


def test_a_factor_is_found_and_applied_to_what_is_reduced() -> None:
    session = session_of({}, {})
    reading = read(session)
    for gradient in session.strategy.gradients:
        gradient *= 0.25

    factor = reading.found()

    assert factor == pytest.approx(0.25)
    assert reading.judge({0: factor, 1: factor}) == ""
    reading.concluded()
    assert torch.equal(session.strategy.gradients[0], torch.tensor([1.0, -2.0]))
    reading.delivered()
    assert torch.allclose(session.strategy.gradients[0], torch.tensor([0.25, -0.5]))
    assert reading.commits


def test_what_is_no_factor_is_told() -> None:
    session = session_of({}, {})
    reading = read(session)
    session.strategy.gradients[1].clamp_(max=1.0)

    factor = reading.found()

    assert factor is not None
    assert math.isnan(factor)
    assert reading.judge({0: factor, 1: 1.0}) == CHANGED


def test_other_factors_on_other_ranks_are_told() -> None:
    assert read(session_of({}, {})).judge({0: 0.5, 1: 0.25}) == CHANGED


def test_gradients_that_one_rank_looks_at_for_its_log_are_no_matter() -> None:
    reading = read(session_of({}, {}))

    assert reading.judge({0: 1.0, 1: None}) == ""
    assert not reading.commits
