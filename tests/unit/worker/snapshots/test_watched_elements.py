"""Changes of parameters are seen without looking at all of them, and without waiting."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import SGD

from recoverrun.worker.snapshots import watched_elements
from recoverrun.worker.snapshots.watched_elements import WATCHED, WatchedElements


def parameters(*sizes: int) -> list[torch.Tensor]:
    return [torch.ones(size, requires_grad=True) for size in sizes]


def test_a_change_of_the_smallest_is_seen_once() -> None:
    params = parameters(0, 5, 3)
    optimizers, elements = [SGD(params)], WatchedElements()
    assert not elements.changes(optimizers) and not elements.changes(optimizers)

    params[2].data[0] = 4.0

    assert elements.changes(optimizers) == 1
    assert not elements.changes(optimizers)


def test_parameters_are_chosen_once_and_anew_where_they_are_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen: list[int] = []
    choose: Callable[..., Any] = watched_elements.nsmallest

    def counted(number: int, pairs: Any) -> Any:
        chosen.append(number)
        return choose(number, pairs)

    monkeypatch.setattr(watched_elements, "nsmallest", counted)
    params = parameters(*range(2, 8))
    optimizers, elements = [SGD(params)], WatchedElements()
    for _ in range(5):
        elements.changes(optimizers)
        elements.forget()
    assert chosen == [WATCHED]

    params[0].requires_grad_(False)
    elements.changes(optimizers)
    optimizers[0].add_param_group({"params": parameters(1)})
    elements.changes(optimizers)
    assert len(chosen) == 3
    optimizers[0].param_groups[1]["params"][0].data.zero_()

    assert elements.changes(optimizers) == 1


def test_what_was_changed_before_an_update_is_none() -> None:
    params = parameters(3)
    optimizers, elements = [SGD(params)], WatchedElements()
    elements.changes(optimizers)
    params[0].data[0] = 4.0
    elements.forget()

    assert not elements.changes(optimizers)
