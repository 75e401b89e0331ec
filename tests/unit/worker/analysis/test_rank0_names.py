"""Names that rank 0 alone gives values to, as a script's text tells them."""

import ast
from textwrap import dedent

import pytest

from recoverrun.worker.analysis.rank0_names import Rank0Names, rank0_names

BEGINS = """
rank = dist.get_rank()
"""


def names_of(*texts: str) -> Rank0Names:
    return rank0_names(ast.parse(BEGINS + dedent(text)) for text in texts)


@pytest.mark.parametrize(
    "text",
    [
        "best = None\nif rank == 0: best = f()",
        "best = None\nif rank == 0 and (best is None or loss < best.loss): best = f()",
        "if dist.get_rank() == 0:\n    best = f()",
        "def log():\n    global best\n    if rank != 0: return\n    best = f()",
        "for x in y:\n    if rank > 0: continue\n    best = f()",
        "best = f() if rank == 0 else None",
        "best = []\nif rank == 0: best.append(1)",
        "best = {}\nif rank == 0: best[x] = 1",
        "best = None\n@rank_zero_only\ndef log():\n    global best\n    best = f()",
        "best = None\ndef log():\n    global best\n    best = f()\nif rank == 0: log()",
        "best = 0\nif rank == 0: best += 1",
        "best = None\nif is_main_process(): best = f()",
        "best = None\nif accelerator.is_local_main_process: best = f()",
        "best = None\nif local_rank == 0: best = f()",
        "best, last = None, None\nif rank == 0: best, last = f()",
        "best = None\nif rank == 0: best = f()\nif best is not None: best.count += 1",
        "def is_main():\n    return dist.get_rank() == 0\nbest = None\nif is_main(): best = f()",
    ],
)
def test_what_code_for_rank_0_alone_binds_is_rank_0s(text: str) -> None:
    assert "best" in names_of(text).variables


@pytest.mark.parametrize(
    "text",
    [
        "best = None\nif rank == 1: best = f()",
        "best = None\nif shard_rank == 0: best = f()",
        "best = None\nif rank == 0: best = f()\nelse: best = g()",
        "best = f() if rank == 0 else g()",
        "best = f()\nif rank == 0: best = g()",
        "best = None\nif rank == 0: best = f()\nif x: best = 0",
        "best = []\nif rank == 0: best.append(1)\nbest.append(2)",
        "best = []\nif rank == 0: best.append(1)\nf(best)",
        "best = None\nif rank == 0: best = f()\nfor best in x: pass",
        "best = None\nif rank == 0: best = f()\nwith x as best: pass",
        "best = None\nif rank == 0: best = f()\ndef g(best): pass",
        "best = None\nif rank == 0: best = f()\ndel best",
        "best = None\nif rank == 0: best = f()\nmatch x:\n    case best: pass",
        "best = 0\nif rank == 0: best += 1\nbest += 1",
        "best = None\nif rank == 0 or x: best = f()",
        "best = None\nif rank == 0: log()\ndef log():\n    global best\n    best = f()\nlog()",
        "best = None\nif rank == 0: log()\nf(log)\ndef log():\n    global best\n    best = f()",
        "def is_main():\n    return x.stage == 0\nbest = None\nif is_main(): best = f()",
        "is_main = group.rank() == 0\nbest = None\nif is_main: best = f()",
    ],
)
def test_what_other_code_may_write_is_not(text: str) -> None:
    assert "best" not in names_of(text).variables


TRACKER = """
class Tracker:
    def __init__(self):
        self.best, self.rows = None, []
    def see(self, loss):
        if rank == 0:
            self.best = Best(loss)
            self.rows.append(loss)
"""


def test_attributes_are_told_by_their_names_in_the_whole_project() -> None:
    assert names_of(TRACKER).attributes == {"best", "rows"}
    assert names_of(TRACKER, "def f(one):\n    one.best = g()").attributes == {"rows"}
    assert names_of(TRACKER, "setattr(one, 'best', g())").attributes == {"rows"}
    assert names_of(TRACKER, "Tracker(best=g())").attributes == {"rows"}
    assert names_of(TRACKER, "print(tracker.rows, tracker.best)").attributes == {"best"}


def test_a_method_that_a_class_of_a_library_may_call_is_not_rank_0s_alone() -> None:
    text = """
    class Logger(BASE):
        def log(self):
            self.file = f()
    if rank == 0: logger.log()
    """

    assert names_of(text.replace("BASE", "object")).attributes == {"file"}
    assert names_of(text.replace("BASE", "Callback")).attributes == set()


@pytest.mark.parametrize(
    ("others", "counts"),
    [
        ("", True),
        ("print('writer' in state, state['writer'], state.get('writer'))", True),
        ("state = {'writer': None}", True),
        ("state['writer'] = g()", False),
        ("other['writer'] = g()", False),
        ("state.update(writer=g())", False),
        ("for name in ('writer', 'log'): state[name] = g()", False),
        ("del state['writer']", False),
    ],
)
def test_entries_are_told_by_their_dict_and_key(others: str, counts: bool) -> None:
    said = names_of("if rank == 0:\n    state['writer'] = f()\n    log.setdefault('a', 1)", others)

    assert (("state", "writer") in said.entries) is counts
    assert ("log", "a") in said.entries
