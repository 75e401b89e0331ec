"""The `while` loops that count their own turns."""

import ast

import pytest

from recoverrun.worker.rewriting.counting_loops import counter_of


def _counter(code: str) -> tuple[str, str] | None:
    return counter_of(ast.parse(code).body[0])


@pytest.mark.parametrize(("limit"), ["100", "steps", "args.max_steps", "self.config.train.steps"])
def test_a_loop_that_counts_up_to_something_plain_is_found(limit: str) -> None:
    assert _counter(f"while step < {limit}:\n    train()\n    step += 1") == ("step", limit)


@pytest.mark.parametrize(
    "code",
    [
        "while True:\n    step += 1",
        "while step < n:\n    step += 2",
        "while step < n:\n    other += 1",
        "while step <= n:\n    step += 1",
        "while step < n:\n    step += 1\n    step += 1",
        "while step < n:\n    if ok:\n        step += 1",
        "while step < limit():\n    step += 1",
        "while step < limits[0]:\n    step += 1",
        "while 0 < step < n:\n    step += 1",
        "for step in range(n):\n    step += 1",
    ],
)
def test_no_other_loop_is(code: str) -> None:
    assert _counter(code) is None
