"""Code of rank 0 alone may fail in a body that is executed as rank 0 elsewhere."""

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import dedent, indent
from typing import Any

import pytest

from recoverrun.worker.analysis.call_graph import BackwardNames
from recoverrun.worker.instrumentation import RUNTIME_NAME
from recoverrun.worker.rewriting.loop_transformer import instrument

TRAINS = BackwardNames(frozenset({"backward"}), frozenset())


class Unwind(BaseException):
    pass


class Runtime:
    Unwind = Unwind

    def __init__(self) -> None:
        self.failed = 0

    @contextmanager
    def beside(self) -> Iterator[None]:
        try:
            yield
        except ValueError:
            self.failed += 1


def execute(body: str) -> tuple[list[object], int, str]:
    """Runs the body of a loop as rank 0: its effects, the failures beside it, and the way out."""
    text = f"while True:\n{indent(dedent(body), '    ')}\n    backward()\n"
    (loop,) = instrument(ast.parse(text), "train.py", TRAINS).loops
    assert loop.body_code is not None, loop.refusal
    done: list[object] = []

    def fail() -> None:
        raise ValueError("only rank 0 has it")

    runtime = Runtime()
    names: dict[str, Any] = {
        RUNTIME_NAME: runtime, "did": done.append, "fail": fail, "rank": 0, "step": 9,
        "backward": lambda: done.append("end"), "barrier": fail,
    }  # fmt: skip
    try:
        exec(loop.body_code, names)
    except Unwind as left:
        return done, runtime.failed, str(left)
    return done, runtime.failed, ""


@pytest.mark.parametrize(
    "body",
    [
        "if rank == 0: did('a'); fail(); did('never')",
        "if step and rank == 0 and did('a') is None and fail(): did('never')",
        "for one in [1]:\n    if rank == 0 and step % 3 == 0:\n        did('a'); fail()",
        "try:\n    pass\nfinally:\n    if not rank:\n        did('a'); fail()",
    ],
)
def test_what_rank_0_does_alone_ends_itself(body: str) -> None:
    assert execute(body) == (["a", "end"], 1, "")


@pytest.mark.parametrize("test", ["rank != 0", "step < 3 or rank != 0", "rank > 0 or did('a')"])
def test_what_others_pass_over_may_fail(test: str) -> None:
    body = f"for one in [1]:\n    if {test}: continue\n    did('b')\n    fail()"

    done, failed, left = execute(body)

    assert ([one for one in done if one != "a"], failed, left) == (["b", "end"], 1, "")


def test_the_loop_is_left_from_within() -> None:
    assert execute("if rank == 0 and step == 9:\n    did('a')\n    break") == (["a"], 0, "break")


@pytest.mark.parametrize(
    "body",
    ["if rank == 0: did('a'); fail()\nelse: pass", "if rank == 0:\n    barrier()", "fail()"],
)
def test_what_all_ranks_do_is_no_less_an_error(body: str) -> None:
    with pytest.raises(ValueError, match="only rank 0"):
        execute(body)
