"""Code that is executed again comes to an end where the script would wait for its caller."""

from types import SimpleNamespace
from typing import Any

import pytest

from recoverrun.worker.instrumentation import RUNTIME_NAME
from tests.unit.worker.rewriting.test_loop_body import Runtime, _loops


@pytest.mark.parametrize("body", ["yield x", "z = 1 + (await x)"])
def test_a_place_where_the_script_waits_ends_what_is_executed_again(body: str) -> None:
    kind = "def" if "yield" in body else "async def"
    lines = (
        "    for x in y:",
        "        z = 0",
        f"        {body}",
        "        z = 2; x.backward()",
        "",
    )
    source = "\n".join((f"{kind} f():", *lines))
    (loop,) = _loops(source)
    told = list[str]()

    def waits(reason: str, _value: object = None) -> None:
        told.append(reason)
        raise Runtime.Unwind("wait")

    runtime = SimpleNamespace(waits=waits, Unwind=Runtime.Unwind)
    names: dict[str, Any] = {RUNTIME_NAME: runtime, "x": 0}
    assert loop.body_code is not None and not loop.refusal
    with pytest.raises(Runtime.Unwind):
        exec(loop.body_code, names)

    assert names["z"] == 0
    word = next(word for word in ("yield", "await") if word in body)
    sentence = f"s.py:4: the loop body waits here ({word}), so that it cannot be executed again"
    assert told == [f"{sentence} on its own"] == [reason for _, reason in loop.waits]


def test_what_is_handed_over_comes_before_the_wait() -> None:
    (loop,) = _loops("def f():\n    for x in y:\n        yield x.backward()\n")
    done = list[str]()
    runtime = SimpleNamespace(waits=lambda reason, value: done.append("waits"))
    names: dict[str, Any] = {
        RUNTIME_NAME: runtime,
        "x": SimpleNamespace(backward=lambda: done.append("backward")),
    }

    assert loop.body_code is not None
    exec(loop.body_code, names)

    assert done == ["backward", "waits"]


def test_a_generator_that_yields_nothing_is_no_place_where_the_script_waits() -> None:
    source = "def f():\n    for x in y:\n        z = yield from x\n        z.backward()\n"
    (loop,) = _loops(source)
    told = list[Any]()

    def drained(reason: str, delegate: Any) -> Any:
        told.append((reason, delegate))
        return SimpleNamespace(backward=lambda: told.append("backward"))

    runtime = SimpleNamespace(drained=drained, Unwind=Runtime.Unwind)

    assert loop.body_code is not None and loop.waits == ((3, ""),)
    exec(loop.body_code, {RUNTIME_NAME: runtime, "x": "delegate"})

    (reason, delegate), last = told
    assert delegate == "delegate" and last == "backward"
    assert reason.startswith("s.py:3: the loop body waits here (yield from)")
