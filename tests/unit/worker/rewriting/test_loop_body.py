"""A body executed as a region does what one iteration of the loop does."""

import ast
import textwrap
from collections.abc import Mapping
from types import CodeType
from typing import Any

import pytest

from recoverrun.worker.analysis.call_graph import BackwardNames
from recoverrun.worker.instrumentation import EXIT_NAME, ITEM_NAME, RUNTIME_NAME, Loop
from recoverrun.worker.rewriting.loop_body import mangled
from recoverrun.worker.rewriting.loop_transformer import instrument

HOT = BackwardNames(frozenset({"backward"}), frozenset())
NAMES = "abcde"


class Unwind(BaseException):
    pass


class Runtime:
    Unwind = Unwind


class Model:
    """Has a backward, and remembers what happened in which order."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def backward(self, value: object = None) -> None:
        self.seen.append(value)


class Manager:
    """A context manager that notes whether it was left by an exception."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def __enter__(self) -> int:
        return 7

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # A function says UnboundLocalError where a module says NameError.
        self.model.seen.append(NameError if kind is UnboundLocalError else kind)


def _loops(source: str) -> list[Loop]:
    return list(instrument(ast.parse(source), "s.py", HOT).loops)


def _outcome(error: BaseException) -> str:
    if isinstance(error, Unwind):
        return str(error)
    return "NameError" if isinstance(error, NameError) else type(error).__name__


def _execute(code: CodeType, namespace: dict[str, Any]) -> str:
    try:
        exec(code, namespace)
    except BaseException as error:
        # Whatever a generated program raises is an outcome to compare.
        return _outcome(error)
    return "end"


def _natively(body: str, model: Model, start: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Run the body in a loop of a function; return how it was left, and the names afterwards."""
    source = f"""\
def run(model, Manager, snapshot, {", ".join(NAMES)}):
    way = "return"
    try:
        for item in (7,):
{textwrap.indent(body, " " * 12)}
            way = "end"
            break
        else:
            way = "continue"
        if way == "return":
            way = "break"
    finally:
        snapshot.update(locals())
"""
    namespace: dict[str, Any] = {}
    exec(compile(source, "native", "exec"), namespace)
    snapshot: dict[str, Any] = {}
    try:
        namespace["run"](model, Manager, snapshot, **start)
    except BaseException as error:
        # As above.
        return _outcome(error), snapshot
    return snapshot["way"], snapshot


def _loop_of(body: str) -> Loop:
    source = (
        f"def run({', '.join(NAMES)}):\n    for item in (7,):\n{textwrap.indent(body, ' ' * 8)}"
    )
    return _loops(source)[0]


def _as_region(loop: Loop, model: Model, start: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    assert loop.item_code is not None
    assert loop.body_code is not None, loop.refusal
    namespace = {**start, "model": model, "Manager": Manager}
    namespace |= {RUNTIME_NAME: Runtime, ITEM_NAME: 7}
    exec(loop.item_code, namespace)
    return _execute(loop.body_code, namespace), namespace


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in NAMES if name in values}


FINALLY = {
    "a jump calls off a return": (
        "for i in 1, 2:\n    try:\n        return\n    finally:\n        continue\n",
        "end",
    ),
    "a jump within does not": (
        "try:\n    return\nfinally:\n    for i in 1, 2:\n        break\n",
        "return",
    ),
    "an error calls off a return": (
        "try:\n    try:\n        return\n    finally:\n        1 / 0\n"
        "except ZeroDivisionError:\n    a = 5\n",
        "end",
    ),
    "and then a jump in the handler": (
        "for i in 1, 2:\n    try:\n        try:\n            return\n        finally:\n"
        "            1 / 0\n    except ZeroDivisionError:\n        break\n",
        "end",
    ),
    "a manager calls off a return": (
        "from contextlib import suppress\nwith suppress(ZeroDivisionError):\n    try:\n"
        "        return\n    finally:\n        1 / 0\n",
        "end",
    ),
    "a return calls off a jump": (
        "try:\n    continue\nfinally:\n    if a:\n        return\n",
        "return",
    ),
    "a return from two loops": (
        "for i in 1, 2:\n    for j in 1, 2:\n        return\n    else:\n        a = 9\n"
        "    b = 9\nelse:\n    c = 9\nd = 9\n",
        "return",
    ),
    "a jump of the else": ("for i in 1, 2:\n    pass\nelse:\n    break\na = 9\n", "break"),
    "a jump through a manager": ("with Manager(model):\n    continue\n", "continue"),
}


@pytest.mark.parametrize(("body", "way"), FINALLY.values(), ids=FINALLY)
def test_ways_out(body: str, way: str) -> None:
    start = {"a": 1, "b": 2, "c": 3, "d": 4, "e": 0}
    native_model, region_model = Model(), Model()
    body = f"model.backward()\n{body}"

    native = _natively(body, native_model, start)
    region = _as_region(_loop_of(body), region_model, start)

    assert region[0] == native[0] == way
    assert _plain(region[1]) == _plain(native[1])
    assert region_model.seen == native_model.seen


def test_a_way_out_from_deep_inside_a_finally_is_refused() -> None:
    body = "try:\n    x.backward()\nfinally:\n    for i in y:\n        return\n"
    (loop,) = _loops(f"def f():\n    for x in y:\n{textwrap.indent(body, ' ' * 8)}")

    assert "a `finally` is left from deep inside" in loop.refusal


METHOD = """\
class Base:
    def twice(self, x): return 2 * x
    @classmethod
    def name(cls): return cls.__name__

class _Trainer__(Base):
    __count = 5
    def twice(self, x): raise AssertionError
    def __scale(self, __x): return __x + self.__count
    def run(self, item):
        for self.__item, __y in [item]:
            loss = model.backward()
            __total = super().twice(__y) + self.__scale(3)
            def inner(me, __k=1):
                nonlocal __total
                __total += __k + super().twice(100)
                return [super(Base, me).__class__ for me in (me,)]
            kinds = inner(self)
            class __Nested(Base):
                __own = 1
                def twice(self, x): return super().twice(x) + self.__own
            nested = __Nested().twice(1000)
            try:
                import os as __os
                raise ValueError
            except ValueError as __error:
                caught = repr(__error)
            f = lambda __z: super().twice(__z)
            result = __total, nested, caught, f"{__y!r:>{__total}}", dict(__k=__y)
        return result
"""


def test_a_body_of_a_method_means_the_same_outside_of_its_class() -> None:
    (loop,) = _loops(METHOD)
    module: dict[str, Any] = {"model": Model()}
    exec(compile(METHOD, "m.py", "exec"), module)
    trainer = module["_Trainer__"]()
    expected = trainer.run((1, 2))
    local = {"self": trainer, "__class__": module["_Trainer__"], ITEM_NAME: (3, 2)}
    namespace = {**module, **local, RUNTIME_NAME: Runtime}
    assert loop.item_code is not None
    assert loop.body_code is not None

    exec(loop.item_code, namespace)
    exec(loop.body_code, namespace)

    assert namespace["result"] == expected
    assert vars(trainer)["_Trainer____item"] == 3
    assert loop.targets == {"_Trainer____y"}
    assert {"_Trainer____total", "_Trainer____os", "_Trainer____Nested"} <= loop.assigned


@pytest.mark.parametrize("class_name", ["C", "_C", "__C__", "__", "C_"])
@pytest.mark.parametrize("name", ["__x", "__x_", "__x__", "_x", "x", "___", "____", "__x.y"])
def test_names_are_mangled_as_the_compiler_does(class_name: str, name: str) -> None:
    if "." in name:
        assert mangled(name, class_name) == name
        return
    namespace: dict[str, Any] = {}
    exec(f"class {class_name}:\n    {name} = 1", namespace)

    assert mangled(name, class_name) in vars(namespace[class_name])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("z = [i async for i in x]", "(async comprehension)"),
        ("async with x: pass", "(async with)"),
        ("exec('a = 1')", "exec() without a namespace"),
    ],
)
def test_what_cannot_be_executed_again_is_refused(body: str, words: str) -> None:
    (loop,) = _loops(f"async def f():\n    for x in y:\n        x.backward()\n        {body}\n")

    assert words in loop.refusal
    assert loop.body_code is None


def test_what_a_nested_function_does_is_no_reason_to_refuse() -> None:
    source = "for x in y:\n    x.backward()\n    def g(): yield 1\n    async def h(): await x\n"
    (loop,) = _loops(source)

    assert not loop.refusal


def test_import_star_is_refused() -> None:
    (loop,) = _loops("for x in y:\n    x.backward()\n    from m import *\n")

    assert "import *" in loop.refusal


def test_a_hook_unwinds_through_a_bare_except() -> None:
    source = "for x in y:\n    try:\n        x.backward()\n    except:\n        caught = 1\n"
    (loop,) = _loops(source)

    class Hook:
        def backward(self) -> None:
            raise Unwind("enough")

    namespace: dict[str, Any] = {"x": Hook(), RUNTIME_NAME: Runtime}
    assert loop.body_code is not None

    assert _execute(loop.body_code, namespace) == "enough"
    assert "caught" not in namespace


def test_a_traceback_of_a_region_shows_the_lines_of_the_source() -> None:
    (loop,) = _loops("\n\nfor x in y:\n    x.backward()\n    if x:\n        1 / 0\n")
    namespace: dict[str, Any] = {"x": Model(), RUNTIME_NAME: Runtime}
    assert loop.body_code is not None

    with pytest.raises(ZeroDivisionError) as caught:
        exec(loop.body_code, namespace)

    assert caught.traceback[-1].lineno == 5  # counted from 0
    assert str(caught.traceback[-1].path).endswith("s.py")
    assert namespace[EXIT_NAME] == ""
