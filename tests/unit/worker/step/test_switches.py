"""Code that is executed again finds all switched as it was when its iteration began."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ft_collectives.communicators import script_modes
from recoverrun.worker.step import switches
from recoverrun.worker.step.interfaces import StrategyHost
from recoverrun.worker.strategies.ddp import Ddp
from recoverrun.worker.strategies.ddp_module import DdpModule
from recoverrun.worker.strategies.fsdp1 import Fsdp1
from recoverrun.worker.strategies.fsdp2 import Fsdp2
from tests.unit.strategy_hosts import Host


def casting() -> tuple[bool, torch.dtype]:
    return torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")


def test_a_block_of_autocast_around_a_backward_is_left_for_code_before_it() -> None:
    then = switches.now(None)

    with torch.autocast("cpu", torch.float16):
        with switches.as_at(then):
            within = casting()
        after = casting()

    assert not within[0]
    assert after == (True, torch.float16)


def test_code_that_began_in_a_block_of_autocast_is_executed_in_one() -> None:
    with torch.autocast("cpu", torch.float16):
        then = switches.now(None)

    with switches.as_at(then):
        within = casting()

    assert within == (True, torch.float16)
    assert not casting()[0]


class Asked(TorchFunctionMode):
    """Notes all that torch is asked."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.names.append(function.__name__)
        return function(*args, **(kwargs or {}))


def test_code_that_began_outside_of_a_mode_is_not_in_it() -> None:
    then = switches.now(None)

    with Asked() as inner:
        with switches.as_at(then):
            torch.ones(1)
        assert inner.names == []
        torch.zeros(1)

    assert inner.names == ["zeros"]


def test_code_that_began_in_a_mode_is_in_it_again() -> None:
    with Asked() as outer:
        then = script_modes.aside(switches.now)(None)
        with script_modes.aside(switches.as_at)(then):
            torch.ones(1)

    assert outer.names == ["ones"]


class Served:
    """A model that has one switch."""

    def __init__(self) -> None:
        self.on = True

    def switches(self) -> Callable[[], AbstractContextManager[None]]:
        return partial(self._switched, self.on)

    @contextmanager
    def _switched(self, on: bool) -> Iterator[None]:
        self.on, kept = on, self.on
        yield
        self.on = kept


def test_what_a_strategy_knows_is_switched_with_it() -> None:
    served: Any = Served()
    then = switches.now(served)
    served.on = False

    with switches.as_at(then):
        assert served.on

    assert not served.on


def test_a_model_that_is_served_since_is_left_as_it_is() -> None:
    served: Any = Served()
    served.on = False

    with switches.as_at(switches.now(None)):
        assert not served.on


def ddp(*outside: bool) -> tuple[Ddp, list[Any]]:
    """Modules in DDP, outside of `no_sync` or within."""
    strategy = Ddp(cast("StrategyHost", Host()))
    modules = []
    for synced in outside:
        module: Any = nn.Sequential(nn.Linear(2, 2))
        module.module, module._module_parameters = nn.Linear(2, 2), []
        module.require_backward_grad_sync, module.process_group = synced, None
        modules.append(module)
        strategy._modules.append(DdpModule(cast("StrategyHost", Host()), module))
    return strategy, modules


def test_no_sync_around_the_backward_alone_says_nothing_of_the_forward() -> None:
    strategy, modules = ddp(True, False)
    then = strategy.switches()
    modules[0].require_backward_grad_sync = False  # the script's block
    modules[1].require_backward_grad_sync = True

    with then():
        within = [one.require_backward_grad_sync for one in modules]

    assert within == [True, False]
    assert [one.require_backward_grad_sync for one in modules] == [False, True]


@pytest.mark.parametrize("outside", [True, False])
def test_a_block_of_fsdp1_around_the_loop_holds_for_executed_code(outside: bool) -> None:
    strategy = Fsdp1(cast("StrategyHost", Host()))
    strategy._module = SimpleNamespace(_sync_gradients=outside, modules=list)
    then = strategy.switches()
    strategy._module._sync_gradients = True

    with then():
        assert strategy._held_back == (0 if outside else 1)

    assert strategy._held_back == 0


class Handle:
    """Of a flat parameter of FSDP1."""

    def __init__(self, whole: bool) -> None:
        self.whole = whole

    def needs_unshard(self) -> bool:
        return not self.whole

    def reshard(self, free: bool) -> None:
        assert free
        self.whole = False


@pytest.mark.parametrize("fails", [False, True])
def test_flat_parameters_of_fsdp1_are_left_sharded_where_they_were(fails: bool) -> None:
    strategy, handles = Fsdp1(cast("StrategyHost", Host())), [Handle(False), Handle(True)]
    modules = [SimpleNamespace(_handle=one) for one in handles]
    strategy._module = SimpleNamespace(_sync_gradients=True, modules=lambda: modules)
    then = strategy.switches()

    with suppress(ArithmeticError), then():
        handles[0].whole = True  # by a forward
        if fails:
            raise ArithmeticError

    assert [one.whole for one in handles] == [False, True]


def test_groups_of_fsdp2_are_switched_as_they_were() -> None:
    class Group:
        reduce_grads = all_reduce_grads = is_sharded = False

    strategy, group = Fsdp2(cast("StrategyHost", Host())), Group()
    strategy._groups.add(group)
    then = strategy.switches()
    group.reduce_grads = group.all_reduce_grads = True

    with then():
        assert not group.reduce_grads and not group.all_reduce_grads

    assert group.reduce_grads and group.all_reduce_grads
