"""Layers that hold what they held are passed over, and nothing that has changed is missed by it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from recoverrun.worker.arrival import loose_values, lost_entries, plain_values
from recoverrun.worker.arrival.packing import Packing
from recoverrun.worker.context.object_graph import Holdings, Resting, holdings
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.snapshots.references import References
from recoverrun.worker.snapshots.resting_modules import RestingModules

OWN = frozenset({__name__})


class Script:
    """One that has run its first lines; `before` is as it began to train."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.BatchNorm1d(2), nn.ReLU())
        self.layer: Any = self.model[0]
        self.layer.steps, self.layer.rate = 0, 0.5
        there = self.there()
        self.digests = plain_values.digests(there, of_process=True)
        self.keys, self.marks = lost_entries.keys_of(there), loose_values.marks(there, [])
        self.references = References(there, [], OWN)
        self.resting = RestingModules(there.modules)

    def there(self, resting: Resting | None = None) -> Holdings:
        variables = [{"model": self.model}]
        return holdings(variables, OWN, idle_hooks=False, resting=resting)

    def told(self, resting: Resting | None = None) -> Any:
        """All that is told of what has changed."""
        there, whole, packing = self.there(resting), set[str](), Packing([])
        values = plain_values.changed(there, self.digests, of_process=True, whole=whole)
        said: list[Any] = [(one.place, one.packed, one.holder) for one in values]
        said.append(lost_entries.told(there, self.keys))
        said.append(loose_values.told(there, [], self.marks, frozenset(), packing, whole=whole))
        try:
            said.append(self.references.told(there, [], [], packing))
        except NotReachable as why:
            said.append(str(why))
        return said, [path for path, _ in there.modules]


def double(module: nn.Module, *_: Any) -> None:
    """As a hook of the script's."""


CHANGES: list[Callable[[Script], Any]] = [
    lambda one: None,
    lambda one: setattr(one.layer, "steps", 7),
    lambda one: setattr(one.layer, "rate", -0.0),
    lambda one: setattr(one.layer, "late", [1]),
    lambda one: setattr(one.layer, "late", {"a": {"b": 1}}),
    lambda one: setattr(one.layer, "activation", torch.tanh),
    lambda one: setattr(one.layer, "activation", double),
    lambda one: setattr(one.layer, "mean", torch.zeros(3)),
    lambda one: setattr(one.layer, "mean", torch.zeros(3000)),
    lambda one: setattr(one.layer, "weight", nn.Parameter(torch.ones(2, 2))),
    lambda one: setattr(one.layer, "inner", nn.Linear(1, 1)),
    lambda one: delattr(one.layer, "steps"),
    lambda one: delattr(one.layer, "bias"),
    lambda one: one.model.eval(),
    lambda one: one.layer.requires_grad_(False),
    lambda one: one.layer.register_buffer("mean", torch.zeros(3)),
    lambda one: one.layer.register_forward_hook(double),
    lambda one: one.layer.weight.register_hook(double),
    lambda one: setattr(one.layer.weight, "average", torch.zeros(3)),
    lambda one: setattr(one.layer.weight, "average", torch.zeros(3000)),
    lambda one: setattr(one.layer.weight, "seen", 1),
    lambda one: one.model.insert(0, nn.Linear(2, 2)),
    lambda one: one.model.__setitem__(0, one.model[3]),
]


@pytest.mark.parametrize("change", CHANGES)
def test_the_same_is_told_as_if_everything_was_looked_at(change: Callable[[Script], Any]) -> None:
    script = Script()

    change(script)

    assert script.told(script.resting.size) == script.told()


def test_a_walk_passes_over_layers_that_rest_and_ends_where_another_does() -> None:
    script = Script()
    paths = {path for path, _ in script.there(script.resting.size).held}
    norm, relu = script.model[1], script.model[3]

    assert not any("['0']" in path for path in paths) and any("['2']" in path for path in paths)
    assert script.resting.size("model.vars._modules['0']", script.layer) == 7
    assert script.resting.size("model.vars._modules['1']", norm) == 8  # and its shape
    assert script.resting.size("model.vars._modules['3']", relu) == 5
    assert script.resting.size("elsewhere", script.layer) == 0


def test_what_another_process_has_had_otherwise_does_not_rest() -> None:
    script = Script()
    path = "model.vars._modules['0']"

    rest = script.resting.but_for({f"{path}.vars"})

    assert rest.size(path, script.layer) == 0
    assert rest.size("model.vars._modules['3']", script.model[3]) == 5


def test_a_layer_that_is_gone_is_no_other_one() -> None:
    script = Script()
    weight = script.layer.weight
    script.layer.weight = nn.Parameter(weight.detach().clone())

    assert script.resting.size("model.vars._modules['0']", script.layer) == 0
    script.layer.weight = weight
    assert script.resting.size("model.vars._modules['0']", script.layer) == 7
