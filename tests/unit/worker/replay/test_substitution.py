"""While a microbatch is another rank's, what the script holds is that rank's, and then ours."""

import argparse
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from recoverrun.worker.context.member_views import (
    ORDER,
)
from recoverrun.worker.context.slot_context import Key, attributes_of, values_of
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.replay.executor import Executor
from recoverrun.worker.replay.known_state import differing
from recoverrun.worker.replay.substitution import Substitution, UndoRecord
from recoverrun.worker.rng.streams import read_streams
from recoverrun.worker.tracking.script_runtime import ScriptRuntime
from tests.unit.contexts import at, loop

pytestmark = pytest.mark.usefixtures("streams_put_back", "signals_put_back")

OWN = frozenset({__name__})


class Slotted:
    __slots__ = ("at", "late")

    def __init__(self, at: int) -> None:
        self.at = at


class Stage:
    """A script that holds `state`, and a lost rank that holds another one under the same name."""

    def __init__(self, mine: Any, theirs: Any, where: str = "global") -> None:
        self.state = mine
        self.peek = lambda: mine
        seen: dict[str, Any] = {"state": mine, "peek": self.peek}
        local, module = where == "function", where == "module"
        attributes = attributes_of(seen, OWN)
        self.mine = at(0, names=values_of(seen), attributes=attributes)
        self.theirs = at(
            0, names=values_of({"state": theirs}), attributes=attributes_of({"state": theirs}, OWN)
        )
        self.top: Any = SimpleNamespace(
            globals={} if local else seen, names=seen if local else {}, groups=[],
            iterator_lists=[], first_writes=0, frame_id=0, attributes=attributes, context=self.mine,
            loop=loop(module_level=module),
        )  # fmt: skip
        executor = Executor(ScriptRuntime(0), pytest.fail)
        executor.runtime.own_modules = OWN
        self.substitution = Substitution(executor.runtime, executor.influence, executor.shares)
        self.undo = UndoRecord(read_streams(), {})

    @property
    def different(self) -> dict[Key, Any]:
        return differing(self.theirs, self.mine)

    def apply(self) -> dict[str, Any]:
        return self.substitution.apply(self.top, self.different, self.undo)

    def revert(self) -> None:
        self.substitution.revert(self.top, self.undo)


# --------------------------------------------------------------------------- new entries


def test_entries_that_the_lost_rank_alone_has_differ() -> None:
    assert Stage({"a": 1}, {"a": 1, "b": 2}).different == {
        ("state", ORDER): ["a", "b"],
        ("state", "['b']"): 2,
    }


def test_of_entries_that_we_alone_have_the_order_differs() -> None:
    assert Stage({"a": 1, "b": 2}, {"b": 2}).different == {("state", ORDER): ["b"]}


def test_the_same_entries_in_another_order_differ_in_that_alone() -> None:
    assert Stage({"a": 1, "b": 2}, {"b": 2, "a": 1}).different == {("state", ORDER): ["b", "a"]}


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (argparse.Namespace(a=1), argparse.Namespace(a=1, b=2)),  # no entries: code gives it those
        ({"a": 1}, {"a": 1, "local": 2}),
        ({"a": 1, "gpu": 0}, {"a": 1, "gpu": 1}),
    ],
    ids=["an attribute", "of its hardware", "of the hardware of both"],
)
def test_new_attributes_and_a_rank_s_hardware_do_not_differ(mine: Any, theirs: Any) -> None:
    assert {key for key in Stage(mine, theirs).different if key[-1] != ORDER} == set()


# --------------------------------------------------------------------------- there and back


@pytest.mark.parametrize("where", ["module", "global", "function"])
@pytest.mark.parametrize("kind", [list, deque, set])
def test_whoever_holds_a_container_sees_what_it_holds(kind: Any, where: str) -> None:
    """A closure that draws from a list goes on with the list that the loop's body fills."""
    stage = Stage(kind([1, 2]), kind([7]), where)
    state = stage.state

    names = stage.apply()
    (names["state"].add if kind is set else names["state"].append)(8)
    within = set(stage.peek())
    stage.revert()

    assert within == {7, 8}
    assert stage.peek() is state and state == kind([1, 2])


def noted(state: Any) -> Any:
    """All there is to see of it, and which objects these are."""
    if isinstance(state, dict):
        return [(key, id(value), noted(value)) for key, value in state.items()]
    if isinstance(state, type):
        return [pair for pair in vars(state).items() if not pair[0].startswith("__")]
    if callable(state):
        cells = [cell.cell_contents for cell in state.__closure__ or ()]
        return [(id(one), noted(one)) for one in cells], noted(vars(state))
    if isinstance(state, Slotted):
        return [(name, getattr(state, name, None)) for name in Slotted.__slots__]
    return noted(vars(state)) if hasattr(state, "__dict__") else state


def closure(at: Any) -> Any:
    def fetch() -> Any:
        return at

    fetch.calls = [at]  # type: ignore[attr-defined]
    return fetch


def _set(owner: Any, **values: Any) -> None:
    for name, value in values.items():
        setattr(owner, name, value)


STATES: dict[str, tuple[Any, Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "entry": ({"a": 1}, {"a": 5}, lambda s: s["a"], lambda s: s.update(a=9, b=9)),
    "new entry": ({"a": 1}, {"b": 5, "a": 1}, list, lambda s: s.pop("a")),
    "lacking entry": ({"a": 1, "b": 2, "c": 3}, {"c": 3, "a": 1}, list, lambda s: s.clear()),
    "inner entry": (
        {"a": {"b": 1}, "c": 2}, {"a": {"b": 5}, "c": 2}, lambda s: s["a"]["b"],
        lambda s: s.update(a={}),
    ),
    "slot": (Slotted(1), Slotted(5), lambda s: s.at, lambda s: _set(s, at=9, late=9)),
    "closure": (closure(1), closure(5), lambda s: s(), lambda s: _set(s, calls=[9], more=9)),
    "attribute of a function": (
        closure(1), closure(5), lambda s: s.calls, lambda s: vars(s).clear(),
    ),
    "class": (
        type("Counted", (), {"__module__": __name__, "at": 1}),
        type("Counted", (), {"__module__": __name__, "at": 5}),
        lambda s: s.at, lambda s: _set(s, at=9, more=9),
    ),
    "namespace": (
        argparse.Namespace(at=1), argparse.Namespace(at=5), lambda s: s.at,
        lambda s: _set(s, at=9, more=9),
    ),
}  # fmt: skip
states = pytest.mark.parametrize(("mine", "theirs", "sees", "change"), STATES.values(), ids=STATES)


@states
@pytest.mark.parametrize("where", ["module", "global", "function"])
def test_functions_of_the_script_see_the_lost_rank_s_and_afterwards_all_is_as_before(
    mine: Any, theirs: Any, sees: Any, change: Any, where: str
) -> None:
    stage, before = Stage(mine, theirs, where), noted(mine)
    names = stage.apply()

    assert sees(names["peek"]()) == sees(theirs)
    change(stage.state)
    stage.revert()

    assert noted(mine) == before
    assert stage.peek() is mine


@states
@pytest.mark.parametrize("where", ["module", "global"])
def test_the_region_sees_the_lost_rank_s(
    mine: Any, theirs: Any, sees: Any, change: Any, where: str
) -> None:
    stage = Stage(mine, theirs, where)

    assert sees(stage.apply()["state"]) == sees(theirs)
    stage.revert()
    assert stage.top.globals["state"] is mine


@pytest.mark.parametrize("name", ["slot", "closure", "class", "namespace"])
def test_the_region_of_a_function_sees_what_the_lost_rank_s_objects_hold(name: str) -> None:
    mine, theirs, sees, _ = STATES[name]
    stage = Stage(mine, theirs, "function")

    assert sees(stage.apply()["state"]) == sees(theirs)
    stage.revert()


@pytest.mark.parametrize("name", ["entry", "new entry", "lacking entry"])
def test_the_region_of_a_function_sees_the_lost_rank_s_entries_of_its_variables(name: str) -> None:
    mine, theirs, sees, _ = STATES[name]
    stage = Stage(mine, theirs, "function")

    names = stage.apply()
    try:
        assert sees(names["state"]) == sees(theirs)
    finally:
        stage.revert()


def test_a_new_entry_that_is_no_plain_value_is_not_taken_for_none() -> None:
    stage = Stage({"a": 1}, {"a": 1, "b": {"c": 2}})

    with pytest.raises(NotReplayable, match=r"holds state\['b'\], and this one does not"):
        stage.apply()


def test_an_entry_that_belongs_to_another_process_is_not_missed() -> None:
    stage = Stage({"a": 1}, {"a": 1, "gpu_memory": {"c": 2}})

    assert stage.apply()["state"] == {"a": 1}
    stage.revert()


def test_entries_are_as_they_were_when_the_iteration_began() -> None:
    """Entries that the script has put there since are not there yet, and afterwards they are."""
    stage = Stage({"a": 1}, {"a": 1})
    stage.state.update(a=2, late=3)

    assert stage.apply()["state"] == {"a": 1}
    stage.revert()
    assert list(stage.state.items()) == [("a", 2), ("late", 3)]
