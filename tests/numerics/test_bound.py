"""The printed bound on |Δw|: another order of summation stays below it, a wrong sum does not.

One process trains the GPT of templates/gpt_hsdp.py on explicit microbatches, so that a test can sum
them in the order of the failure-free run, in that of a survivor, or with one of them missing.
"""

import copy
from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from recoverrun.worker.tools.rounding_bound import (
    CANCELLATION,
    GROWTH,
    Course,
    largest_update,
    weight_bound,
)
from templates.gpt_hsdp import GPT, warmup_cosine

STEPS, LOSS_STEP = 30, 10
REPLICAS, MICROBATCHES = 2, 4
B = REPLICAS * MICROBATCHES
SIZE = Namespace(width=32, context=32, dropout=0.1, layers=2, heads=4)
RATE = 3e-3

Identity = tuple[int, int]
HOME = tuple((slot, index) for slot in range(REPLICAS) for index in range(MICROBATCHES))


@dataclass
class Training:
    """A model in the middle of its training."""

    model: GPT
    optimizer: torch.optim.AdamW
    scheduler: LambdaLR
    step: int = 0
    cancellation: float = 0.0  # the largest sum|g| / sqrt(v) that was seen
    norm_cancellation: float = 0.0

    @property
    def weights(self) -> list[Tensor]:
        return list(self.model.parameters())

    @property
    def values(self) -> list[Tensor]:
        return [weight.detach() for weight in self.weights]

    def gradient(self, identity: Identity) -> Sequence[Tensor]:
        """A pure function of the parameters, the step and the identity."""
        slot, index = identity
        torch.manual_seed(1000 * self.step + 10 * slot + index)
        x = torch.randint(16, (4, SIZE.context)) * torch.randint(16, (1, SIZE.context))
        loss = self.model(x, x.roll(-1, 1)) / MICROBATCHES
        return torch.autograd.grad(loss, self.weights)

    def advance(self, lanes: Iterable[Iterable[Identity]], *, look: bool = False) -> None:
        """Make one step; each lane is summed in its order, then the lanes, then divided."""
        gradients = {identity: self.gradient(identity) for identity in HOME}
        sums = [total([gradients[i] for i in lane]) for lane in lanes]
        for weight, gradient in zip(self.weights, total(sums), strict=True):
            weight.grad = gradient / REPLICAS
        norm = float(torch.nn.utils.clip_grad_norm_(self.weights, 1.0))
        self.optimizer.step()
        if look:
            self.look(gradients.values(), norm)
        self.scheduler.step()
        self.optimizer.zero_grad()
        self.step += 1

    def look(self, gradients: Iterable[Sequence[Tensor]], norm: float) -> None:
        """Measure the two quantities that the bound takes from a model."""
        absolute = [g / REPLICAS for g in total([[t.abs() for t in g] for g in gradients])]
        clip = min(1.0, 1.0 / norm)
        for weight, amount in zip(self.weights, absolute, strict=True):
            state = self.optimizer.state[weight]
            second = state["exp_avg_sq"] / (1 - 0.95 ** float(state["step"]))
            ratio = float((clip * amount / (second.sqrt() + 1e-8)).max())
            self.cancellation = max(self.cancellation, ratio)
        norms = torch.stack([amount.norm() for amount in absolute])
        self.norm_cancellation = max(self.norm_cancellation, float(norms.norm()) / norm)


def total(terms: Iterable[Sequence[Tensor]]) -> list[Tensor]:
    """Add up from the left, tensor by tensor."""
    head, *tail = terms
    result = list(head)
    for term in tail:
        result = [a + b for a, b in zip(result, term, strict=True)]
    return result


HOME_LANES = [HOME[:MICROBATCHES], HOME[MICROBATCHES:]]
SURVIVOR_LANES = [HOME]


def begin() -> Training:
    torch.manual_seed(1)
    model = GPT(SIZE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    return Training(model, optimizer, LambdaLR(optimizer, lambda s: warmup_cosine(s, 5, STEPS)))


@pytest.fixture(scope="module")
def at_the_loss() -> Training:
    training = begin()
    while training.step < LOSS_STEP:
        training.advance(HOME_LANES)
    return training


@pytest.fixture(scope="module")
def failure_free(at_the_loss: Training) -> Training:
    return finish(at_the_loss, HOME_LANES, look=True)


def finish(
    training: Training,
    lanes: Iterable[Iterable[Identity]],
    *,
    first: Iterable[Iterable[Identity]] = (),
    look: bool = False,
) -> Training:
    """Go on from a copy of `training` to the end; its first step is summed as `first` if given."""
    training = copy.deepcopy(training)
    if first:
        training.advance(first)
    while training.step < STEPS:
        training.advance(lanes, look=look)
    return training


def course(loss_step: int) -> Course:
    rates = (RATE * warmup_cosine(step, 5, STEPS) for step in range(loss_step, STEPS))
    return Course(rates=tuple(rates), terms=B)


def excess(a: Training, b: Training, after: Course) -> float:
    """The worst |Δw| of a tensor in units of its bound."""
    return max(
        float((one - two).abs().max()) / weight_bound(after, float(one.abs().max()))
        for one, two in zip(a.values, b.values, strict=True)
    )


def test_another_order_of_the_same_sums_stays_within_the_bound(
    at_the_loss: Training, failure_free: Training
) -> None:
    survived = finish(at_the_loss, SURVIVOR_LANES)

    worst = excess(failure_free, survived, course(LOSS_STEP))
    assert 0 < worst < 0.5, f"{worst} of the bound"


@pytest.mark.parametrize(
    ("fault", "lane"),
    [("missing", HOME[:-1]), ("twice", (*HOME, HOME[0])), ("swapped", (*HOME[:-1], HOME[0]))],
)
def test_one_wrong_microbatch_in_one_step_exceeds_the_bound(
    fault: str, lane: tuple[Identity, ...], at_the_loss: Training, failure_free: Training
) -> None:
    wrong = finish(at_the_loss, SURVIVOR_LANES, first=[lane])

    worst = excess(failure_free, wrong, course(LOSS_STEP))
    assert worst > 10, f"one microbatch {fault}: only {worst} of the bound"


def test_one_missing_microbatch_in_the_very_last_step_exceeds_the_bound(
    at_the_loss: Training, failure_free: Training
) -> None:
    training = copy.deepcopy(at_the_loss)
    while training.step < STEPS - 1:
        training.advance(HOME_LANES)
    wrong = finish(training, SURVIVOR_LANES, first=[HOME[:-1]])

    assert excess(failure_free, wrong, course(STEPS - 1)) > 10


def test_what_the_bound_takes_from_a_model_holds_on_a_real_run(failure_free: Training) -> None:
    assert failure_free.cancellation <= CANCELLATION * B
    assert failure_free.norm_cancellation <= B**0.5


def test_a_difference_grows_no_faster_than_the_model_says(
    at_the_loss: Training, failure_free: Training
) -> None:
    pushed = copy.deepcopy(at_the_loss)
    torch.manual_seed(2)
    with torch.no_grad():
        for weight in pushed.weights:
            weight += 1e-5 * (torch.rand_like(weight) - 0.5).sign()
    pushed = finish(pushed, HOME_LANES)

    rates = course(LOSS_STEP).rates
    allowed = 1e-5
    for rate in rates:
        allowed *= 1 + GROWTH * rate / max(rates)
    differences = zip(failure_free.values, pushed.values, strict=True)
    assert max(float((one - two).abs().max()) for one, two in differences) < allowed


def test_the_largest_update_of_adam_is_that_of_its_weights() -> None:
    assert largest_update((0.9, 0.9)) == pytest.approx(1.0, abs=1e-6)
    assert largest_update((0.9, 0.95)) == pytest.approx(1.165, abs=1e-3)


def test_the_bound_grows_with_the_steps_and_is_zero_without_any() -> None:
    assert weight_bound(Course(rates=(), terms=B), 1.0) == 0.0
    assert weight_bound(course(20), 1.0) < weight_bound(course(LOSS_STEP), 1.0)
