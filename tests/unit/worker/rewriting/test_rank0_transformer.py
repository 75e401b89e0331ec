"""Code that stands for rank 0 alone, and what its deputy makes of it."""

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest

from recoverrun.worker.instrumentation import RUNTIME_NAME
from recoverrun.worker.rewriting.rank0_transformer import transform
from recoverrun.worker.tracking.rank0_gate import Rank0Gate

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
    "if self._is_rank_zero: did('x')",
    "if rank in (-1, 0): did('x')",
    "if rank in {0}: did('x')",
    "if self.local_rank <= 0: did('x')",
    "if 1 > rank: did('x')",
    "if rank == 0 and self: did('x')",
    "def save():\n    if rank != 0: return\n    did('x')\nsave()",
    "def save():\n    if rank > 0: return\n    did('x')\nsave()",
    "def save():\n    if rank: return\n    did('x')\nsave()",
    "for one in [1]:\n    if not one or get_rank(): continue\n    did('x')",
    "def save():\n    if rank not in [-1, 0]: return\n    did('x')\nsave()",
    "def save():\n    if 1 <= rank: return\n    did('x')\nsave()",
    "if rank == 0:\n    if master_process: did('x')",
    "def save():\n    if not master_process: return None\n    did('x')\nsave()",
    "for one in [1]:\n    if False or rank != 0: continue\n    did('x')",
    "me = get_rank()\nif me == 0: did('x')",
    "R, W = get_rank(), 2\nif R == 0: did('x')",
    "r: int = int(environ.get('RANK', 0))\nif not r: did('x')",
    "r = int(environ['RANK']) if environ else 0\nif r < 1: did('x')",
    "me = n = rank\ndef save():\n    if n != 0: return\n    did('x')\nsave()",
    "self.me = get_rank()\nif self.me == 0: did('x')",
    "boss = True\nif environ: boss = get_rank() == 0\nif boss: did('x')",
    "R = get_rank()\nself.writes = not R\nif self.writes: did('x')",
    "boss = rank == 0\nother = boss\nif True and other: did('x')",
]

LEFT = [
    "if rank == 0: did('x')\nelse: pass",
    "if rank == 0:\n    did('x')\n    barrier()",
    "if rank == 1 and False: did('x')",
    "if lora_rank == 0: did('x')",
    "me = get_rank()\nfor me in [1]:\n    if me == 0: did('x')",
    "def f(me):\n    if me == 0: did('x')\nme = get_rank()\nf(1)",
    "me = get_rank() + 0\nif me == 0: did('x')",
    "boss = rank == 0\ndef f():\n    boss = False or None\n    if boss: did('x')\nf()",
    "self.boss = None\nboss = rank == 0\nif self.boss: did('x')",
    "boss = rank == 0 and False\nif boss: did('x')",
    "boss = self.local_rank == 0\nif boss: did('x')",  # of a dimension of a mesh, it may be
    "boss = rank == 0\nmatch 0:\n    case boss:\n        if boss: did('x')",
    "if other_rank == 0: did('x')",  # 7 is not our rank
    "if rank == 0 or False: did('x')",
    "if rank in (0, 1) and False: did('x')",
    "if rank in (0, 2): did('x')",
    "def save():\n    if self.local_rank: return\n    did('x')\nsave()",
    "if rank < 0: did('x')",
    "if 0 > rank: did('x')",
    "if is_maintained: did('x')",
    "def forward():\n    if rank == 0: did('x')\nforward()",
    "def save():\n    if rank != 0: return\n    did('x')\n    barrier()\nsave()",
    "def steps():\n    if rank == 0:\n        yield did('x')\nlist(steps())",
]


class Runtime(Rank0Gate):
    """Of rank 1, which is the deputy or is not."""

    def __init__(self, deputy: bool) -> None:
        super().__init__(own_rank=1)
        self.is_deputy = lambda: deputy
        self.standing_in = self._standing_in
        self.failed: list[str] = []
        self.given: list[object] = []

    def bring(self, value: object) -> None:
        self.given.append(value)

    @contextmanager
    def _standing_in(self, where: str) -> Iterator[None]:
        try:
            yield
        except ValueError:
            self.failed.append(where)


def run(source: str, deputy: bool) -> tuple[list[str], Runtime]:
    tree = ast.parse(dedent(source))
    transform(tree, "train.py")
    done: list[str] = []
    runtime = Runtime(deputy)
    names: dict[str, Any] = {
        RUNTIME_NAME: runtime,
        "did": done.append,
        "barrier": lambda: None,
        "dist": SimpleNamespace(
            broadcast_object_list=lambda said, root: None,
            scatter_object_list=lambda out, parts, src=0: None,
            scatter=lambda out, scatter_list: None,
        ),
        "out": None,
        "parts": None,
        "rank": 1,
        "lora_rank": 1,
        "other_rank": 7,
        "get_rank": lambda: 1,
        "environ": {"RANK": "1"},
        "master_process": False,
        "is_maintained": False,
        "self": SimpleNamespace(
            local_rank=1, gpu_id=1, is_main_process=lambda: False, _is_rank_zero=False
        ),
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


TOLD = "barrier(); dist.broadcast_object_list(said, 0)"

DECIDED = [
    ("said = [did('x') if rank == 0 else None]", ["said"]),
    ("said = [None if rank != 0 else did('x')]", ["said"]),
    ("if rank == 0:\n    said = [did('x')]\nelse:\n    said = [None]", ["said"]),
    ("if rank != 0:\n    said = [None]\nelse:\n    said = [did('x')]", ["said"]),
    ("if rank == 0: stop = did('x')\nif True:\n    said = [stop if rank == 0 else None]", ["said"]),
    ("said = [best if rank == 0 else None]", []),  # who knows how that came about
    ("said = [did('x') if master_process else None]", ["said"]),
    ("said = [did('x') if rank == 0 and True else None]", ["said"]),
    ("said = [best < 4 if rank == 0 else None]", ["said"]),
    ("said = [int(rank == 0 and best < 4)]", ["said"]),
    ("said = [rank == 0 and did('x')]", ["said"]),
    ("said = [rank != 0 or did('x')]", ["said"]),
]


@pytest.mark.parametrize(("source", "names"), DECIDED)
def test_a_choice_of_rank_0_is_made_once_more_where_it_is_told(
    source: str, names: list[str]
) -> None:
    whole = f"best = 3\n{source}\n{TOLD}"

    done, _ = run(whole, deputy=True)
    places = transform(ast.parse(whole), "train.py")

    assert done == (["x"] if "did" in source else [])
    written = {name for lone in places.values() for name in lone.writes}
    assert written - {"stop"} == set(names)
    assert run(whole, deputy=False)[0] == []


@pytest.mark.parametrize(
    "source",
    [
        "said = [did('x') if rank == 0 else did('y')]",
        "said = did([1 if rank == 0 else None])",
        "said = did(rank == 0 and best > 2)",
        "said = did('y') and rank == 0",
        "if rank == 0:\n    said = did('x')\nelse:\n    pause()",
        "if rank == 0:\n    said = did('x')\nelif master_process:\n    said = 1",
    ],
)
def test_a_choice_is_not_made_again_where_the_other_side_does_something(source: str) -> None:
    tree = ast.parse(f"{source}\n{TOLD}")

    transform(tree, "train.py")

    assert "stands_in" not in ast.unparse(tree)


def test_without_a_broadcast_a_choice_stays_as_it_is_unless_something_is_made() -> None:
    source = """
    for step in steps:
        color = red() if rank == 0 else None
    x = y if rank == 0 else 1
    """
    tree = ast.parse(dedent(source))

    transform(tree, "train.py")

    assert "stands_in" not in ast.unparse(tree)


def test_what_a_failed_call_may_have_changed_is_not_believed() -> None:
    source = """
    if rank == 0:
        stopper.update(loss)
        bar.set(loss)
        stop = stopper.stops
    said = [stop]
    """

    found = transform(ast.parse(dedent(source)), "train.py")

    taints = {where: lone.taints for where, lone in found.items() if lone.taints}
    assert taints == {"train.py:3": ("said", "stop", "stopper"), "train.py:4": ("bar",)}


def test_what_rank_0_makes_before_its_loop_can_be_made_again() -> None:
    source = """
    class Trainer:
        def __init__(self):
            if rank == 0:
                self.log = open(path, "w")
                files = File(path, mode="x")
            average = Average(model) if rank == 0 else None
            best = {"loss": 9.0} if rank == 0 else None
            size = width if rank == 0 else 0
            for one in many:
                if rank == 0:
                    last = one
    """

    found = transform(ast.parse(dedent(source)), "train.py")

    made = {making.name: making for lone in found.values() for making in lone.makes}
    assert {name: (one.function, one.needs) for name, one in made.items()} == {
        "self.log": ("Trainer.__init__", ("open", "path")),
        "files": ("Trainer.__init__", ("File", "path")),
        "average": ("Trainer.__init__", ("Average", "model")),
        "best": ("Trainer.__init__", ()),
    }
    tell = {"path": "here", "open": lambda *told: told, "File": lambda path, mode: mode}
    assert eval(made["self.log"].code, tell) == ("here", "a")
    assert eval(made["files"].code, tell) == "a"


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

    transform(tree, "train.py")

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

    found = transform(ast.parse(source), "train.py")

    assert {where: lone.writes for where, lone in found.items()} == {f"train.py:{line}": (*names,)}


ASKED = [
    "if rank == 0 and fail(): did('never')\ndid('x')",
    "if True and (rank == 0 and fail()): did('never')\ndid('x')",
    "if rank == 0 and master_process and fail(): did('never')\ndid('x')",
    "def save():\n    if rank != 0 or fail(): return\n    did('never')\nsave()\ndid('x')",
    "for one in [1]:\n    if rank != 0 or fail(): continue\n    did('never')\ndid('x')",
    "said = [did('never') if rank == 0 and fail() else 1]; dist.broadcast_object_list(said, 0)"
    "; did('x')",
]


@pytest.mark.parametrize("source", ASKED)
def test_what_rank_0_alone_asks_may_have_no_answer_elsewhere(source: str) -> None:
    asked = f"def fail(): raise ValueError\n{source}"

    done, runtime = run(asked, deputy=True)

    assert done == run(asked, deputy=False)[0] == ["x"]
    assert len(runtime.failed) == 1


def test_what_all_ranks_ask_comes_first_and_what_rank_0_asks_decides() -> None:
    source = """
    if did('all') is None and rank == 0 and (best := 3) and did('asked') is None and best < 4:
        did('done')
    def save(one):
        if did('again') or rank != 0 or one > 2: return
        did(one)
    save(2)
    save(3)
    """

    assert run(source, deputy=True)[0] == ["all", "asked", "done", "again", 2, "again"]
    assert run(source, deputy=False)[0] == ["all", "again", "again"]


READ = [
    ("x = did('x') if rank == 0 else None\nif rank == 0: did(x)", ["x", None]),
    ("def f():\n    x = None if rank != 0 else did('x')\n    if rank != 0: return\n    did(x)\nf()",
     ["x", None]),
    ("x = did('x') if rank == 0 else 1\ny = [x] if rank == 0 else 2\nif rank == 0: did(y)",
     ["x", [None]]),
    ("x = did('x') if rank == 0 else 1\nif rank == 0 and x is None: did('y')", ["x", "y"]),
    ("for _ in [1]:\n    x = did('x') if rank == 0 else 1\n    if x: did(x)", [1]),
    ("def f():\n    global x\n    for _ in [1]: x = did('x') if rank == 0 else 1\n"
     "    if rank == 0: did(x)\nf()", [1]),
    ("for _ in [1]:\n    x = did('x') if rank == 0 else 1\n    x += 1\n    if rank == 0: did(x)",
     [2]),
]  # fmt: skip


@pytest.mark.parametrize(("source", "done"), READ)
def test_a_choice_is_made_once_more_where_only_rank_0_reads_it(
    source: str, done: list[Any]
) -> None:
    assert run(source, deputy=True)[0] == done


def test_what_all_ranks_bind_in_loops_is_not_told_once() -> None:
    source = """
    for step in range(3):
        loss = evaluate() if rank == 0 else None
        if rank == 0:
            best = min(best, loss)
            save(folder, step, best)
    """

    found = transform(ast.parse(dedent(source)), "train.py")

    assert set(found["train.py:4"].reads) == {"best", "folder", "min", "save"}


@pytest.mark.parametrize(
    "source",
    [
        "dist.scatter_object_list(out, did('x') if rank == 0 else None, src=0)",
        "dist.scatter_object_list(out, None if rank != 0 else [did('x')])",
        "dist.scatter(out, scatter_list=did('x') if rank == 0 and True else None)",
        "if rank == 0: parts = did('x')\ndist.scatter(out, parts if rank == 0 else None)",
    ],
)
def test_what_rank_0_gives_to_a_scatter_is_brought_for_it(source: str) -> None:
    done, runtime = run(source, deputy=True)
    others, other = run(source, deputy=False)

    assert (done, len(runtime.given)) == (["x"], 1)
    assert (others, len(other.given)) == ([], 0)


def test_what_all_ranks_have_is_not_brought() -> None:
    _, runtime = run("dist.scatter(out, parts if rank == 0 else None)", deputy=True)

    assert runtime.given == []
