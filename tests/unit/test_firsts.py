"""What stands for rank 0 alone, and what its deputy makes of it."""

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest

from recoverrun.hooks.deputy import FirstRank
from recoverrun.hooks.firsts import hand_on
from recoverrun.hooks.script import RUNTIME_NAME

HANDED_ON = [
    "if rank == 0: did('x')",
    "if 0 == rank: did('x')",
    "if not rank: did('x')",
    "if get_rank() == 0: did('x')",
    "if int(environ['RANK']) == 0: did('x')",
    "if environ['RANK'] == '0': did('x')",
    "if self.local_rank == 0: did('x')",
    "if self.gpu_id == 0 and True: did('x')",
    "if True and master_process: did('x')",
    "if self.is_main_process(): did('x')",
    "if rank == 0 and self: did('x')",
    "def save():\n    if rank != 0: return\n    did('x')\nsave()",
    "def save():\n    if rank > 0: return\n    did('x')\nsave()",
    "def save():\n    if not master_process: return None\n    did('x')\nsave()",
    "for one in [1]:\n    if False or rank != 0: continue\n    did('x')",
]

LEFT = [
    "if rank == 0: did('x')\nelse: pass",
    "if rank == 0:\n    did('x')\n    barrier()",
    "if rank == 1 and False: did('x')",
    "if lora_rank == 0: did('x')",
    "if other_rank == 0: did('x')",  # 7 is not our rank
    "if rank == 0 or False: did('x')",
    "if is_main: did('x')",
    "def forward():\n    if rank == 0: did('x')\nforward()",
    "def save():\n    if rank != 0: return\n    did('x')\n    barrier()\nsave()",
    "def steps():\n    if rank == 0:\n        yield did('x')\nlist(steps())",
]


class Runtime(FirstRank):
    """Of rank 1, which is the deputy or is not."""

    def __init__(self, deputy: bool) -> None:
        super().__init__(own_rank=1)
        self.is_deputy = lambda: deputy
        self.standing_in = self._standing_in
        self.failed: list[str] = []

    @contextmanager
    def _standing_in(self, where: str) -> Iterator[None]:
        try:
            yield
        except ValueError:
            self.failed.append(where)


def run(source: str, deputy: bool) -> tuple[list[str], Runtime]:
    tree = ast.parse(dedent(source))
    hand_on(tree, "train.py")
    done: list[str] = []
    runtime = Runtime(deputy)
    names: dict[str, Any] = {
        RUNTIME_NAME: runtime,
        "did": done.append,
        "barrier": lambda: None,
        "rank": 1,
        "lora_rank": 1,
        "other_rank": 7,
        "get_rank": lambda: 1,
        "environ": {"RANK": "1"},
        "master_process": False,
        "is_main": False,
        "self": SimpleNamespace(local_rank=1, gpu_id=1, is_main_process=lambda: False),
    }
    exec(compile(tree, "train.py", "exec"), names)
    return done, runtime


@pytest.mark.parametrize("source", HANDED_ON)
def test_the_deputy_does_what_stands_for_rank_0(source: str) -> None:
    assert run(source, deputy=True)[0] == ["x"]
    assert run(source, deputy=False)[0] == []


@pytest.mark.parametrize("source", LEFT)
def test_what_others_answer_to_or_means_something_else_is_left(source: str) -> None:
    assert run(source, deputy=True)[0] == []
    assert run(source, deputy=False)[0] == []


def test_a_call_by_itself_that_fails_ends_itself_alone() -> None:
    done, runtime = run(
        """
        def fail(): raise ValueError
        if rank == 0:
            fail()
            if True:
                fail()
            did("saved")
            state = fail()
            did("never")
        did("after")
        """,
        deputy=True,
    )

    assert done == ["saved", "after"]
    assert runtime.failed == ["train.py:4", "train.py:6", "train.py:3"]


def test_positions_stay_those_of_the_text() -> None:
    tree = ast.parse("\n\nif rank == 0:\n    did(\n        'x')\n")

    hand_on(tree, "train.py")

    compile(tree, "train.py", "exec")
    assert {node.lineno for node in ast.walk(tree) if hasattr(node, "lineno")} == {3, 4, 5}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("if rank == 0: best = did('x')", ["best"]),
        ("if rank == 0: best, (self.last, _) = did('x')", ["_", "best", "self.last"]),
        ("if rank == 0: stop[0] = 1", ["stop"]),
        ("if rank == 0: stop += 1", ["stop"]),
        ("if rank == 0: self.stop.fill_(1)", ["self.stop"]),
        ("if rank == 0: torch.add(a, b, out=total)", ["total"]),
        ("if rank == 0:\n    for one in did('x'):\n        last = one", ["last", "one"]),
        ("if rank == 0: did(best); best.__len__(); best.item()", []),
        ("if rank == 0: stop = 1\nflag = tensor([stop])\nother = 2", ["flag", "stop"]),
        ("flag = tensor([stop])\nif rank == 0: stop = 1", ["stop"]),
        ("for one in [1]:\n    if rank != 0: continue\n    best = one", ["best"]),
    ],
)
def test_what_comes_of_code_for_rank_0_is_told_by_name(source: str, names: list[str]) -> None:
    line = next(at for at, text in enumerate(source.split("\n"), 1) if "rank" in text)

    found = hand_on(ast.parse(source), "train.py")

    assert {where: lone.writes for where, lone in found.items()} == {f"train.py:{line}": (*names,)}
