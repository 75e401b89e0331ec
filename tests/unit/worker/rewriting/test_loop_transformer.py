"""The record of a loop, and what instrumentation leaves as it was."""

import ast
import dis
import inspect
import types
from collections.abc import Iterator
from typing import Any

import pytest

from recoverrun.worker.analysis.call_graph import BackwardNames
from recoverrun.worker.data.generator_wrapper import same_kind
from recoverrun.worker.instrumentation import RUNTIME_NAME, Loop
from recoverrun.worker.rewriting.loop_transformer import (
    CannotInstrument,
    Instrumented,
    instrument,
)
from tests.unit.call_graphs import graph_of

HOT = BackwardNames(frozenset({"backward"}), frozenset())

TRAINER = """\
total = 0
for epoch in range(3):
    for batch in loader:
        total += batch.backward()

class Trainer:
    def fit(self, loader):
        global total
        count = 0
        while (batch := next(loader, None)) is not None:
            count += 1
            total = total + count
            loss = batch.backward()
        def inner():
            for self.x, (y, *z) in loader:
                y.backward()
"""


def _instrument(source: str) -> Instrumented:
    tree = ast.parse(source)
    return instrument(tree, "dir/s.py", graph_of(tree).backward_names())


def _loop(source: str, line: int) -> Loop:
    (loop,) = [loop for loop in _instrument(source).loops if loop.line == line]
    return loop


def test_a_loop_of_the_module() -> None:
    loop = _loop(TRAINER, 3)

    assert (loop.id, loop.kind, loop.filename) == ("dir/s.py:3", "for", "dir/s.py")
    assert loop.module_level
    assert loop.qualname == "<module>"
    assert loop.assigned == loop.carried == loop.global_names == {"total"}
    assert loop.live_in == {"total", "batch"}
    assert loop.targets == {"batch"}
    assert not loop.refusal


def test_an_outer_loop_carries_what_its_inner_loops_carry() -> None:
    loop = _loop(TRAINER, 2)

    assert loop.assigned == {"batch", "total"}
    assert loop.carried == {"total"}
    assert loop.targets == {"epoch"}


def test_a_loop_of_a_method() -> None:
    loop = _loop(TRAINER, 10)

    assert loop.kind == "while"
    assert not loop.module_level
    assert loop.qualname == "Trainer.fit"
    assert loop.assigned == {"count", "total", "loss"}
    assert loop.carried == {"count", "total"}
    assert not loop.targets, "what the condition binds is no item"
    assert loop.global_names == {"total"}
    assert loop.item_code is None


def test_a_loop_of_a_nested_function() -> None:
    loop = _loop(TRAINER, 15)

    assert loop.qualname == "Trainer.fit.<locals>.inner"
    assert loop.targets == {"y", "z"}
    assert loop.live_in == {"y"}


def test_item_code_binds_the_target() -> None:
    loop = _loop(TRAINER, 15)
    owner = types.SimpleNamespace()
    namespace: dict[str, Any] = {"self": owner, "__recoverrun_item__": (1, (2, 3, 4))}
    assert loop.item_code is not None

    exec(loop.item_code, namespace)

    assert (owner.x, namespace["y"], namespace["z"]) == (1, 2, [3, 4])


def _positions(code: types.CodeType) -> dict[int, set[object]]:
    """Map each line to the positions of its instructions, without those of our own names."""
    lines: dict[int, set[object]] = {}
    codes = [code]
    while codes:
        current = codes.pop()
        codes += [c for c in current.co_consts if isinstance(c, types.CodeType)]
        for instruction in dis.get_instructions(current):
            place = instruction.positions
            if place is not None and place.lineno is not None:
                lines.setdefault(place.lineno, set()).add((*place, instruction.opname))
    return lines


def test_lines_that_are_not_headers_keep_every_position() -> None:
    source = TRAINER
    headers = {2, 3, 10, 15}

    before = _positions(compile(source, "s.py", "exec"))
    after = _positions(_instrument(source).code)

    assert before.keys() == after.keys()
    for line in before.keys() - headers:
        # EXTENDED_ARG and COPY_FREE_VARS depend on how far jumps go and what cells there are.
        assert before[line] == after[line], f"line {line}"


def test_what_reaches_no_backward_compiles_to_the_same() -> None:
    source = "for x in y:\n    print(x)\nwhile x:\n    pass\ndef f(): return [i for i in x]\n"

    result = _instrument(source)

    assert not result.changed
    assert result.code == compile(source, "dir/s.py", "exec")


@pytest.mark.parametrize(
    "source",
    [
        "@deco\ndef g():\n    yield 1\n",
        "class C:\n    def __iter__(self):\n        yield 1\n",
        "async def g():\n    yield 1\n",
        "def f():\n    return (x for x in y)\n",
        "def f():\n    return lambda: (yield)\n",
        "def train():\n    for x in y:\n        x.backward()\n        yield x\n",
    ],
)
def test_what_is_no_plain_source_of_data_is_not_decorated(source: str) -> None:
    assert _instrument(source).generators == 0


def test_generators_are_decorated_wherever_they_are() -> None:
    source = (
        "def g():\n    yield 1\n"
        "class C:\n    def h(self):\n        def i():\n            yield\n        yield from i()\n"
    )

    assert _instrument(source).generators == 3


@pytest.mark.parametrize("kind", ["staticmethod", "classmethod"])
def test_generators_that_are_called_through_a_class_stay_so(kind: str) -> None:
    first = "" if kind == "staticmethod" else "cls, "
    source = f"class C:\n    @{kind}\n    def g({first}n):\n        yield n\n"
    names: dict[str, Any] = {RUNTIME_NAME: (runtime := Decorating())}
    exec(_instrument(source).code, names)

    assert list(names["C"].g(3)) == [3] and runtime.decorated == ["g"]


class Decorating:
    def __init__(self) -> None:
        self.decorated: list[str] = []

    def generator(self, function: Any) -> Any:
        self.decorated.append(function.__name__)
        return function


def test_a_generator_that_trains_says_where_it_waits() -> None:
    source = "def train():\n    for x in y:\n        x.backward()\n        yield x\n"

    (loop,) = _instrument(source).loops

    assert not loop.refusal
    reason = (
        "dir/s.py:4: the loop body waits here (yield), "
        "so that it cannot be executed again on its own"
    )
    assert loop.waits == ((4, reason),)


def test_an_async_for_is_met_but_refused() -> None:
    (loop,) = _instrument("async def f():\n    async for x in y:\n        x.backward()\n").loops

    assert loop.kind == "async for"
    assert "async for" in loop.refusal


@pytest.mark.parametrize("name", ["locals", "globals", "__recoverrun__"])
@pytest.mark.parametrize("form", ["{} = 1", "def f({}): pass", "import a as {}", "def {}(): pass"])
def test_a_module_that_takes_our_names_is_left_alone(name: str, form: str) -> None:
    source = f"for x in y:\n    x.backward()\n{form.format(name)}\n"

    with pytest.raises(CannotInstrument, match=name):
        _instrument(source)


def test_future_flags_reach_the_region() -> None:
    source = (
        "from __future__ import annotations\n"
        "for x in y:\n    x.backward()\n    def f(a: nope): ...\n"
    )
    (loop,) = _instrument(source).loops
    namespace: dict[str, Any] = {"x": types.SimpleNamespace(backward=lambda: None)}
    assert loop.body_code is not None

    exec(loop.body_code, namespace)

    assert namespace["f"].__annotations__ == {"a": "nope"}


def test_a_stand_in_for_a_generator_cannot_be_told_from_it() -> None:
    def numbers(n: int, *, step: int = 1) -> Iterator[int]:
        """Count."""
        yield from range(0, n, step)

    calls = []

    def serve(n: int, *, step: int = 1) -> Iterator[int]:
        calls.append(n)
        return numbers(n, step=step)

    stand_in = same_kind(numbers, serve)
    running = stand_in(4, step=2)

    assert inspect.isgeneratorfunction(stand_in)
    assert inspect.isgenerator(running)
    assert inspect.signature(stand_in) == inspect.signature(numbers)
    assert (stand_in.__name__, stand_in.__doc__) == ("numbers", "Count.")
    assert calls == [], "nothing runs before the first next()"
    assert list(running) == [0, 2]
    assert calls == [4]
