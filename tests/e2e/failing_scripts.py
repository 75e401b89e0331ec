"""Scripts with errors of every kind: their tracebacks must be those of plain Python."""

from tests.e2e.script_cases import MODEL, Case, script

FAILING = [
    script(
        "error",
        MODEL
        + """\
def step(batch):
    loss = Loss()
    loss.backward()
    return (batch["a"] +
            batch["b"]["c"])

def train():
    for batch in [{"a": 1, "b": {"c": 2}}, {"a": 1, "b": 3}]:
        step(batch)

train()
""",
    ),
    script(
        "error in the header",
        MODEL
        + """\
def numbers():
    yield 1
    raise ValueError("empty")

for x in numbers():
    Loss().backward()
""",
    ),
    script("not iterable", MODEL + "for x in 5 + 6:\n    Loss().backward()\n"),
    script(
        "error in the condition", MODEL + "n = 2\nwhile 1 / n:\n    n -= 1; Loss().backward()\n"
    ),
    script("unpacking error", MODEL + "for a, b in [(1, 2), 3]:\n    Loss().backward()\n"),
    script(
        "chained errors",
        MODEL
        + """\
def numbers():
    yield 1
    raise KeyError("inner")

def train():
    try:
        for x in numbers():
            Loss().backward()
    except KeyError as error:
        raise RuntimeError("outer") from error

try:
    train()
except RuntimeError:
    raise ExceptionGroup("several", [ValueError(1), OSError("x")])
""",
    ),
    Case(
        "error in a module",
        {
            "script.py": "import model\nmodel.train()",
            "model.py": MODEL
            + """\
def train():
    for x in range(3):
        Loss().backward()
        assert x < 1, f"x is {x}"
""",
        },
    ),
    Case(
        "error at import",
        {
            "script.py": "import model",
            "model.py": MODEL
            + """\
for x in range(3):
    Loss().backward()
    [][x]
""",
        },
    ),
    Case(
        "error in module run by -m",
        {
            "model.py": MODEL
            + """\
for x in range(3):
    Loss().backward()
    {}[x]
"""
        },
        ("-m", "model"),
    ),
    Case(
        "import of nothing",
        {
            "script.py": "import model",
            "model.py": MODEL
            + """\
def train():
    for x in y: Loss().backward()
import nothing_of_that_name
""",
        },
    ),
    Case(
        "printed traceback of an import",
        {
            "script.py": """\
import traceback
try:
    import model
except ZeroDivisionError:
    traceback.print_exc()
""",
            "model.py": MODEL + "for x in range(3):\n    Loss().backward()\n    1 / x\n",
        },
    ),
    script("syntax error", "print(1)\ndef f(:\n    pass\n"),
    script("indentation error", "if 1:\nprint(1)\n"),
    script("return outside", "x = 1\nreturn x\n"),
    Case("syntax error in a module", {"script.py": "import model", "model.py": "for x in:\n"}),
    Case("syntax error under -m", {"model.py": "for x in:\n"}, ("-m", "model")),
    script("failing hook", "import sys\nsys.excepthook = lambda *a: 1 / 0\n{}['a']\n"),
    script(
        "own hook", "import sys\nsys.excepthook = lambda t, e, tb: print(t, tb.tb_lineno)\n[][1]"
    ),
    script("hook that exits", "import sys\nsys.excepthook = lambda *a: sys.exit(9)\n[][1]"),
]
