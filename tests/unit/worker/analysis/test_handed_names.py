"""Names that code hands to functions of the script: read if these read their parameters."""

import ast

import pytest

from recoverrun.worker.analysis.handed_names import HandedNames
from recoverrun.worker.analysis.module_facts import CodeFacts, facts_of, facts_of_code

MAIN, ENGINE = "/project/main.py", "/project/lib/engine.py"

TRAINS = """
def train(model, rows, log):
    for row in rows:
        model(row).backward()
        log.append(row)
"""


def handed(
    call: str, script: str = TRAINS, engine: str = "value = 1"
) -> tuple[HandedNames, CodeFacts]:
    modules = {MAIN: facts_of(ast.parse(script)), ENGINE: facts_of(ast.parse(engine))}
    return HandedNames(modules), facts_of_code(ast.parse(call).body)


def read(call: str, script: str = TRAINS, engine: str = "value = 1") -> set[str]:
    """The names of `call`, a statement of the script's, that it may read."""
    names, code = handed(call, script, engine)
    return names.read(MAIN, code) | code.mentioned


@pytest.mark.parametrize(
    ("call", "script"),
    [
        ("train(net, data, history)", TRAINS),
        ("train(net, data, log=history)", TRAINS),
        ("train(net, data, history)", TRAINS + "\nfirst = train(1, 2, 3)"),
        ("epoch(net, data, history)", TRAINS + "def epoch(a, b, c):\n    train(a, b, log=c)\n"),
        ("again(net, data, history)", "def again(a, b, c):\n    a(b)\n    again(a, b, c)\n"),
        ("train(net, data, history)", "def train(m, r, log):\n    m(r)\n    log += [1]\n"),
    ],
)
def test_what_a_function_only_adds_to_is_not_read(call: str, script: str) -> None:
    assert "history" not in read(call, script)
    assert {"net", "data"} <= read(call, script)


@pytest.mark.parametrize(
    "script",
    [
        "def train(m, r, log):\n    m(r, log[-1])",
        "def train(m, r, log):\n    kept = log",
        "def train(m, r, log):\n    return lambda: log",
        "def train(m, r, log):\n    scale(log)\ndef scale(x):\n    return 2 * x",
        "def train(m, r, log):\n    numpy.mean(log)",
        "def train(m, r, log):\n    print(log)",
        "def train(m, *rest):\n    m(rest)",
        "def train(m, r, log):\n    yield m",
        "@wrapped\ndef train(m, r, log):\n    m(r)",
        "def train(m, r, log):\n    return locals()",
        "def train(m, r, log):\n    pass\ntrain = other(train)",
        "def train(m, r, log):\n    pass\ndef run(train, history):\n    train(1, 2, history)",
        "def train(m, r, log):\n    pass\nfor train in trainers: pass",
        "def train(m, r, log):\n    pass\nfrom library import train",
        "def train(m, r, log):\n    pass\nimport library.train as train",
        "from library import train",
        "from library import *",
        "class train:\n    def method(self, m, r, log): pass",
        "class train:\n    def __init__(self, m, r, log): self.log = log",
    ],
)
def test_what_a_function_may_read_is_read(script: str) -> None:
    assert "history" in read("train(net, data, history)", script)


@pytest.mark.parametrize(
    "call",
    [
        "trainer.train(net, data, history)",  # it may be a library's
        "train(*both, history)",
        "train(net, data, history[0])",
        "train(net, data, **history)",
        "loss = train(net, data, 1) + history",
        "[train(net, data, history) for history in history]",
    ],
)
def test_what_is_not_handed_on_as_it_is_is_read(call: str) -> None:
    assert "history" in read(call)


@pytest.mark.parametrize(
    ("imported", "known"),
    [
        ("from lib.engine import train", True),
        ("from .lib.engine import train", True),
        ("from lib import engine, train", False),
        ("from ..lib.engine import train", False),
        ("from lib.engine import run as train", False),
        ("from other.engine import train", False),
        ("from lib.engine import train\nfrom library import train", False),
    ],
)
def test_a_function_of_another_module_is_known_by_where_it_is_imported_from(
    imported: str, known: bool
) -> None:
    assert ("history" in read("train(net, data, history)", imported, TRAINS)) is not known


def test_what_a_function_adds_to_is_told() -> None:
    names, code = handed("train(net, data, history)")

    assert names.added_to(MAIN, code) == {"history"}
