"""Gradients that DDP has no part in, from when on, and when they are reduced."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from ft_collectives.step.reducer import Reducer
from recoverrun.worker.step.interfaces import StrategyHost
from recoverrun.worker.strategies.ddp_buckets import Gradients
from recoverrun.worker.strategies.ddp_reducer_bypass import BucketArrivals, BypassedGradients

MIB = 1 << 20


class Bucket:
    def __init__(self, last: bool) -> None:
        self._last = last

    def is_last(self) -> bool:
        return self._last


def ddp(**different: Any) -> Any:
    usual = {
        "find_unused_parameters": False,
        "static_graph": False,
        "gradient_as_bucket_view": False,
        "mixed_precision": None,
        "bucket_bytes_cap": MIB,
        "_delay_all_reduce_params": [],
        "_has_rebuilt_buckets": True,
        "_join_config": SimpleNamespace(enable=False),
    }
    return SimpleNamespace(**{**usual, **different})


def part(*kilobytes: int, dtype: torch.dtype = torch.float32, counts: bool = False) -> Gradients:
    params = [torch.nn.Parameter(torch.zeros(kb * 256).to(dtype)) for kb in kilobytes]
    return Gradients(params=params, replicas=2, counts=counts)


class Steps:
    """A session at the transaction and microbatch that a test wants."""

    def __init__(self) -> None:
        self.worker = self
        self.step = 1
        self.runtime = SimpleNamespace(microbatches=[])

    def begin(self, step: int) -> None:
        self.step = step
        self.runtime.microbatches = []

    def has_run(self, microbatches: int) -> None:
        self.runtime.microbatches = [object()] * microbatches


def looked(module: Any, *parts: Gradients) -> tuple[BypassedGradients, Steps]:
    """After the backward of transaction 1, in which DDP has filled these buckets."""
    steps = Steps()
    still = BypassedGradients(cast("StrategyHost", steps))
    for count in range(1, len(parts) + 1):
        still.look(module, Bucket(last=count == len(parts)), parts[:count])
    steps.has_run(1)
    return still, steps


def test_ddp_keeps_still_from_the_transaction_that_follows() -> None:
    first, second = part(1, 2), part(3)
    still, steps = looked(ddp(), first, second)

    assert still.due() == []
    steps.has_run(0)  # it begins again: others may have reduced the first bucket already
    assert still.due() == []
    steps.begin(2)
    assert still.due() == [first, second]
    steps.has_run(1)
    assert still.due() == []


def test_it_begins_to_only_once() -> None:
    still, steps = looked(ddp(), part(1), part(1))
    steps.begin(2)
    still.gradients = [part(1)]

    assert still.due() == []


@pytest.mark.parametrize(
    ("module", "parts", "reduced"),
    [
        pytest.param(ddp(), (part(600), part(424)), "as they arrive", id="several stay several"),
        pytest.param(ddp(), (part(5000),), "as one", id="one that is large is one"),
        pytest.param(ddp(_has_rebuilt_buckets=False), (part(1),), "by DDP", id="not settled"),
        pytest.param(
            ddp(_has_rebuilt_buckets=False, find_unused_parameters=True),
            (part(1, counts=True),),
            "as one",
            id="never divided anew",
        ),
        pytest.param(
            ddp(_has_rebuilt_buckets=False, find_unused_parameters=True, static_graph=True),
            (part(1, counts=True), part(1, counts=True)),
            "by DDP",
            id="static graphs are",
        ),
        pytest.param(
            ddp(find_unused_parameters=True),
            (part(600, counts=True), part(425, counts=True)),
            "by DDP",
            id="some may never arrive",
        ),
        pytest.param(ddp(gradient_as_bucket_view=True), (part(1),), "by DDP", id="DDP's memory"),
        pytest.param(ddp(mixed_precision=object()), (part(1),), "by DDP", id="DDP casts"),
        pytest.param(ddp(_delay_all_reduce_params=[object()]), (part(1),), "by DDP", id="delayed"),
        pytest.param(
            ddp(), (part(1), part(1, dtype=torch.float64)), "as they arrive", id="of two types"
        ),
    ],
)
def test_how_gradients_are_reduced(module: Any, parts: tuple[Gradients, ...], reduced: str) -> None:
    still, steps = looked(module, *parts)
    steps.begin(2)

    if reduced == "by DDP":
        assert still.due() == []
    else:
        assert still.due() == list(parts)
        assert still.whole == (reduced == "as one")


@pytest.mark.parametrize(("counts", "served"), [(False, False), (True, True)])
def test_ddp_sees_for_itself_that_a_gradient_is_lacking(counts: bool, served: bool) -> None:
    still, _ = looked(ddp(), part(1))
    lacking = part(1, 1, counts=counts)
    still.gradients = [part(1), lacking]
    assert still.serves(ddp())

    lacking.params[0].grad = torch.ones(256)
    lacking.fill(torch.empty(lacking.size))

    assert lacking.lacking
    assert still.serves(ddp()) == served


def test_in_a_join_context_ddp_reduces_by_itself() -> None:
    still, _ = looked(ddp(), part(1))
    still.gradients = [part(1)]

    assert not still.serves(ddp(_join_config=SimpleNamespace(enable=True)))


class Reduced:
    """A session, its reducer, and what is offered to that."""

    def __init__(self) -> None:
        self.worker = self
        self.generation = 3
        self.acting = False
        self.offers: list[tuple[int, int]] = []  # which bucket, in which generation
        self.reached = 0
        self.included: list[int] = []  # buckets that the transaction reduces
        self.runtime = SimpleNamespace(active=True)

    def final_in(self) -> int:
        return self.generation

    def bucket_reached(self) -> None:
        self.reached += 1

    def include(self, keys: Iterable[tuple[int, ...]]) -> None:
        self.included = [self.keys.index(key) for key in keys]

    def offer(self, key: tuple[int, ...], generation: int) -> None:
        self.offers.append((self.keys.index(key), generation))

    def serves(self, *parts: Gradients) -> BucketArrivals:
        buckets = {tuple(map(id, one.params)): one for one in parts}
        self.keys = list(buckets)
        return BucketArrivals(cast("StrategyHost", self), cast("Reducer", self), buckets)


def backward(*parts: Gradients) -> None:
    sum((param.sum() for one in parts for param in one.params), torch.zeros(())).backward()


def test_a_bucket_is_offered_when_its_last_gradient_has_arrived() -> None:
    session, first, second = Reduced(), part(1, 1), part(1)
    arrivals = session.serves(first, second)
    arrivals.begin(synced=True)

    first.params[1].sum().backward()
    assert session.offers == []
    backward(second)
    assert session.offers == [(1, 3)]
    assert session.included == [0, 1], "in the order of DDP, whichever arrives first"
    first.params[0].sum().backward()
    assert session.offers == [(1, 3), (0, 3)]


def test_each_backward_is_counted_anew() -> None:
    session, one = Reduced(), part(1, 1)
    arrivals = session.serves(one)

    for _ in range(2):
        arrivals.begin(synced=True)
        backward(one)

    assert session.offers == [(0, 3)] * 2


def test_gradients_of_a_backward_without_a_reduction_are_not_offered() -> None:
    session, one = Reduced(), part(1)
    session.serves(one).begin(synced=False)

    backward(one)
    backward(one)

    assert (session.offers, session.reached, session.included) == ([], 0, [])


def test_gradients_to_which_a_loss_may_add_are_not_offered() -> None:
    session, one = Reduced(), part(1, 1)
    session.generation = 0
    session.serves(one).begin(synced=True)

    backward(one)

    assert (session.offers, session.reached, session.included) == ([], 1, [0])


def test_a_loss_during_the_backward_ends_the_offers() -> None:
    session, first, second = Reduced(), part(1), part(1)
    session.serves(first, second).begin(synced=True)

    backward(first)
    session.generation = 0
    backward(second)

    assert session.offers == [(0, 3)]


def test_nothing_is_offered_for_another_rank() -> None:
    session, one = Reduced(), part(1)
    session.serves(one).begin(synced=True)
    session.acting = True
    backward(one)
    assert (session.offers, session.reached) == ([], 0)

    session.acting = False
    backward(one)

    assert session.offers == [(0, 3)], "another rank's gradients are none of those awaited"


def test_a_second_gradient_in_one_backward_is_an_error_as_it_is_in_ddp() -> None:
    session, one = Reduced(), part(1)
    session.serves(one).begin(synced=True)
    backward(one)

    with pytest.raises(RuntimeError, match="a second gradient in one backward pass"):
        backward(one)


def test_a_backward_after_the_one_that_reduces_is_none_of_ddp() -> None:
    session, one = Reduced(), part(1)
    arrivals = session.serves(one)
    arrivals.begin(synced=True)
    backward(one)
    arrivals.begin(synced=False)  # as that backward ends

    backward(one)

    assert one.params[0].grad is not None
    assert one.params[0].grad[0] == 2
    assert session.offers == [(0, 3)]
