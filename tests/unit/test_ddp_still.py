"""Which gradients DDP has no part in, from when on, and when they are reduced."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from recoverrun.hooks.session import Session
from recoverrun.hooks.strategies.ddp_buckets import Gradients
from recoverrun.hooks.strategies.ddp_still import Arrivals, Still

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
    """A session at the step and microbatch that a test wants."""

    def __init__(self) -> None:
        self.step = 1
        self.microbatch = 0

    def begin(self, step: int) -> None:
        self.step, self.microbatch = step, 0


def looked(module: Any, *parts: Gradients) -> tuple[Still, Steps]:
    """After the backward of step 1, in which DDP has filled these buckets."""
    steps = Steps()
    still = Still(cast("Session", steps))
    for count in range(1, len(parts) + 1):
        still.look(module, Bucket(last=count == len(parts)), parts[:count])
    steps.microbatch = 1
    return still, steps


def test_ddp_keeps_still_from_the_step_that_follows() -> None:
    first, second = part(1, 2), part(3)
    still, steps = looked(ddp(), first, second)

    assert still.due() == []
    steps.microbatch = 0  # it begins again: others may have reduced the first bucket already
    assert still.due() == []
    steps.begin(2)
    assert still.due() == [first, second]
    steps.microbatch = 1
    assert still.due() == []


def test_it_begins_to_only_once() -> None:
    still, steps = looked(ddp(), part(1), part(1))
    steps.begin(2)
    still.gradients = [part(1)]

    assert still.due() == []


@pytest.mark.parametrize(
    ("module", "parts", "reduced"),
    [
        pytest.param(ddp(), (part(600), part(424)), "as one", id="they just fit"),
        pytest.param(ddp(), (part(600), part(425)), "as they arrive", id="they do not fit"),
        pytest.param(ddp(), (part(5000),), "as one", id="one that is large is one"),
        pytest.param(ddp(_has_rebuilt_buckets=False), (part(1),), "by DDP", id="not settled"),
        pytest.param(
            ddp(_has_rebuilt_buckets=False, find_unused_parameters=True),
            (part(1, counts=True), part(1, counts=True)),
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
    """A session whose next backward may be a step's last one, and what is offered in it."""

    def __init__(self) -> None:
        self.generation = 3
        self.acting = False
        self.offers: list[tuple[int, int]] = []  # which bucket, in which generation
        self.reached = 0
        self.runtime = SimpleNamespace(active=True)
        self.faults = SimpleNamespace(armed=False)
        self.reducer = self

    def last_in_sight(self) -> int:
        return self.generation

    def backward_reaches_bucket(self) -> None:
        self.reached += 1

    def offer(self, key: tuple[int, ...], generation: int) -> None:
        self.offers.append((self.keys.index(key), generation))

    def serves(self, *parts: Gradients) -> Arrivals:
        buckets = {tuple(map(id, one.params)): one for one in parts}
        self.keys = list(buckets)
        return Arrivals(cast("Session", self), buckets)


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
    first.params[0].sum().backward()
    assert session.offers == [(1, 3), (0, 3)]


def test_each_backward_is_counted_anew() -> None:
    session, one = Reduced(), part(1, 1)
    arrivals = session.serves(one)

    for _ in range(2):
        arrivals.begin(synced=True)
        backward(one)

    assert session.offers == [(0, 3)] * 2


@pytest.mark.parametrize(
    "synced",
    [pytest.param(True, id="not the last microbatch"), pytest.param(False, id="no_sync")],
)
def test_gradients_that_are_not_final_are_not_offered(synced: bool) -> None:
    session, one = Reduced(), part(1)
    session.generation = 3 * (not synced)
    session.serves(one).begin(synced)

    backward(one)

    assert session.offers == []


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

    assert session.offers == []


def test_a_second_gradient_in_one_backward_is_an_error_as_it_is_in_ddp() -> None:
    session, one = Reduced(), part(1)
    session.serves(one).begin(synced=True)
    backward(one)

    with pytest.raises(RuntimeError, match="a second gradient in one backward pass"):
        backward(one)


def test_a_second_backward_of_the_microbatch_is_none() -> None:
    session, one = Reduced(), part(1)
    session.serves(one).begin(synced=True)
    backward(one)
    session.generation = 0  # the microbatch is done: it is no longer the one before the last

    backward(one)

    assert one.params[0].grad is not None
    assert one.params[0].grad[0] == 2


def test_a_bucket_is_reached_once_in_a_synced_backward_where_faults_are_armed() -> None:
    session, one = Reduced(), part(1, 1)
    session.generation, session.faults.armed = 0, True
    session.serves(one).begin(synced=True)

    backward(one)

    assert (session.reached, session.offers) == (1, [])
