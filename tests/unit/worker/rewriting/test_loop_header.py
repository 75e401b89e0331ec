"""The call in a loop's header, made once more without being called."""

import ast
from typing import Any

import pytest

from recoverrun.worker.rewriting.loop_header import call_in
from recoverrun.worker.rewriting.loop_transformer import instrument
from tests.unit.call_graphs import graph_of


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def batches(*given: Any, **named: Any) -> None:
    raise AssertionError("nobody calls it")


@pytest.mark.parametrize(
    ("text", "arguments", "keywords"),
    [
        ("batches(rows, rank)", ([1, 2], 1), {}),
        ("batches(rows[rank:], 10 * epoch + rank)", ([2], 31), {}),
        ("batches(*rows, seed=-rank if epoch else 0)", (1, 2), {"seed": -1}),
        ("batches(len(rows), **{})", None, None),
        ("batches(rank=rank, **more)", (), {"rank": 1, "more": 5}),
        ("enumerate(batches(rank), 1)", (1,), {}),
        ("enumerate(enumerate(batches(min(rank, 0))))", (0,), {}),
    ],
)
def test_what_a_plain_call_is_given(text: str, arguments: Any, keywords: Any) -> None:
    names = {"batches": batches, "rows": [1, 2], "rank": 1, "epoch": 3, "more": {"more": 5}}

    call = call_in(_expression(text))

    if arguments is None:
        assert call is None
        return
    assert call is not None
    found = eval(compile(ast.Expression(call), "t.py", "eval"), names)
    assert found == (batches, arguments, keywords)


@pytest.mark.parametrize(
    "text",
    [
        "rows",
        "range(rank)",  # Python's own
        "enumerate(rows)",
        "batches(shuffled(rows))",
        "batches(next(seeds))",
        "batches(rows := 3)",
        "batches([row for row in rows])",
        "feeds().batches(rank)",
    ],
)
def test_what_is_no_plain_call(text: str) -> None:
    assert call_in(_expression(text)) is None


def test_a_loop_has_the_call_that_it_goes_over_with_names_as_its_function_has_them() -> None:
    source = """
class Trainer:
    def fit(self, model):
        for x in self.__batches(self.rows, self.rank):
            model(x).backward()
"""
    tree = ast.parse(source)
    (loop,) = instrument(tree, "t.py", graph_of(ast.parse(source)).backward_names()).loops

    assert loop.header_code is not None
    assert loop.header_names == {"self", "_Trainer__batches", "rows", "rank"}
