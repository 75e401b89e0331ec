"""A packed state that is kept is the one that packing it again would give."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from recoverrun.worker.arrival.packing import Packing
from recoverrun.worker.snapshots.packed_states import PackedStates

State = dict[Any, Any]


def state() -> State:
    names = ("step", "exp_avg", "exp_avg_sq")
    return {number: {name: torch.zeros(3) for name in names} for number in range(4)}


def packed_anew(value: object, before: list[torch.Tensor]) -> tuple[Any, ...]:
    packing = Packing([])
    packing.pack(before)
    return packing.pack(value, "adam"), list(map(id, packing.tensors)), packing.names


def packed(states: PackedStates, value: object, before: list[torch.Tensor]) -> tuple[Any, ...]:
    packing = Packing([])
    packing.pack(before)
    plain = states.pack(packing, value, "adam")
    follows = packing.pack(torch.zeros(1))
    number = len(packing.tensors) - 1
    assert follows == {"tensor": [number, False]}
    return plain, list(map(id, packing.tensors))[:number], packing.names[:number]


def test_a_state_that_rests_is_not_packed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    states, value, before = PackedStates(), state(), [torch.zeros(2)]
    first = packed(states, value, before)
    torch._foreach_add_([value[0]["exp_avg"]], 1.0)
    seen: list[str] = []
    usual = Packing.pack
    monkeypatch.setattr(
        Packing,
        "pack",
        lambda self, one, name="value": (seen.append(name), usual(self, one, name))[1],
    )

    second = packed(states, dict(value), before)

    assert second == first == packed_anew(value, before)
    assert seen.count("adam") == 1  # by `packed_anew`


def swap(value: State) -> None:
    value[0]["step"], value[1]["step"] = value[1]["step"], value[0]["step"]


def rename(value: State) -> None:
    value[9] = value.pop(3)


def regroup(value: State) -> None:
    value[2]["more"] = value[3].pop("step")


def twice(value: State) -> None:
    value[3]["exp_avg"] = value[0]["exp_avg"]


@pytest.mark.parametrize(
    "change",
    [
        swap,
        rename,
        regroup,
        twice,
        pytest.param(lambda value: value[1].update(step=torch.zeros(3)), id="another tensor"),
        pytest.param(lambda value: value[1].update(step=7), id="a number"),
        pytest.param(lambda value: value[1].clear(), id="fewer"),
        pytest.param(lambda value: value[1]["step"].requires_grad_(), id="a gradient"),
    ],
)
def test_one_that_changed_is_packed_anew(change: Callable[[State], object]) -> None:
    states, value = PackedStates(), state()
    packed(states, value, [])

    change(value)

    for _ in range(2):
        assert packed(states, value, []) == packed_anew(value, [])


def test_other_numbers_and_tensors_that_were_met_before_are_seen() -> None:
    states, value = PackedStates(), state()
    packed(states, value, [])

    for before in ([torch.zeros(1)], [value[2]["step"]], [torch.zeros(1)]):
        assert packed(states, value, before) == packed_anew(value, before)


def test_a_tensor_whose_memory_is_gone_is_refused_as_ever() -> None:
    states, value = PackedStates(), state()
    packed(states, value, [])
    value[0]["step"].untyped_storage().resize_(0)

    with pytest.raises(Exception, match="without memory"):
        packed(states, value, [])


def test_a_state_that_the_script_drops_is_not_kept() -> None:
    states, value = PackedStates(), state()
    packed(states, value, [])
    ref = weakref.ref(value[0]["exp_avg"])

    value.clear()

    assert ref() is None
