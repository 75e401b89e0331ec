"""Members of owners, by name: each kind of them is read, set and emptied as a dict is."""

import argparse
import math
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from torch import nn

from recoverrun.worker.context.member_views import (
    MOST_ENTRIES,
    ORDER,
)
from recoverrun.worker.context.object_members import (
    FRAMEWORKS,
    identifier,
    is_framework,
    is_own,
    is_owner,
    members,
    resolve,
    spelt,
)
from tests.unit.parameter_ids import without_address

OWN = frozenset({__name__})


class Plain:
    shared = 1

    def __init__(self) -> None:
        self.x, self.y = 1, [2]


class Base:
    __slots__ = ("__private", "x")

    def __init__(self) -> None:
        self.x, self.__private = 1, 2

    @property
    def private(self) -> int:
        return self.__private


class Slotted(Base):
    __slots__ = "y"  # one name may stand alone

    def __init__(self) -> None:
        super().__init__()
        self.y = [2]


class Mixed(Base):
    """Without slots of its own: it has attributes, too."""

    def __init__(self) -> None:
        super().__init__()
        self.y = [2]


class Classed:
    x, y = 1, [2]
    __hidden = 3

    def method(self) -> None: ...

    @property
    def computed(self) -> int:
        return 4


class Model(nn.Module): ...


def closure(x: Any = 1) -> Any:
    y = [2]

    def inner() -> Any:
        return x, y

    return inner


def attributed() -> Any:
    def function() -> None: ...

    vars(function).update(x=1, y=[2])
    return function


def fresh_class() -> Any:
    return type("Fresh", (), {"x": 1, "y": [2], "__module__": __name__})


OWNERS: dict[str, Callable[[], Any]] = {
    "object": Plain,
    "slots": Slotted,
    "slots and attributes": Mixed,
    "namespace": lambda: argparse.Namespace(x=1, y=[2]),
    "simple namespace": lambda: SimpleNamespace(x=1, y=[2]),
    "closure": closure,
    "function": attributed,
    "class": fresh_class,
}
owners = pytest.mark.parametrize("make", OWNERS.values(), ids=OWNERS)


# --------------------------------------------------------------------------- any owner


@owners
def test_members_are_read_as_those_of_a_dict(make: Callable[[], Any]) -> None:
    owner = make()
    held = members(owner)

    assert is_owner(owner, OWN)
    assert (held["x"], held["y"], held.get("z")) == (1, [2], None)
    assert {"x", "y"} <= set(held) and len(held) == len(list(held)) == len(dict(held))
    assert "x" in held and "z" not in held
    with pytest.raises(KeyError):
        held["z"]


@owners
def test_what_is_set_and_deleted_is_so_for_the_owner_too(make: Callable[[], Any]) -> None:
    owner = make()
    before = dict(members(owner))

    members(owner)["x"] = 5
    del members(owner)["y"]

    assert dict(members(owner)) == {k: v for k, v in (before | {"x": 5}).items() if k != "y"}


@pytest.mark.parametrize("make", [m for n, m in OWNERS.items() if n not in ("slots", "closure")])
def test_an_owner_that_takes_any_name_is_given_new_ones(make: Callable[[], Any]) -> None:
    owner = make()

    members(owner)["new"] = 7

    assert owner.new == members(owner)["new"] == 7


# --------------------------------------------------------------------------- owners


@pytest.mark.parametrize(
    ("value", "owner"),
    [
        ({}, True), (dict.fromkeys(range(MOST_ENTRIES)), True),
        (dict.fromkeys(range(MOST_ENTRIES + 1)), False),
        (OrderedDict(), True), (defaultdict(int), True), (Counter(), True),
        (Plain(), True), (Slotted(), True), (Plain, True), (Model, False), (Model(), False),
        (closure(), True), (fresh_class, False), (nn.Linear, False), (type(nn), False),
        (nn, False), ([], False), (1, False), (None, False), (math.sin, False),
        (ModuleType("m"), False), (Exception(), False), (SimpleNamespace(), True),
    ],
    ids=without_address,
)  # fmt: skip
def test_owners_are_of_the_script_or_of_kinds_that_keep_nothing_of_others(
    value: Any, owner: bool
) -> None:
    assert is_owner(value, OWN) == owner


@pytest.mark.parametrize(
    "value", [Plain(), Slotted(), Plain, closure(), attributed()], ids=without_address
)
def test_what_other_modules_define_is_no_owner(value: Any) -> None:
    assert not is_owner(value, frozenset({"train"}))


@pytest.mark.parametrize("value", [1, None, "text", {1}, object()])
def test_what_is_no_owner_has_no_members(value: Any) -> None:
    assert dict(members(value)) == {}


@pytest.mark.parametrize("package", sorted(FRAMEWORKS))
def test_objects_of_frameworks_are_the_script_s_own(package: str) -> None:
    made = type("Trainer", (), {"__module__": f"{package}.trainer"})()
    other = type("Trainer", (), {"__module__": f"{package}s.trainer"})()

    assert is_framework(made) and is_own(made, frozenset()) and is_owner(made, frozenset())
    assert not (is_framework(other) or is_owner(other, frozenset()))


def test_slots_alone_make_an_owner_and_no_object_with_attributes() -> None:
    assert is_owner(Slotted(), OWN) and not is_own(Slotted(), OWN)
    assert is_own(Mixed(), OWN)


# --------------------------------------------------------------------------- slots


def test_slots_are_those_of_bases_too_and_private_ones_by_the_name_that_they_have() -> None:
    owner = Slotted()

    assert set(members(owner)) == {"x", "y", "_Base__private"}
    members(owner)["_Base__private"] = 9
    assert owner.private == 9


def test_slots_that_hold_nothing_are_not_there() -> None:
    owner = Slotted()
    del owner.x

    assert set(members(owner)) == {"y", "_Base__private"}
    members(owner)["x"] = 3
    assert owner.x == 3


def test_slots_come_beside_attributes() -> None:
    owner = Mixed()

    assert set(members(owner)) == {"x", "_Base__private", "y"} and set(vars(owner)) == {"y"}


class Forwarding:
    __slots__ = ("inner", "late")

    def __getattr__(self, name: str) -> Any:
        if name == "late":
            return 5
        raise AttributeError(name)


def test_a_slot_that_the_class_would_make_up_is_not_there() -> None:
    owner = Forwarding()
    owner.inner = 1

    assert dict(members(owner)) == {"inner": 1}


# --------------------------------------------------------------------------- functions


def empty_cell() -> Any:
    def inner() -> Any:
        return later  # type: ignore[name-defined]

    if inner is None:
        later = 1
    return inner


def test_a_variable_that_was_given_nothing_yet_is_not_there_until_it_is() -> None:
    inner = empty_cell()
    assert "later" not in members(inner) and len(members(inner)) == 0

    members(inner)["later"] = 4

    assert inner() == 4 and dict(members(inner)) == {"later": 4}
    del members(inner)["later"]
    assert dict(members(inner)) == {}


def test_a_function_has_its_variables_and_its_attributes() -> None:
    inner = closure()
    inner.calls, inner.x = 3, "an attribute of the same name"

    assert dict(members(inner)) == {"x": 1, "y": [2], "calls": 3}
    members(inner)["x"] = 8
    assert inner() == (8, [2]) and inner.x != 8


# --------------------------------------------------------------------------- classes


def test_a_class_has_its_variables_and_neither_methods_nor_properties() -> None:
    assert dict(members(Classed)) == {"x": 1, "y": [2], "_Classed__hidden": 3}


def test_a_class_has_no_variables_of_its_bases() -> None:
    class Derived(Classed):
        z = 5

    assert dict(members(Derived)) == {"z": 5}


# --------------------------------------------------------------------------- by path

TREE = {
    "state": {"a": {"b": SimpleNamespace(c=1)}},
    "fetch": closure({"at": 1}),
    "config": SimpleNamespace(rates={1: 0.5}),
}


@pytest.mark.parametrize(
    ("path", "value", "text", "name"),
    [
        (("state", "['a']"), TREE["state"]["a"], "state['a']", "state"),  # type: ignore[index]
        (("state", "['a']", "['b']", "c"), 1, "state['a']['b'].c", "c"),
        (("fetch", "x", "['at']"), 1, "fetch.x['at']", "x"),
        (("config", "rates", "[1]"), 0.5, "config.rates[1]", "rates"),
        (("config", "rates", ORDER), [1], "list(config.rates)", "rates"),
    ],
)
def test_a_path_leads_to_its_member_and_is_spelt_as_code(
    path: tuple[str, ...], value: Any, text: str, name: str
) -> None:
    assert members(resolve(TREE, path))[path[-1]] == value
    assert (spelt(path), identifier(path), identifier((*path, "y#"))) == (text, name, "y")


@pytest.mark.parametrize("path", [("gone", "x"), ("state", "['z']", "x"), ("config", "a", "b")])
def test_a_way_that_is_gone_leads_to_nothing(path: tuple[str, ...]) -> None:
    assert resolve(TREE, path) is None
