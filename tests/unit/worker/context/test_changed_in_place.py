"""Content of modules that code changes in place becomes attached state, as it was before."""

from collections import Counter, OrderedDict, deque
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from recoverrun.worker.context.attached_state import FEW, Attached, is_light, noted
from recoverrun.worker.context.changed_in_place import OFTEN, SELDOM, ChangedInPlace
from recoverrun.worker.context.module_state import TORCHS

Reports = list[tuple[str, Any]]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen = {"rows": 0, "losses": [1.0]}
        self.mean = torch.zeros(2)
        self.kinds = {1, 2}
        self.rest = [3]
        self.late = deque([1], maxlen=3)


@pytest.fixture
def reports() -> Reports:
    return []


def watching(net: nn.Module, reports: Reports) -> ChangedInPlace:
    watched = ChangedInPlace(lambda _, name, before: reports.append((name, before)))
    watched.watch([net], TORCHS)
    return watched


def test_what_has_changed_is_told_once_with_what_it_held(reports: Reports) -> None:
    net = Net()
    watched = watching(net, reports)

    net.seen["losses"].append(2.0)  # type: ignore[attr-defined]
    net.mean += 1
    net.kinds.add(3)
    net.late.append(2)
    watched.look()
    watched.look()

    assert [name for name, _ in reports] == ["seen", "mean", "kinds", "late"]
    held = dict(reports)
    assert held["seen"] == {"rows": 0, "losses": [1.0]}
    assert held["mean"].tolist() == [0.0, 0.0] and held["kinds"] == {1, 2}
    assert held["late"] == deque([1], maxlen=3)


def test_another_value_is_a_write_and_no_change(reports: Reports) -> None:
    net = Net()
    watched = watching(net, reports)

    net.seen, net.rest = None, [3]  # type: ignore[assignment]
    watched.look()

    assert reports == []


def test_a_module_that_is_gone_is_passed_over(reports: Reports) -> None:
    net = Net()
    watched = watching(net, reports)
    del net

    watched.look()

    assert reports == []


def test_long_training_is_looked_at_seldom(reports: Reports) -> None:
    net = Net()
    watched = watching(net, reports)
    for _ in range(OFTEN):
        watched.look()

    net.rest.append(1)
    watched.look()
    assert reports == []

    for _ in range(SELDOM):
        watched.look()
    assert reports == [("rest", [3])]


@pytest.mark.parametrize(
    "heavy",
    [
        [0] * (FEW + 1),
        torch.zeros(1, requires_grad=True),
        torch.zeros(1 << 12),
        {(1, 2): 3},
        [object()],
        [[[[[1]]]]],
    ],
)
def test_results_objects_and_much_are_not_kept(heavy: Any) -> None:
    assert not is_light(heavy)


@pytest.mark.parametrize("kind", [dict, OrderedDict, Counter])
def test_a_copy_is_of_the_same_kind_and_shares_nothing(kind: Any) -> None:
    value = kind(a=[1, {2}])

    copy = noted(value)
    value["a"][1].add(3)

    assert type(copy) is kind and copy == {"a": [1, {2}]}


def test_a_write_tells_what_was_there_before_code_changed_that_in_place() -> None:
    """`self.rest.append(x); self.rest = self.rest[-8:]`."""
    net, attached = Net(), Attached()
    watched = ChangedInPlace(attached.write)
    watched.watch([net], TORCHS)
    attached.ask(watched.before)

    net.rest.append(4)
    attached.write(net, "rest", net.rest)

    assert [before for _, _, before in attached.first_writes] == [[3]]


def test_a_mode_of_the_script_sees_nothing_of_the_looks(reports: Reports) -> None:
    class Counting(TorchFunctionMode):
        calls = 0

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            Counting.calls += 1
            return func(*args, **(kwargs or {}))

    net = Net()
    with Counting():
        watched = watching(net, reports)
        watched.look()

    assert Counting.calls == 0
