"""Objects that a script keeps around its loop are put back, in place."""

import collections
import logging
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from recoverrun.worker.context.module_state import untouched
from recoverrun.worker.context.undo_log import LONG, optimizers_rest, schedules_rest, unchanged
from recoverrun.worker.strategies import grad_accumulators


class Own:
    """An object of the script's."""

    made = 0
    every: list[int] = []

    def __init__(self) -> None:
        self.seen = [1]
        self.inner: Any = {"deep": {"n": 1}}
        self.total = torch.zeros(2)


def _names() -> dict[str, Any]:
    return {
        "own": Own(),
        "counts": {"n": 0, "list": []},
        "kinds": collections.Counter("ab"),
        "recent": collections.deque([1, 2], maxlen=2),
        "unique": {1, 2},
        "array": np.zeros(3),
        "total": torch.zeros(3),
        "pair": ([1], {"a": 1}),
        "long": list(range(LONG + 5)),
        "step": 3,
        "Own": Own,
    }


def _told(names: dict[str, Any]) -> str:
    own = names["own"]
    return repr((names, vars(own), Own.made, Own.every))


CHANGES: dict[str, Any] = {
    "dict": lambda n: n["counts"].update(n=5, other=1),
    "nested list": lambda n: n["counts"]["list"].append(1),
    "counter": lambda n: n["kinds"].update("abc"),
    "deque": lambda n: n["recent"].append(3),
    "set": lambda n: n["unique"].discard(1),
    "array": lambda n: n["array"].__iadd__(1),
    "tensor": lambda n: n["total"].add_(1),
    "in a tuple": lambda n: n["pair"][0].append(2),
    "long list": lambda n: n["long"].append(2),
    "variable": lambda n: n.update(step=4),
    "new variable": lambda n: n.update(loss=0.5),
    "attribute": lambda n: vars(n["own"]).update(seen=None),
    "new attribute": lambda n: vars(n["own"]).update(more=1),
    "list of an object": lambda n: n["own"].seen.append(2),
    "deep in an object": lambda n: n["own"].inner["deep"].update(n=2),
    "tensor of an object": lambda n: n["own"].total.add_(1),
    "class": lambda n: setattr(Own, "made", Own.made + 1),
    "list of a class": lambda n: Own.every.append(1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_it_is_as_it_was(change: str) -> None:
    names = _names()
    before, objects = _told(names), dict(names)

    with unchanged([names], [], [], frozenset({__name__})):
        CHANGES[change](names)
        assert _told(names) != before

    assert _told(names) == before
    assert all(names[name] is value for name, value in objects.items())


def test_schedules_and_averages() -> None:
    model, average = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.5))
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    optimizer.step()
    before = average.weight.tolist(), schedule.state_dict()

    with unchanged([{"schedule": schedule}], [model, average], [optimizer], frozenset()):
        schedule.step()
        with torch.no_grad():
            average.weight.add_(1)
        assert float(optimizer.param_groups[0]["lr"]) == 0.25

    assert (average.weight.tolist(), schedule.state_dict()) == before
    assert float(optimizer.param_groups[0]["lr"]) == 0.5


def test_schedules_can_stand_still() -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.5)
    schedules: list[Any] = [
        torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5),
        torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0),
    ]
    optimizer.step()

    with schedules_rest():
        for _ in range(3):
            schedules[0].step()
            schedules[1].step(1.0)
    assert optimizer.param_groups[0]["lr"] == 0.5

    schedules[0].step()
    assert optimizer.param_groups[0]["lr"] == 0.25


def test_schedules_that_are_made_meanwhile_go_on() -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.5)
    optimizer.step()

    with schedules_rest():
        made = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        assert made.get_last_lr() == [0.5]
        optimizer.step()
        made.step()

    assert made.get_last_lr() == [0.25]


def test_output_is_kept_back(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("of the script")
    handler = logging.StreamHandler(sys.stderr)
    logger.addHandler(handler)
    try:
        with unchanged([], [], [], frozenset()):
            print("a batch")
            logger.warning("a batch")
        print("one line")
        logger.warning("another")
    finally:
        logger.removeHandler(handler)

    assert capsys.readouterr() == ("one line\n", "another\n")


class Places(Own):
    """An iterator of the script's."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 0

    def __next__(self) -> int:
        self.at += 1
        return self.at


def test_an_iterator_of_the_script_is_put_back() -> None:
    trainer = Own()
    trainer.inner = Places()

    with unchanged([{"trainer": trainer}], [], [], frozenset({__name__})):
        assert next(trainer.inner) == 1

    assert next(trainer.inner) == 1


def test_an_error_leaves_it_as_it_was() -> None:
    names: dict[str, Any] = {"counts": {"n": 0}}

    with pytest.raises(ValueError, match="bad"):
        with unchanged([names], [], [], frozenset()):
            names["counts"]["n"] = 1
            raise ValueError("bad")

    assert names == {"counts": {"n": 0}}


def test_gradients_in_variables_of_the_script_are_none_of_what_is_made_up() -> None:
    model = nn.Linear(3, 2)
    model(torch.ones(1, 3)).sum().backward()
    own, params = model.weight.grad, list(model.parameters())
    assert own is not None
    names = {"gradients": [own], "flat": own.view(-1)}

    kept = grad_accumulators.set_aside(params)
    with unchanged([names], [model], [torch.optim.SGD(params)], frozenset()):
        model(torch.full((1, 3), 5.0)).sum().backward()
        own.mul_(3)
    made_up = model.weight.grad
    grad_accumulators.put_back(params, kept)

    assert made_up is not None and made_up.tolist() == [[5.0] * 3] * 2
    assert model.weight.grad is own and own.tolist() == [[1.0] * 3] * 2


class Sam(torch.optim.SGD):
    """An optimizer with steps of other names, as scripts write them."""

    stepped: list[str] = []

    def first_step(self) -> None:
        self.stepped.append("first")

    def second_step(self) -> None:
        self.stepped.append("second")


def test_updates_that_were_made_are_not_made_again() -> None:
    weight = nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    optimizer = Sam([weight], lr=0.5)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)  # it wraps `step`

    with optimizers_rest([optimizer]):
        optimizer.step()
        optimizer.first_step()
        optimizer.second_step()

    assert weight.item() == 1.0 and not Sam.stepped
    optimizer.step()
    optimizer.first_step()
    schedule.step()
    assert weight.item() == 0.5 and Sam.stepped == ["first"]


@pytest.mark.parametrize("named", [False, True])
def test_the_closure_of_an_update_runs(named: bool) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.5)

    with optimizers_rest([optimizer]):
        loss: Any = optimizer.step(closure=lambda: 3) if named else optimizer.step(lambda: 3)

    assert loss == 3


def test_a_closure_is_called_as_often_as_an_update_may_call_it() -> None:
    """The backward that is looked for may be that of any of its calls."""
    optimizer = torch.optim.LBFGS([nn.Parameter(torch.ones(1))], max_eval=3)
    calls: list[int] = []

    with optimizers_rest([optimizer]):
        optimizer.step(lambda: calls.append(len(calls)))  # type: ignore[arg-type, return-value]

    assert calls == [0, 1, 2]


def test_updates_are_made_again_after_an_error() -> None:
    weight = nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    optimizer = torch.optim.SGD([weight], lr=0.5)

    with pytest.raises(ValueError, match="bad"):
        with optimizers_rest([optimizer]):
            raise ValueError("bad")
    optimizer.step()

    assert float(weight) == 0.5 and "step" not in vars(optimizer)


def test_output_that_is_kept_back_still_has_a_file() -> None:
    with unchanged([], [], [], frozenset()):
        kept = sys.stdout
        assert not kept.isatty() and kept.fileno() >= 0
        kept.buffer.write(b"a batch\n")

    kept.write("who takes hold of it may keep it\n")


def test_what_was_made_for_inference_alone_is_left_alone() -> None:
    with torch.inference_mode():
        teacher = nn.BatchNorm1d(2)
    names = {"teacher": teacher, "seen": teacher.running_mean}

    with unchanged([names], [teacher], [], frozenset()), untouched([teacher], []):
        with torch.inference_mode():
            teacher(torch.randn(4, 2))
