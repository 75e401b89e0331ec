"""A newcomer holds what survivors hold, in the same structure, or does not take part."""

import functools
import itertools
from collections import OrderedDict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from recoverrun.worker.context.passed_over import PassedOver
from recoverrun.worker.errors import NotReachable
from tests.unit.newcomers import Script, Variables, arrives, own_module

SCRIPT = own_module(
    "structured_script",
    """
class Meter:
    def __init__(self, count=0.0):
        self.count = count
class Sampler:
    def __init__(self):
        self.draw = lambda: 1
def first(): ...
def second(): ...
""",
)
OWN = frozenset({SCRIPT.__name__})

Change = Callable[[Variables], Any]


def meters(*counts: float) -> list[Any]:
    return [SCRIPT.Meter(one) for one in counts]


@pytest.mark.parametrize(
    ("make", "change", "read"),
    [
        (lambda: {"a": 1, "b": 2}, lambda one: one.pop("a"), dict),
        (lambda: {"a": [1], "b": [2]}, lambda one: one.pop("a"), dict),
        (lambda: {"a": 1, "b": 2}, lambda one: one.update(a=one.pop("a")), list),
        (lambda: OrderedDict(a=1, b=2), lambda one: one.move_to_end("a"), list),
        (lambda: {"act": torch.relu}, lambda one: one.update(act=torch.tanh), dict),
        (lambda: {"act": SCRIPT.first}, lambda one: one.update(act=SCRIPT.second), dict),
        (lambda: {"of": SCRIPT.Meter}, lambda one: one.update(of=SCRIPT.Sampler), dict),
        (lambda: meters(1, 2, 3), lambda one: one.pop(0), lambda one: [x.count for x in one]),
        (lambda: meters(1), lambda one: one.clear(), len),
        (lambda: deque(meters(1, 2)), lambda one: one.pop(), len),
        (lambda: SimpleNamespace(a=1, b=2), lambda one: delattr(one, "a"), vars),
        (lambda: [itertools.count()], lambda one: next(one[0]), repr),
        (lambda: dict.fromkeys(range(2000), 0), lambda one: one.update({5: 1}), dict),
        (lambda: dict.fromkeys(range(40_000), 0), lambda one: one.update({5: 1}), dict),
        (lambda: {n: [0] for n in range(2000)}, lambda one: one[5].append(1), dict),
        (lambda: [0.0] * 20_000, lambda one: one.append(1.0), list),
        (lambda: [0.0] * 20_000, lambda one: one.__setitem__(77, 1.0), list),
        (lambda: deque(range(20_000), maxlen=20_000), lambda one: one.append(1), list),
    ],
)
def test_what_has_changed_comes_along(make: Any, change: Change, read: Any) -> None:
    donor, here = arrives(lambda: {"held": make()}, lambda held: change(held["held"]), OWN)

    assert read(here["held"]) == read(donor["held"])
    assert type(here["held"]) is type(donor["held"])


@pytest.mark.parametrize("rows", [2, 900])
def test_a_tensor_that_is_bound_anew_to_another_shape_comes_along(rows: int) -> None:
    def change(held: Variables) -> None:
        held["alone"] = torch.ones(rows, 300)
        held["held"]["rows"] = torch.full((rows, 300), 2.0)

    _, here = arrives(
        lambda: {"alone": torch.zeros(1, 300), "held": {"rows": torch.zeros(0, 300)}}, change
    )

    assert torch.equal(here["alone"], torch.ones(rows, 300))
    assert torch.equal(here["held"]["rows"], torch.full((rows, 300), 2.0))


def test_an_object_that_gets_another_name_is_one_object_there_too() -> None:
    def make() -> Variables:
        return {"all": meters(1, 2), "kept": {"old": nn.Linear(2, 2), "all": {}, "new": None}}

    def change(held: Variables) -> None:
        held["all"][0] = held["all"][1]
        held["kept"]["new"] = held["kept"]["old"]
        held["kept"]["all"]["best"] = held["all"][1]

    _, here = arrives(make, change, OWN)

    assert here["all"][0] is here["all"][1] is here["kept"]["all"]["best"]
    assert here["all"][0].count == 2
    assert here["kept"]["new"] is here["kept"]["old"]


def test_a_function_that_a_variable_holds_comes_along() -> None:
    _, here = arrives(lambda: {"act": torch.relu}, lambda held: held.update(act=torch.tanh))

    assert here["act"] is torch.tanh


@pytest.mark.parametrize(
    ("make", "change", "told"),
    [
        (lambda: {"act": None}, lambda one: one.update(act=lambda: 0), None),
        (lambda: {"draws": None}, lambda one: one.update(draws=SCRIPT.Sampler()), "draws"),
        (lambda: meters(1), lambda one: one.append(SCRIPT.Sampler()), "held"),
        (lambda: meters(*[0.0] * 2000), lambda one: one.pop(), None),
        (lambda: meters(*[0.0] * 2000), lambda one: setattr(one[7], "count", 1.0), "held"),
        (
            lambda: dict(enumerate(meters(*[0.0] * 2000))),
            lambda one: setattr(one[7], "count", 1.0),
            "held",
        ),
        (
            lambda: deque(meters(*range(2000))),
            lambda one: one.rotate(),
            "held",
        ),
        (
            lambda: meters(*[0.0] * 2000),
            lambda one: setattr(one[7], "cache", nn.Linear(1, 1)),
            None,
        ),
        (lambda: {"at": None}, lambda one: one.update(at={"of": SCRIPT.Sampler()}), "of"),
        (lambda: {"loss": nn.MSELoss()}, lambda one: one.update(loss=nn.L1Loss()), "loss"),
    ],
)
def test_what_cannot_come_along_is_told(make: Any, change: Change, told: str | None) -> None:
    """But for a function of no name, which a library's code may have given."""
    run = functools.partial(
        arrives, lambda: {"held": make()}, lambda held: change(held["held"]), OWN
    )
    if told is None:
        run()
    else:
        with pytest.raises(NotReachable, match=f"{told}.*since they have trained"):
            run()


@pytest.mark.parametrize(
    "change",
    [
        lambda held: held.update(best=SCRIPT.Sampler()),
        lambda held: held.update(best={"loss": 1.0}),
        lambda held: held["log"].update(writer=SCRIPT.Sampler()),
        lambda held: held["log"].update(writer=[SCRIPT.Sampler()]),
        lambda held: vars(held["meter"]).update(of=SCRIPT.Sampler()),
        lambda held: vars(held["meter"]).update(of={"rows": meters(1)}),
    ],
)
def test_what_is_rank_0s_alone_is_passed_over(change: Any) -> None:
    passed = PassedOver(frozenset({"best"}), frozenset({"of"}), frozenset({("log", "writer")}), OWN)

    def make() -> Variables:
        return {"best": None, "log": {}, "meter": SCRIPT.Meter(), "shared": [0]}

    def both(held: Variables) -> None:
        change(held)
        held["shared"].append(1)

    _, here = arrives(make, both, OWN, passed)

    assert (here["best"], here["log"], here["shared"]) == (None, {}, [0, 1])
    assert vars(here["meter"]) == {"count": 0.0}


def test_what_hangs_on_another_name_too_is_told_by_that_one() -> None:
    passed = PassedOver(entries=frozenset({("log", "best")}), own=OWN)

    def make() -> Variables:
        return {"log": {"best": None}, "rows": [[1]]}

    def change(held: Variables) -> None:
        held["log"]["best"] = held["rows"][0]
        held["rows"][0].append(2)

    _, here = arrives(make, change, OWN, passed)

    assert here == {"log": {"best": None}, "rows": [[1, 2]]}


def test_what_is_one_ranks_own_is_left_alone() -> None:
    donor = Script({"log": {"rows": meters(1, 2)}, "pool": {"a": 1, "b": 2}}, OWN)
    newcomer = Script({"log": None, "pool": {"b": 3}}, OWN)
    donor.variables["log"]["rows"].pop()
    donor.variables["log"]["kind"] = SCRIPT.first
    donor.variables["pool"].pop("a")

    newcomer.put(*donor.told())

    assert newcomer.variables == {"log": None, "pool": {"b": 3}}


def test_results_data_and_variables_of_loops_are_not_compared() -> None:
    held: Variables = {"last": {}, "batch": {}, "loop": None}
    donor, newcomer = (
        Script({key: dict(one or {}) for key, one in held.items()}, OWN) for _ in range(2)
    )
    weight = torch.ones(3, requires_grad=True)
    item = [torch.ones(3)]
    donor.variables["last"]["out"] = [weight * 2]
    donor.variables["last"]["loss"] = (weight * 2).sum()
    donor.variables["batch"]["rows"] = item
    donor.variables["loop"] = SCRIPT.first

    newcomer.put(*donor.told(frozenset({id(item), id(item[0])}), frozenset({"loop"})))

    assert newcomer.variables == {"last": {}, "batch": {}, "loop": {}}


class Proxy:
    """It loads a module, as it were, when it is asked for anything."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"it was asked for {name}")


def test_a_proxy_is_asked_for_nothing() -> None:
    _, here = arrives(lambda: {"held": {"late": Proxy(), "n": 1}}, lambda one: one["held"].pop("n"))

    assert list(here["held"]) == ["late"]


def test_objects_of_frameworks_keep_books_of_their_own() -> None:
    """Lightning begins some of them in the first step."""
    framework = own_module("lightning.books", "class Loop:\n    def __init__(self): self.of = {}")
    own = OWN | {framework.__name__}
    donor, newcomer = (Script({"fit": framework.Loop(), "mine": {"of": {}}}, own) for _ in range(2))
    donor.variables["fit"].of["loss"] = SCRIPT.Sampler()

    newcomer.put(*donor.told())

    donor.variables["mine"]["of"]["loss"] = SCRIPT.Sampler()
    with pytest.raises(NotReachable, match="mine.of.loss"):
        newcomer.put(*donor.told())


def test_parameters_that_a_module_takes_out_are_its_own_matter() -> None:
    """DDP over tensor parallelism puts results in the place of parameters in each forward."""
    donor, newcomer = (Script({"layer": nn.Linear(1, 1)}, OWN) for _ in range(2))
    layer = donor.variables["layer"]
    weight = layer.weight
    del layer.weight
    layer.weight = weight * 1

    newcomer.put(*donor.told())

    assert list(newcomer.variables["layer"]._parameters) == ["weight", "bias"]
