"""Variables of running functions and of modules: read as they are, and written as by the script."""

import ast
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from recoverrun.worker.analysis.call_graph import BackwardNames
from recoverrun.worker.arrival import frame_variables
from recoverrun.worker.arrival.frame_variables import names_bound, read_all, write_all
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.instrumentation import RUNTIME_NAME, Loop
from recoverrun.worker.rewriting.loop_transformer import instrument
from recoverrun.worker.tracking.microbatches import LoopFrame

SCRIPT = """
total, name = 0, "of the module"

def plain():
    count, text = 0, "first"
    for step in range(3):
        stop()
        count += 1
        text = f"{text} {step}"
        train()
    return count, text

def late():
    for step in range(3):
        stop()
        made = step
        train()
    return made

def closure():
    count = 0
    def more():
        nonlocal count
        count += 10
    while count < 100:
        stop()
        more()
        count += 1
        train()
    return count

def inner():
    held = 1
    def fit():
        nonlocal held
        for step in range(1):
            stop()
            held += 1
            train()
    fit()
    return held

def of_module():
    global total
    for step in range(2):
        stop()
        total += 1
        train()
    return total

class Trainer:
    def fit(self):
        __private = 5
        for epoch in range(1):
            kept = 0
            kept = self.epoch(kept)
            __private += kept
            train()
        return __private
    def epoch(self, kept):
        for step in range(1):
            stop()
            kept += 1
            train()
        return kept

def untouched():
    limit = 3
    for step in range(2):
        stop()
        limit = limit
        other = limit
        train()
    return limit

def fit_it():
    return Trainer().fit()

def generator():
    count = 0
    for step in range(2):
        stop()
        count += 1
        train()
        yield count
"""


class Script:
    """Stops at the top of loops, where `at_top` is told the frame and the loops around."""

    def __init__(self, at_top: Callable[[list[LoopFrame], FrameType], None]) -> None:
        made = instrument(
            ast.parse(SCRIPT), "s.py", BackwardNames(frozenset({"train", "epoch"}), frozenset())
        )
        self.loops: dict[str, Loop] = {loop.id: loop for loop in made.loops}
        self.at_top = at_top
        self.stopped = False
        self.names: dict[str, Any] = {
            "train": lambda: None, "stop": self.stop, RUNTIME_NAME: self, "__name__": "s"
        }  # fmt: skip
        exec(made.code, self.names)

    def iterate(self, loop_id: str, iterable: Any) -> Any:
        return iter(iterable)

    def top(self, *args: Any) -> None: ...

    leave = top

    def enter(self, *args: Any) -> bool:
        return True

    def generator(self, function: Any) -> Any:
        return function

    def stop(self) -> None:
        """Once."""
        if self.stopped:
            return
        self.stopped = True
        frames: list[FrameType] = []
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename == "s.py":
            frames.insert(0, frame)
            frame = frame.f_back  # type: ignore[assignment]
        stack = [
            LoopFrame(loop, id(one), tested={}) for one in frames for loop in self.loops.values()
            if loop.qualname == one.f_code.co_qualname
        ]  # fmt: skip
        self.at_top(stack, sys._getframe(1))


def read(function: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    found: list[Any] = []

    def look(stack: list[LoopFrame], frame: FrameType) -> None:
        found.extend((one.local, one.module) for one in read_all(stack, frame))

    script = Script(look)
    list(script.names[function]() or ()) if function == "generator" else script.names[function]()
    return found


def written(function: str, **values: Any) -> Any:
    """The result of `function` if its variables are given these values at its first top."""

    def put(stack: list[LoopFrame], frame: FrameType) -> None:
        told = read_all(stack, frame)
        for one in told:
            one.local.update({name: values[name] for name in one.local if name in values})
            one.module.update({name: values[name] for name in one.module if name in values})
        told[-1].local.update({k: v for k, v in values.items() if k not in one.module})
        write_all(told, stack, frame)

    script = Script(put)
    returned = script.names[function]()
    return list(returned) if function == "generator" else returned


def test_what_the_loops_bind_is_read_and_no_target_of_theirs() -> None:
    assert read("plain") == [({"count": 0, "text": "first"}, {})]
    assert read("late") == [({}, {})], "it is bound by nothing yet"
    assert read("of_module") == [({}, {"total": 0})]


def test_variables_of_a_function_are_written() -> None:
    assert written("plain", count=7, text="then") == (10, "then 0 1 2")
    assert written("untouched", limit=9) == 9
    assert written("generator", count=5) == [6, 7]


def test_a_variable_that_is_not_bound_yet_is_written() -> None:
    def run() -> Any:
        seen: list[Any] = []

        def put(stack: list[LoopFrame], frame: FrameType) -> None:
            frame_variables.write(frame, {"made": 8})
            seen.append(dict(frame.f_locals)["made"])

        script = Script(put)
        script.names["late"]()
        return seen

    assert run() == [8]


def test_cells_are_written_for_all_functions_that_share_them() -> None:
    assert written("closure", count=60) == 104
    assert written("inner", held=5) == 6


def test_variables_of_the_module_are_written_there() -> None:
    assert written("of_module", total=40) == 42


def test_the_functions_of_all_loops_around_are_served() -> None:
    assert [set(local) for local, _ in read("fit_it")] == [{"kept", "_Trainer__private"}, {"kept"}]


def test_a_module_s_own_loop() -> None:
    names: dict[str, Any] = {"count": 1, "found": None}
    code = compile("found = look(); after = count", "m.py", "exec")

    def look() -> int:
        frame_variables.write(sys._getframe(1), {"count": 5, "fresh": 6})
        return 1

    names["look"] = look
    exec(code, names)

    assert (names["after"], names["fresh"]) == (5, 6)


def test_another_function_than_theirs_is_refused() -> None:
    reasons: list[str] = []

    def put(stack: list[LoopFrame], frame: FrameType) -> None:
        told = read_all(stack, frame)
        try:
            write_all([*told, *told], stack, frame)
        except NotReachable as reason:
            reasons.append(str(reason))

    Script(put).names["plain"]()

    assert "are not those of the others" in reasons[0]


def test_what_the_test_of_a_while_binds_is_told_unless_it_is_an_item() -> None:
    tree = ast.parse("while (step := step + 1) < 9:\n    train()\n")
    [loop] = instrument(tree, "w.py", BackwardNames(frozenset({"train"}), frozenset())).loops

    assert names_bound([LoopFrame(loop, 1, tested={3: 0})]) == {"step"}
    assert names_bound([LoopFrame(loop, 1, tested={3: 1})]) == set()
