"""Lists, dicts and sets of the script, while an iteration is executed as another rank."""

from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from recoverrun.worker.context.attached_state import ABSENT, Attached
from recoverrun.worker.context.member_views import MOST_ENTRIES, ORDER
from recoverrun.worker.replay import substitution
from recoverrun.worker.replay.executor import Executor
from recoverrun.worker.replay.substitution import Substitution, UndoRecord
from recoverrun.worker.rng.streams import read_streams
from recoverrun.worker.tracking.script_runtime import ScriptRuntime
from tests.unit.contexts import at, loop

pytestmark = pytest.mark.usefixtures("streams_put_back", "signals_put_back")


class Stage:
    """An iteration that began with a list as it was `then`; since that it was changed in place."""

    def __init__(self, where: str, then: list[Any], now: list[Any], **more: Any) -> None:
        self.rows, self.where = now, where
        other = self.rows
        module = where == "module"
        seen = {"rows": self.rows, "other": self.rows, "peek": lambda: other}
        context = at(0, names={"rows": then, "other": then})
        self.top: Any = SimpleNamespace(
            globals={} if where == "function" else seen, names=seen if where == "function" else {},
            loop=loop(module_level=module, **more), attributes={}, context=context,
            groups=[], iterator_lists=[], containers={}, first_writes=0, frame_id=0,
        )  # fmt: skip
        executor = Executor(ScriptRuntime(0), pytest.fail)
        self.substitution = Substitution(executor.runtime, executor.influence, executor.shares)
        self.undo = UndoRecord(read_streams(), {})

    def apply(self, **theirs: Any) -> dict[str, Any]:
        return self.substitution.apply(self.top, theirs, self.undo)

    def revert(self) -> None:
        self.substitution.revert(self.top, self.undo)


WHERE = ["module", "global", "function"]


@pytest.mark.parametrize("where", WHERE)
def test_a_list_that_was_changed_in_place_since_the_iteration_began_is_as_it_was_then(
    where: str,
) -> None:
    stage = Stage(where, [[1], 2], [3, 4, 5])

    names = stage.apply()

    assert names["rows"] == names["other"] == names["peek"]() == [[1], 2]
    stage.revert()
    assert stage.rows == [3, 4, 5]


@pytest.mark.parametrize("where", WHERE)
def test_another_rank_s_list_is_seen_by_closures_and_under_other_names(where: str) -> None:
    stage = Stage(where, [1], [1])

    names = stage.apply(rows=[7, 8], other=[7, 8])
    names["rows"].append(9)

    assert names["peek"]() == names["other"] == [7, 8, 9]
    stage.revert()
    assert stage.rows == [1] and names["peek"]() is stage.rows


@pytest.mark.parametrize("where", WHERE)
def test_a_list_of_iterators_holds_those_that_it_held_then(where: str) -> None:
    old, new = iter("a"), iter("b")
    stage = Stage(where, [], [new])
    stage.top.context = at(0)
    stage.top.iterator_lists = [(stage.rows, [old])]

    names = stage.apply()

    assert names["rows"] == names["other"] == names["peek"]() == [old]
    stage.revert()
    assert stage.rows == [new]


def test_a_dict_that_has_grown_too_long_to_be_followed_keeps_its_entries() -> None:
    """The other rank's was small as the iteration around began, and known entry by entry."""
    kept = {n: float(n) for n in range(MOST_ENTRIES + 1)}
    before, stage = list(kept.items()), Stage("module", [], [])
    stage.top.globals["kept"] = kept
    theirs = {("kept", ORDER): [7, 0], ("kept", "[0]"): 50.0, ("kept", "[7]"): 60.0}

    stage.substitution.apply(stage.top, theirs, stage.undo)
    assert list(kept.items()) == [(7, 60.0), (0, 50.0)]

    kept[99] = 1.0
    stage.revert()
    assert list(kept.items()) == before


def test_what_is_put_in_place_is_not_what_was_noted() -> None:
    """An iteration may be executed more than once."""
    stage = Stage("module", [[1]], [])

    names = stage.apply()
    names["rows"][0].append(2)
    names["rows"].clear()

    assert stage.top.context.names["rows"] == [[1]]


@pytest.mark.parametrize(("theirs", "expected"), [({}, [1]), ({"rows": [5]}, [5])])
def test_a_list_that_one_iteration_hands_to_the_next_is_the_same_one_as_it_was_then(
    theirs: dict[str, Any], expected: list[int]
) -> None:
    stage = Stage("function", [1], [2], carried=frozenset({"rows", "other"}))
    stage.top.containers = {"rows": stage.rows, "other": stage.rows}
    stage.top.names |= {"rows": [1], "other": [1]}

    names = stage.apply(**theirs)
    assert names["rows"] is names["other"] is names["peek"]() is stage.rows
    assert stage.rows == expected

    names["rows"].append(3)
    stage.revert()
    assert stage.rows == [2] and stage.top.names["rows"] == [1]


def test_what_the_code_leaves_in_containers_is_taken_back() -> None:
    held: dict[str, Any] = {"rows": [object()], "by": {"b": 1, "a": [2]}, "seen": {3}}
    before = {name: value.copy() for name, value in held.items()}
    stage = Stage("function", [], [])
    stage.top.names.update(held)

    names = stage.apply()
    names["rows"].append(1)
    names["by"]["c"] = names["by"].pop("b")
    names["seen"].clear()

    assert all(names[name] is value for name, value in held.items())
    stage.revert()
    assert held == before and list(held["by"]) == ["b", "a"]


def test_a_list_in_the_place_of_something_else_is_another_one() -> None:
    stage = Stage("module", [1], [1])
    stage.top.globals["rows"] = None

    assert stage.apply(rows=[5])["rows"] == [5]
    assert stage.rows == [1]
    stage.revert()
    assert stage.top.globals["rows"] is None


def test_what_this_iteration_wrote_to_a_module_first_is_as_it_was_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`self.calls += 1` in a forward: the context of the iteration has no such value."""
    attached, layer = Attached(), nn.Linear(2, 2)
    monkeypatch.setattr(substitution, "ATTACHED", attached)
    layer.calls, layer.late = 3, True  # type: ignore[assignment]
    for name, before in (("calls", 2), ("late", ABSENT)):
        attached.write(layer, name, before)
    stage = Stage("function", [], [])

    stage.apply()
    assert layer.calls == 2 and "late" not in vars(layer)

    layer.calls += 1
    stage.revert()
    assert layer.calls == 3 and layer.late is True


def test_what_this_iteration_changed_in_a_module_first_is_as_it_was_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`self.seen["rows"] += 1` in a forward; other names see the same dict."""
    attached, layer = Attached(), nn.Linear(2, 2)
    monkeypatch.setattr(substitution, "ATTACHED", attached)
    seen = layer.seen = {"rows": 1, "late": [5]}  # type: ignore[assignment]
    attached.write(layer, "seen", {"rows": 0, "late": []})

    for _ in range(2):
        stage = Stage("function", [], [])
        stage.apply()
        assert layer.seen is seen and seen == {"rows": 0, "late": []}
        seen["rows"] += 7  # type: ignore[operator]
        seen["late"].append(7)  # type: ignore[attr-defined]
        stage.revert()
        assert seen == {"rows": 1, "late": [5]}
