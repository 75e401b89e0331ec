"""The loops that lead to a backward, through everything that scripts put in between."""

import ast
import textwrap

import pytest

from recoverrun.worker.analysis.call_graph import CallGraph, build_call_graph
from recoverrun.worker.rewriting.loop_transformer import instrument
from recoverrun.worker.rewriting.project_analysis import parse_or_none
from tests.unit.call_graphs import graph_of

STEP = "def step(x):\n    x.backward()\n"
CLASS = """\
class Trainer:
    def __init__(self):
        self.fwd = self._body
    def _body(self, x):
        x.backward()
"""

FOUND = {
    "direct": "for x in y:\n    x.loss.backward()\n",
    "by autograd": "for x in y:\n    torch.autograd.backward(x)\n",
    "by a framework": "for x in y:\n    self.manual_backward(x)\n",
    "while": "while True:\n    x.backward()\n",
    "function": STEP + "for x in y:\n    step(x)\n",
    "function defined below": "def f():\n    for x in y:\n        step(x)\n" + STEP,
    "two calls deep": STEP + "def a(x): step(x)\ndef b(x): a(x)\nfor x in y:\n    b(x)\n",
    "method alias": CLASS + "for x in y:\n    t.fwd(x)\n",
    "bound method kept": "for x in y:\n    f(x)\nf = loss.backward\n",
    "partial": STEP + "f = partial(step, 1)\nfor x in y:\n    f(x)\n",
    "compiled": STEP + "f = torch.compile(step)\nfor x in y:\n    f(x)\n",
    "lambda": STEP + "f = lambda x: step(x)\nfor x in y:\n    f(x)\n",
    "table": STEP + "table = {'a': step}\nfor x in y:\n    table['a'](x)\n",
    "closure": "def make():\n    def run(x): x.backward()\n    return run\nf = make()\n"
    "for x in y:\n    f(x)\n",
    "closure handed on": "for x in y:\n    def closure(): x.backward()\n    opt.step(closure)\n",
    "closure defined before": "def closure(): x.backward()\nfor x in y:\n    opt.step(closure)\n",
    "instance called": "class Step:\n    def __call__(self, x): x.backward()\n"
    "s = Step()\nfor x in y:\n    s(x)\n",
    "instance handed on": "class Step:\n    def __call__(self, x): x.backward()\n"
    "def fit(data, scaler):\n    for x in data:\n        scaler(x)\n"
    "def main():\n    s = Step()\n    fit(1, s)\n",
    "imported under another name": "from m import Step as Stepper\n"
    "class Step:\n    def __call__(self, x): x.backward()\n"
    "s = Stepper()\nfor x in y:\n    s(x)\n",
    "class under another name": "class Step:\n    def __call__(self, x): x.backward()\n"
    "Stepper = Step\ns = Stepper()\nfor x in y:\n    s(x)\n",
    "constructor": "class S:\n    def __init__(self, x): x.backward()\nfor x in y:\n    S(x)\n",
    "keyword argument": STEP + "fit(fn=step)\ndef fit(fn):\n    for x in y:\n        fn(x)\n",
    "argument": STEP + "def fit(data, fn):\n    for x in data:\n        fn(x)\nfit(1, step)\n",
    "argument of a method": STEP + "class T:\n    def fit(self, fn):\n        for x in y:\n"
    "            fn(x)\nT().fit(step)\n",
    "default": STEP + "def fit(fn=step):\n    for x in y:\n        fn(x)\n",
    "walrus": STEP + "if (f := step):\n    for x in y:\n        f(x)\n",
    "a maker that is given": STEP + "def make(): return step\ndef fit(maker):\n    f = maker()\n"
    "    for x in y:\n        f(x)\nfit(make)\n",
    "closure given to who gives it on": "def train(closure):\n    for x in y:\n"
    "        opt.step(closure)\ndef main():\n    def run(): x.backward()\n    train(run)\n",
    "variable of the function around": STEP + "def main():\n    f = step\n    def run():\n"
    "        for x in y:\n            f(x)\n    run()\n",
    "nonlocal": STEP + "def main():\n    f = None\n    def choose():\n        nonlocal f\n"
    "        f = step\n    for x in y:\n        f(x)\n",
    "global": STEP + "def choose():\n    global f\n    f = step\n"
    "def main():\n    for x in y:\n        f(x)\n",
    "keywords handed on": STEP + "def fit(fn):\n    for x in y:\n        fn(x)\n"
    "def outer(**options): fit(**options)\nouter(fn=step)\n",
    "constructor of the base": STEP + "class Base:\n    def __init__(self, fn): self.fn = fn\n"
    "    def run(self):\n        for x in y:\n            self.fn(x)\n"
    "class T(Base):\n    def __init__(self, f): super().__init__(f)\nT(step)\n",
    "dataclass": STEP + "@dataclass\nclass C:\n    fn: object\n"
    "    def run(self):\n        for x in y:\n            self.fn(x)\nC(step)\n",
    "decorator": "def trains(fn):\n    def inner(x): fn(x).backward()\n    return inner\n"
    "@trains\ndef loss_of(x): return x\nfor x in y:\n    loss_of(x)\n",
    "loop in a decorator": STEP + "def often(fn):\n    def inner(x):\n        for _ in y:\n"
    "            fn(x)\n    return inner\n@often\ndef one(x): step(x)\n",
    "given to a thread": STEP + "def run(data, fn):\n    for x in data:\n        fn(x)\n"
    "Thread(target=run, args=(data, step)).start()\n",
    "module that is a value": STEP + "def run(module):\n    for x in y:\n        module.step(x)\n",
    "conditional": STEP + "f = step if fast else other\nfor x in y:\n    f(x)\n",
}

NOT_FOUND = {
    "no backward": "for x in y:\n    x.forward()\n",
    "definition of a backward": "for x in y:\n    class F:\n        def backward(ctx, g): pass\n",
    "result of a step": STEP + "loss = step(1)\nfor x in y:\n    print(loss.item())\n",
    "locals of one name": STEP + "def a():\n    f = step\n    f(1)\n"
    "def b(f):\n    for x in y:\n        f(x)\ndef c():\n    f = print\n    for x in y:\n"
    "        f(x)\n",
    "a local function of one name": "def a():\n    def run(): x.backward()\n    run()\n"
    "def b(t):\n    for x in y:\n        t.run()\n",
    "targets of a comprehension": STEP + "f = [f for f in fs]\ndef a():\n    f = step\n    f(1)\n"
    "for x in y:\n    f(x)\n",
    "a method named like a function": "def main(): x.backward()\nclass T:\n"
    "    def run(self):\n        for x in y:\n            self.main(x)\n",
    "result of a function that has a closure": "def main():\n    def run(): x.backward()\n"
    "    run()\n    return 1\nf = main()\nfor x in y:\n    f(x)\n",
    "a number named like a method": "class T:\n    def step(self): x.backward()\n"
    "step = 3\nfor x in y:\n    print(x)\n",
}


def _lines(source: str) -> list[int]:
    tree = ast.parse(source)
    return [loop.line for loop in instrument(tree, "s.py", graph_of(tree).backward_names()).loops]


@pytest.mark.parametrize("source", FOUND.values(), ids=FOUND)
def test_a_loop_that_reaches_a_backward_is_found(source: str) -> None:
    expected = [
        number
        for number, line in enumerate(source.splitlines(), 1)
        if line.lstrip().startswith(("for", "while"))
    ]

    assert _lines(source) == expected


@pytest.mark.parametrize("source", NOT_FOUND.values(), ids=NOT_FOUND)
def test_a_loop_that_does_not_is_left_alone(source: str) -> None:
    assert _lines(source) == []


def test_loops_around_and_inside_are_found() -> None:
    source = textwrap.dedent("""\
        for epoch in range(2):
            evaluate()
            for batch in loader:
                for micro in batch:
                    loss(micro).backward()
                for p in params:
                    p.update()
        for x in y:
            pass
        """)

    assert _lines(source) == [1, 3, 4]


def test_names_are_followed_through_modules() -> None:
    graph = CallGraph()
    graph.add(ast.parse("from b import run\ndef main():\n    run()\n"))
    graph.add(ast.parse("def run():\n    c.train_step()\n"))
    graph.add(ast.parse("def train_step():\n    loss.backward()\n"))

    assert {"main", "run", "train_step"} <= graph.backward_names().names


def test_a_scan_parses_only_what_can_matter_and_finds_what_parsing_all_would() -> None:
    files = {
        "a.py": b"def main():\n    run()\n",
        "b.py": b"def run():\n    fit(train_step)\n",
        "c.py": b"def train_step():\n    loss.backward()\n",
        "d.py": b"def fit(fn):\n    fn()\n",
        "e.py": b"def plot(): pass\n",
        "f.py": b"backward (\n",
    }
    asked: list[str] = []

    def parse(name: str, data: bytes) -> ast.Module | None:
        asked.append(name)
        try:
            return ast.parse(data)
        except SyntaxError:
            return None

    graph, parsed = build_call_graph(files.items(), parse)
    whole = CallGraph()
    for name in ("a.py", "b.py", "c.py", "d.py"):
        whole.add(ast.parse(files[name]), name)

    assert graph.backward_names().names == whole.backward_names().names
    assert parsed.keys() == {"a.py", "b.py", "c.py", "d.py"}
    assert "e.py" not in asked


def test_a_sum_of_hundreds_of_terms_is_no_obstacle() -> None:
    graph = CallGraph()

    graph.add(ast.parse("x = " + " + ".join(["a.backward()"] * 900)))

    assert "backward" in graph.called


def test_names_that_train_elsewhere_lead_to_a_backward() -> None:
    text = b"def one(s, x):\n    s.step(x)\n"

    alone, _ = build_call_graph([("train.py", text)], parse_or_none)
    graph, parsed = build_call_graph([("train.py", text)], parse_or_none, frozenset({"step"}))

    assert "one" not in alone.backward_names().names
    assert "one" in graph.backward_names().names and parsed.keys() == {"train.py"}


def test_a_file_is_wanted_that_may_call_what_was_made_under_another_name() -> None:
    graph = CallGraph()
    graph.add(
        ast.parse(
            "from m import Step as Stepper\n"
            "class Step:\n    def __call__(self, x): x.backward()\n"
            "s = Stepper()\nfit(s)\n"
        )
    )

    assert {"Stepper", "s"} <= graph.relevant_names()


MODEL = """\
class Model{0}:
    def forward(self, x, data, model):
        img, q = self.scale(x), data[0]
        for block in model:
            x = block(x, img, q)
        return x
"""
TRAIN = b"""\
import sys
from m0 import Model0
def make(model):
    def run(x):
        model(x).backward()
    return run
def main():
    x = make(Model0())
    for data in sys.stdin:
        x(data)
main()
"""


def test_locals_of_one_name_do_not_lead_from_file_to_file() -> None:
    files = {f"m{at}.py": MODEL.format(at).encode() for at in range(200)} | {"train.py": TRAIN}
    asked: list[str] = []

    def parse(name: str, data: bytes) -> ast.Module | None:
        asked.append(name)
        return parse_or_none(name, data)

    graph, parsed = build_call_graph(files.items(), parse)
    names = graph.backward_names()

    assert asked == ["train.py"]
    assert names.called_at(parsed["train.py"])


def test_what_a_library_has_is_none_of_the_projects() -> None:
    library = b"import subprocess\nfor x in y:\n    subprocess.run(x)\n"
    project = b"import trainer\nfor x in y:\n    trainer.run(x)\n"
    files = {
        "trainer.py": b"def run(x): x.backward()\n", "a.py": library, "b.py": project,
    }  # fmt: skip

    graph, parsed = build_call_graph(files.items(), parse_or_none)
    names = graph.backward_names()

    assert {name for name in parsed if names.called_at(parsed[name])} == {"b.py"}


def test_a_file_that_comes_later_is_told_apart_by_its_own_locals() -> None:
    graph, _ = build_call_graph([("train.py", TRAIN)], parse_or_none)
    later = graph.extension()

    sites = later.add(ast.parse(MODEL.format("")), "later.py")
    more = later.add(ast.parse("from train import main\nfor _ in (1, 2): main()\n"), "more.py")

    assert not later.backward_names().called_at(sites)
    assert later.backward_names().called_at(more)
