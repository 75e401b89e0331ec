"""Functions and objects that attributes are given while the script trains are there again."""

import math
import reprlib
import string
import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recoverrun.worker.arrival import plain_values
from recoverrun.worker.arrival.packing import Packing
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.snapshots import library_objects, references
from recoverrun.worker.snapshots.references import Putting, References

OWN = frozenset({__name__})
LOOP = SimpleNamespace(assigned=frozenset({"batch"}), targets=frozenset({"x"}), live_in=frozenset())


class Slow:
    def __init__(self, model: Any = None) -> None:
        self.rate, self.model = 0.1, model


class Quick(Slow):
    pass


class Timed:
    def __init__(self) -> None:
        self.stream = torch.Generator()


@dataclass
class Batch:
    size: int


class Script:
    """As a class of the script's."""

    def __init__(self) -> None:
        self.first, self.second = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
        self.model: Any = self.first
        self.shapes = [lambda: 1, lambda: 2]
        self.shape, self.activation, self.factor = self.shapes[0], torch.tanh, self.warm
        self.pace: Any = Slow(self.first)
        self.loss = torch.nn.HuberLoss()
        self.paces = [self.pace, Slow(self.second)]

    def warm(self) -> int:
        return 1

    def main(self) -> int:
        return 2


def _stack(*iterations: int) -> list[Any]:
    return [SimpleNamespace(iteration=one, loop=LOOP) for one in iterations]


class Process:
    """One that has run the first lines of the script, and takes snapshots."""

    def __init__(self, optimizers: Sequence[Any] = ()) -> None:
        self.script = Script()
        self.variables: dict[str, Any] = {"script": self.script, "batch": None}
        self.references = References(self.there, self.spaces, OWN, optimizers=optimizers)

    @property
    def there(self) -> plain_values.Holdings:
        return plain_values.holdings([self.variables], OWN)

    @property
    def spaces(self) -> Any:
        return [("<main>", self.variables)]

    def told(self, *iterations: int) -> tuple[Any, list[torch.Tensor]]:
        packing = Packing([])
        told = self.references.told(self.there, self.spaces, _stack(*iterations), packing)
        return told, packing.tensors

    def put(self, told: Any, tensors: list[torch.Tensor]) -> Script:
        first = references.places(self.there, self.spaces)
        Putting(lambda: (self.there, self.spaces), [], first, tensors, OWN).put(told)
        return self.script


def gone_back(change: Any, *iterations: int) -> Script:
    process = Process()
    change(process.script)
    return Process().put(*process.told(*iterations or (7,)))


def test_what_was_not_changed_is_not_told() -> None:
    process = Process()
    process.variables["batch"] = Batch(4)

    assert process.told(7) == ([], [])


@pytest.mark.parametrize("function", [torch.sigmoid, torch.nn.functional.relu, math.sin, Quick])
def test_a_function_with_a_name_is_there_again(function: Any) -> None:
    assert gone_back(lambda one: setattr(one, "activation", function)).activation is function


def ones() -> int:
    return 1


def test_a_dict_that_was_made_calls_the_function_of_the_scripts_that_it_called() -> None:
    process, other = Process(), Process()
    process.script.pace.rate = defaultdict(ones)
    other.script.pace.rate = defaultdict()  # its kind is told as a value

    made = other.put(*process.told(7)).pace.rate

    assert made["new"] == 1


def test_what_every_process_makes_is_found_by_its_place() -> None:
    def change(one: Script) -> None:
        one.shape, one.model, one.pace = one.shapes[1], one.second, one.paces[1]

    second = gone_back(change)

    assert second.shape is second.shapes[1] and second.model is second.second
    assert second.pace is second.paces[1]


def test_a_method_is_that_of_the_object_in_this_process() -> None:
    second = gone_back(lambda one: setattr(one, "factor", one.main))

    assert second.factor() == 2 and second.factor.__self__ is second


def test_an_object_of_another_class_is_made_with_all_that_it_holds() -> None:
    second = gone_back(lambda one: setattr(one, "pace", Quick(one.first)))

    assert type(second.pace) is Quick and second.pace.rate == 0.1
    assert second.pace.model is second.first


@pytest.mark.parametrize(
    "value", [torch.nn.HuberLoss(delta=3.0), string.Formatter(), reprlib.Repr()],
    ids=["a module", "empty", "with attributes"],
)  # fmt: skip
@pytest.mark.parametrize("place", ["shape", "pace", "loss"])
def test_an_object_of_a_library_is_made_with_plain_attributes(place: str, value: Any) -> None:
    second = getattr(gone_back(lambda one: setattr(one, place, value)), place)

    assert type(second) is type(value) and second is not value
    assert repr(vars(second)) == repr(vars(value))


def test_of_a_library_another_object_of_one_kind_has_the_attributes_of_the_new_one() -> None:
    def change(one: Script) -> None:
        one.loss = torch.nn.HuberLoss(delta=3.0)

    second = gone_back(change)

    assert second.loss.delta == 3.0
    assert torch.equal(second.loss(torch.ones(1), torch.zeros(1)), torch.tensor(0.5))


def test_one_that_is_alike_by_then_stays_where_others_hold_it() -> None:
    process, second = Process(), Process()
    for one in (process, second):
        one.script.paces = [one.script.shape, string.Formatter()]
        one.script.shape = one.script.paces[1]
    told, tensors = process.told(7)

    second.put(told, tensors)

    assert second.script.shape is second.script.paces[1]


def test_an_object_of_a_library_that_cannot_be_made_is_told_after_all_else() -> None:
    process, later, again = Process(), Process(), Process()
    process.script.shape = threading.Lock()
    process.script.factor = torch.distributions.Normal(0.0, 1.0)
    told, tensors = process.told(7)

    later.put(told, tensors)
    again.put(told, tensors)
    again.script.shape = threading.Lock()
    again.script.factor = torch.distributions.Normal(0.0, 2.0)

    normal = "torch.distributions.normal.Normal"
    assert [library_objects.lacking(told, one.there, one.spaces) for one in (later, again)] == [
        ["script['shape'] (_thread.lock)", f"script['factor'] ({normal})"], []
    ]  # fmt: skip


@pytest.mark.parametrize("value", [lambda: 3, Timed()], ids=["a function", "an object"])
def test_where_nothing_makes_it_again_that_is_told_at_once(value: Any) -> None:
    with pytest.raises(NotReachable, match=r"^script\['shape'\] was given an? "):
        gone_back(lambda one: setattr(one, "shape", value))


def test_a_hook_that_is_registered_meanwhile_is_told() -> None:
    with pytest.raises(NotReachable, match="_forward_hooks"):
        gone_back(lambda one: one.first.register_forward_hook(lambda *_: None))


def test_code_between_loops_may_make_it_again() -> None:
    process, made_again, bare = Process(), Process(), Process()
    for one in (process, made_again):
        one.script.shape = _made_between_loops()
    told = process.told(3, 7)

    made_again.put(*told)
    with pytest.raises(NotReachable, match="in this process"):
        bare.put(*told)


def _made_between_loops() -> Any:
    return lambda: 3


def test_an_optimizer_that_is_given_parameters_of_no_module_meanwhile_is_told() -> None:
    process = Process([SimpleNamespace(param_groups=[{"params": [0]}])])
    known: list[list[str | None]] = [["first.weight"]]
    strange: list[list[str | None]] = [*known, [None]]
    process.references.require_groups([known], _stack(1, 0))
    process.references.require_groups([[*known, ["second.weight"]]], _stack(2, 0))
    process.references.require_groups([strange], _stack(2, 0))

    for stack in (_stack(3, 0), _stack(7)):
        with pytest.raises(NotReachable, match="other parameters"):
            process.references.require_groups([strange], stack)


def test_what_outlives_an_iteration_of_the_outer_loop_is_not_made_there() -> None:
    process = Process()
    process.script.shape = _made_between_loops()
    process.told(3, 7)
    process.script.shape = _made_between_loops()
    process.told(4, 0)
    process.told(4, 5)

    with pytest.raises(NotReachable):
        process.told(5, 0)


def test_parameters_that_it_was_given_before_the_first_snapshot_are_told_as_well() -> None:
    process = Process([SimpleNamespace(param_groups=[{"params": [0]}])])

    with pytest.raises(NotReachable, match="other parameters"):
        process.references.require_groups([[["first.weight"], [None]]], _stack(7))


def test_an_object_does_not_go_by_the_variable_of_a_loop() -> None:
    first, second = Slow(), Slow()
    for of_loop in (first, second):
        variables = {"m": of_loop, "kept": {"a": first, "b": second}}
        there = plain_values.holdings([variables], OWN)
        spaces = [("<main>", variables)]
        known = References(there, spaces, OWN, bound=frozenset({"m"}))
        assert known._place(first) == ("kept", "a")
        assert known._place(second) == ("kept", "b")
