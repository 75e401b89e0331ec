"""The values of rank 0 alone that its deputy is told."""

import sys
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch

from recoverrun.worker.instrumentation import Lone
from recoverrun.worker.rank0.shared_values import Supply, held, named, within
from recoverrun.worker.tracking.recreated_objects import RecreatedObjects

HERE = __file__
READS = ("folder", "number", "path", "flag", "options.folder", "tensor", "TITLE", "nowhere")
TITLE: Any = "of rank 0"
ABSENT: Any = None


def lone_here(frame: FrameType) -> dict[str, Lone]:
    return {f"{HERE}:{frame.f_lineno}": Lone((), READS), "elsewhere.py:1": Lone((), READS)}


def on_rank_0() -> dict[str, Any]:
    """As `on_the_deputy`, but that it has everything."""
    folder, number, path, flag = "runs/1", 1 << 70, Path("runs"), False
    options, tensor = SimpleNamespace(folder="in options"), torch.ones(1)
    frame, has = sys._getframe(), (folder, number, path, flag, options, tensor)
    return held(lone_here(frame), frame) if has else {}


def as_on_rank_0(found: dict[str, Any]) -> dict[str, Any]:
    """Told to a function of another name."""
    return {key.replace("on_rank_0", "on_the_deputy"): value for key, value in found.items()}


def supply(told: dict[str, Any], *reads: str) -> None:
    """The values that a function's lone code reads, where that function calls this."""
    frame = sys._getframe(1)
    places = {f"{HERE}:{frame.f_lineno}": Lone((), reads or READS)}
    gate = SimpleNamespace(places=places, told=told, recreated=RecreatedObjects(), lone=0)
    runtime = SimpleNamespace(gate=gate)
    session: Any = SimpleNamespace(runtime=runtime, reporter=SimpleNamespace(notice=pytest.fail))
    Supply(session).supply(frame)


def on_the_deputy(told: dict[str, Any], unbound: bool) -> tuple[Any, ...]:
    options = SimpleNamespace(folder=None)
    number, tensor, flag = None, None, True
    if not unbound:
        folder = path = "its own"
    supply(told)
    return folder, number, path, flag, options.folder, tensor


def test_simple_values_are_told_of_functions_in_execution_and_their_modules() -> None:
    assert on_rank_0() == {
        f"{HERE}\0on_rank_0\0folder": "runs/1",
        f"{HERE}\0on_rank_0\0path": ["runs"],
        f"{HERE}\0on_rank_0\0flag": False,
        f"{HERE}\0on_rank_0\0options.folder": "in options",
        f"{HERE}\0on_rank_0\0TITLE": "of rank 0",
        f"{HERE}\0\0TITLE": "of rank 0",
    }


def test_where_the_deputy_has_nothing_it_gets_what_rank_0_has() -> None:
    told = as_on_rank_0(on_rank_0())

    given = on_the_deputy(told, unbound=True)

    assert given == ("runs/1", None, Path("runs"), True, "in options", None)


def test_what_it_has_of_its_own_stays() -> None:
    told = as_on_rank_0(on_rank_0())

    assert on_the_deputy(told, unbound=False)[:3] == ("its own", None, "its own")


def test_without_a_word_of_rank_0_nothing_is_bound() -> None:
    with pytest.raises(UnboundLocalError):
        on_the_deputy({}, unbound=True)


def test_names_of_a_module_and_of_a_closure_are_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ABSENT", None)
    inner: Any = None

    def function() -> Any:
        supply(told, "ABSENT", "inner")
        return ABSENT, inner

    code = function.__code__
    told = {f"{HERE}\0\0ABSENT": "told", f"{HERE}\0{code.co_qualname}\0inner": 3}

    assert function() == ("told", 3) and inner == 3


def test_names_are_looked_up_without_running_anything() -> None:
    class Holder:
        stop = property(lambda self: pytest.fail("executed"))

    holder = Holder()
    vars(holder)["best"] = best = torch.ones(2)
    frame = sys._getframe()

    assert named(frame, "holder.best") is best
    assert isinstance(named(frame, "holder.stop"), property)
    assert named(frame, "nowhere.best") is None
    assert named(frame, "HERE") is HERE


def test_a_place_belongs_to_the_function_that_has_its_line() -> None:
    code = test_a_place_belongs_to_the_function_that_has_its_line.__code__

    assert within(code, f"{HERE}:{code.co_firstlineno + 1}")
    assert not within(code, f"{HERE}:{code.co_firstlineno - 3}")
    assert not within(code, f"elsewhere.py:{code.co_firstlineno + 1}")
