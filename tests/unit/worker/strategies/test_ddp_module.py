"""A process that comes later divides gradients as those do that have seen DDP's first steps."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from recoverrun.worker.errors import NotReachable
from recoverrun.worker.step.interfaces import StrategyHost
from recoverrun.worker.strategies.ddp_module import DdpModule
from tests.unit.strategy_hosts import Host


class Ddp(nn.Module):
    """A stand-in with what `DdpModule` looks at."""

    def __init__(self, **different: Any) -> None:
        super().__init__()
        self.module = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
        usual = {
            "find_unused_parameters": False, "static_graph": False, "mixed_precision": None,
            "gradient_as_bucket_view": False, "_delay_all_reduce_params": [],
            "require_forward_param_sync": True, "_has_rebuilt_buckets": False,
            "bucket_bytes_cap": 1, "_static_graph_delay_allreduce_enqueued": False,
            "_join_config": SimpleNamespace(enable=False),
            "process_group": SimpleNamespace(size=lambda: 2),
        }  # fmt: skip
        for name, value in {**usual, **different}.items():
            object.__setattr__(self, name, value)
        self.__dict__["_module_parameters"] = list(self.module.parameters())


class Filled:
    """A bucket of DDP's, which holds these parameters."""

    def __init__(self, number: int, last: bool, params: list[Any]) -> None:
        self._number, self._last, self._params = number, last, params

    def index(self) -> int:
        return self._number

    def is_last(self) -> bool:
        return self._last

    def parameters(self) -> list[Any]:
        return self._params

    def buffer(self) -> torch.Tensor:
        return torch.zeros(sum(param.numel() for param in self._params))


class Native(Filled):
    """A bucket that DDP reduces: each gradient lies there in the order of its memory."""

    def __init__(self, params: list[Any]) -> None:
        super().__init__(0, True, params)
        self._memory = torch.cat([one.grad.as_strided((one.numel(),), (1,)) for one in params])

    def buffer(self) -> torch.Tensor:
        return self._memory

    def gradients(self) -> list[torch.Tensor]:
        parts = self._memory.split([param.numel() for param in self._params])
        return [part.view(param.shape) for part, param in zip(parts, self._params, strict=True)]


def survivor(module: Ddp) -> tuple[DdpModule, Host]:
    """DDP has reduced its buckets: the last parameters first."""
    host = Host()
    wrapped = DdpModule(cast("StrategyHost", host), cast("Any", module))
    wrapped.reducer = cast("Any", host.reducer)
    wrapped.begin()
    params = wrapped.params
    halves = params[3:], params[:3]
    for number, held in enumerate(halves):
        bucket: Any = Filled(number, number == 1, list(held))
        wrapped.reduce(None, bucket)
    return wrapped, host


FEATURES = (
    {"gradient_as_bucket_view": True},
    {"gradient_as_bucket_view": True, "bucket_bytes_cap": 1 << 20},
    {"find_unused_parameters": True},
    {"static_graph": True},
    {"static_graph": True, "bucket_bytes_cap": 1 << 20},
)


@pytest.mark.parametrize("features", FEATURES)
def test_both_sides_leave_ddp_out_and_divide_alike(features: dict[str, Any]) -> None:
    there, theirs = survivor(module := Ddp(**features))
    assert not there.still, "DDP has a part in it as long as nobody has come back"
    plan = there.plan()
    assert isinstance(plan, list)

    there.admit()
    fresh, host = Ddp(**features), Host()
    here = DdpModule(cast("StrategyHost", host), cast("Any", fresh))
    here.reducer = cast("Any", host.reducer)
    here.adopt(plan)

    assert host.reducer.sizes == theirs.reducer.sizes
    for wrapped in (there, here):
        wrapped.arm(synced=True)
        assert wrapped.still, "DDP keeps still from this forward on"
    places = {id(param): place for place, param in enumerate(module.parameters())}
    own = {id(param): place for place, param in enumerate(fresh.parameters())}
    assert [[places[one] for one in key] for key in theirs.reducer.buckets] == [
        [own[one] for one in key] for key in host.reducer.buckets
    ]


def test_a_static_graph_is_not_looked_for_again() -> None:
    module = Ddp(static_graph=True)
    there, _ = survivor(module)
    fresh, host = Ddp(static_graph=True), Host()
    here = DdpModule(cast("StrategyHost", host), cast("Any", fresh))
    here.reducer = cast("Any", host.reducer)

    plan = there.plan()
    assert isinstance(plan, list)
    here.adopt(plan)

    assert fresh._static_graph_delay_allreduce_enqueued


def test_a_model_that_was_not_trained_yet_is_left_to_ddp() -> None:
    host = Host()
    module = Ddp()
    wrapped = DdpModule(cast("StrategyHost", host), cast("Any", module))
    wrapped.reducer = cast("Any", host.reducer)

    wrapped.admit()
    plan = wrapped.plan()
    assert isinstance(plan, list)
    wrapped.adopt(plan)
    wrapped.arm(synced=True)

    assert not host.reducer.buckets
    assert not wrapped.still


def test_a_model_that_others_hold_and_this_process_has_dropped_is_another_way() -> None:
    module = Ddp()
    there, _ = survivor(module)
    plan = there.plan()
    assert isinstance(plan, list)
    here = DdpModule(cast("StrategyHost", Host()), cast("Any", Ddp()))

    with pytest.raises(NotReachable):
        here.adopt(plan)


def test_a_process_that_trains_other_parameters_of_the_model_is_on_another_way() -> None:
    module = Ddp()
    there, _ = survivor(module)
    plan = there.plan()
    assert isinstance(plan, list)
    fresh, host = Ddp(), Host()
    fresh.module[0].requires_grad_(False)
    here = DdpModule(cast("StrategyHost", host), cast("Any", fresh))
    here.reducer = cast("Any", host.reducer)

    with pytest.raises(NotReachable, match="DDP trains 4 parameters .* 6 in others"):
        here.adopt(plan)

    assert not host.reducer.buckets


def test_a_model_that_the_script_has_frozen_for_a_while_is_divided_as_before() -> None:
    module = Ddp()
    there, _ = survivor(module)
    before = there.plan()

    module.requires_grad_(False)  # as a GAN does with one of its models in each step
    there.begin()

    assert there.plan() == before


def test_ddp_that_casts_has_to_have_a_part_in_it() -> None:
    module = Ddp(mixed_precision=object())
    there, _ = survivor(module)

    assert str(there.plan()).startswith("DDP trains in mixed precision")


def test_parameters_are_told_that_a_model_shows_only_until_its_forward() -> None:
    module = Ddp()
    wrapped = DdpModule(cast("StrategyHost", Host()), cast("Any", module))
    before = wrapped.named()
    held = module.module[0].weight

    del module.module[0].weight
    module.module[0].weight = held.detach().clone()  # as tensor parallelism does within DDP

    assert list(wrapped.named()) == list(before)
    assert wrapped.named()["0.weight"].data_ptr() == held.data_ptr()


def test_the_digest_before_torch_reduces_is_that_of_the_gradients_themselves() -> None:
    """Also of those that do not lie row by row: DDP shows them as if they did."""

    def allreduce(tensors: list[torch.Tensor]) -> Any:
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result(tensors)
        return SimpleNamespace(get_future=lambda: future)

    module = Ddp(process_group=SimpleNamespace(size=lambda: 2, allreduce=allreduce))
    weight = module.module[0].weight
    weight.data = weight.detach().t().contiguous().t()
    wrapped = DdpModule(cast("StrategyHost", Host()), cast("Any", module))
    wrapped.begin()
    for number, param in enumerate(wrapped.params):
        param.grad = torch.arange(float(param.numel())).view(param.shape) + number
        param.grad = torch.empty_like(param).copy_(param.grad)
    own = wrapped.digest()

    bucket: Any = Native(wrapped.params)
    wrapped.reduce(None, bucket)

    assert wrapped.own == own
