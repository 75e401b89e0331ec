"""When all of DDP's gradients are one bucket, and from when on."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from recoverrun.hooks.session import Session
from recoverrun.hooks.strategies.ddp_buckets import Gradients
from recoverrun.hooks.strategies.ddp_whole import Whole

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


def looked(module: Any, *parts: Gradients) -> tuple[Whole, Steps]:
    """After the backward of step 1, in which DDP has filled these buckets."""
    steps = Steps()
    whole = Whole(cast("Session", steps))
    for count in range(1, len(parts) + 1):
        whole.look(module, Bucket(last=count == len(parts)), parts[:count])
    steps.microbatch = 1
    return whole, steps


def test_gradients_become_one_with_the_step_that_follows() -> None:
    first, second = part(1, 2), part(3)
    whole, steps = looked(ddp(), first, second)

    assert whole.due() == []
    steps.microbatch = 0  # it begins again: others may have reduced the first bucket already
    assert whole.due() == []
    steps.begin(2)
    assert list(map(id, whole.due())) == list(map(id, [*first.params, *second.params]))
    steps.microbatch = 1
    assert whole.due() == []


def test_they_become_one_only_once() -> None:
    whole, steps = looked(ddp(), part(1), part(1))
    steps.begin(2)
    whole.gradients = part(1)

    assert whole.due() == []


@pytest.mark.parametrize(
    ("module", "parts", "one"),
    [
        pytest.param(ddp(), (part(600), part(424)), True, id="they just fit"),
        pytest.param(ddp(), (part(600), part(425)), False, id="they do not fit"),
        pytest.param(ddp(), (part(5000),), True, id="one that is large is one"),
        pytest.param(ddp(_has_rebuilt_buckets=False), (part(1),), False, id="not settled"),
        pytest.param(
            ddp(_has_rebuilt_buckets=False, find_unused_parameters=True),
            (part(1), part(1)),
            True,
            id="never divided anew",
        ),
        pytest.param(
            ddp(_has_rebuilt_buckets=False, find_unused_parameters=True, static_graph=True),
            (part(1), part(1)),
            False,
            id="static graphs are",
        ),
        pytest.param(ddp(gradient_as_bucket_view=True), (part(1),), False, id="DDP's memory"),
        pytest.param(ddp(mixed_precision=object()), (part(1),), False, id="DDP casts"),
        pytest.param(ddp(_delay_all_reduce_params=[object()]), (part(1),), False, id="delayed"),
        pytest.param(ddp(), (part(1), part(1, dtype=torch.float64)), False, id="of two types"),
    ],
)
def test_which_gradients_become_one(module: Any, parts: tuple[Gradients, ...], one: bool) -> None:
    whole, steps = looked(module, *parts)
    steps.begin(2)

    assert bool(whole.due()) == one


@pytest.mark.parametrize(("counts", "served"), [(False, False), (True, True)])
def test_ddp_sees_for_itself_that_a_gradient_is_lacking(counts: bool, served: bool) -> None:
    whole, _ = looked(ddp(), part(1))
    whole.gradients = part(1, 1, counts=counts)
    assert whole.serves(ddp())

    whole.gradients.params[0].grad = torch.ones(256)
    whole.gradients.fill(torch.empty(whole.gradients.size))

    assert whole.gradients.lacking
    assert whole.serves(ddp()) == served


def test_in_a_join_context_ddp_reduces_by_itself() -> None:
    whole, _ = looked(ddp(), part(1))
    whole.gradients = part(1)

    assert not whole.serves(ddp(_join_config=SimpleNamespace(enable=True)))
