"""Scripts that look at everything that could tell our hooks from plain Python.

One list: each case is a few lines that mean nothing apart from the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Loops that train: the name is all that matters.
MODEL = """\
class Loss:
    def backward(self):
        pass

"""


@dataclass(frozen=True)
class Case:
    """Files to write, and how to run one of them."""

    name: str
    files: Mapping[str, str | bytes]
    command: Sequence[str] = ("script.py",)
    env: tuple[tuple[str, str], ...] = ()


def script(name: str, text: str, *arguments: str) -> Case:
    return Case(name, {"script.py": text}, ("script.py", *arguments))


SHOW_MODULE = """\
import sys
import __main__
print([name for name in globals() if name != '__recoverrun__'])
print(__name__, __doc__, __package__, __file__, __cached__, __annotations__, __spec__ is None)
print(type(__loader__).__name__, getattr(__loader__, "name", None))
print(sys.argv, sys.path, sys.orig_argv)
print(__main__.__dict__ is globals(), __builtins__, vars(__main__).get("MARK", 1))
"""

ALONE = (
    MODEL
    + """\
import sys
rank = 0
def save(step):
    if rank != 0:
        return
    print("saved", step)
    if sys.argv[1:]:
        raise OSError("full")
for step in range(3):
    Loss().backward()
    if rank == 0 and step % 2 == 0:
        print(step)
        save(step)
    if rank:
        print("other")
"""
)

CASES = [
    script("attributes of main", SHOW_MODULE, "a", "-b", "--", "-m"),
    script("docstring and annotations", '"""Doc."""\nx: int = 1\nprint(__doc__, __annotations__)'),
    Case("relative path", {"sub/script.py": SHOW_MODULE}, ("./sub/../sub/script.py", "x")),
    Case(
        "module",
        {"pkg/__init__.py": "print('init', __name__)", "pkg/mod.py": SHOW_MODULE},
        ("-m", "pkg.mod", "a", "-m"),
    ),
    Case(
        "package with main",
        {
            "pkg/__init__.py": "import sys; print(sys.argv)",
            "pkg/__main__.py": "from . import x\nprint(__package__, x.y)",
            "pkg/x.py": "y = 3",
        },
        ("-m", "pkg", "1"),
    ),
    Case(
        "folder",
        {"app/__main__.py": SHOW_MODULE + "import beside", "app/beside.py": "print(__file__)"},
        ("app", "z"),
    ),
    Case("folder without main", {"app/x.py": ""}, ("app",)),
    Case("no such file", {}, ("nowhere.py",)),
    Case("no such module", {}, ("-m", "nowhere")),
    Case("no such submodule", {"pkg/__init__.py": ""}, ("-m", "pkg.nowhere")),
    Case("package that cannot run", {"pkg/__init__.py": ""}, ("-m", "pkg")),
    script("exit with a number", "import sys; sys.exit(7)"),
    script("exit with a large number", "import sys; sys.exit(259)"),
    script("exit with a negative number", "import sys; sys.exit(-1)"),
    script("exit with a message", "import sys; sys.exit('no more')"),
    script("exit with an object", "raise SystemExit((1, 2))"),
    script("exit with nothing", "raise SystemExit"),
    script("exit()", "exit(3)"),
    script("os._exit", "import os; os._exit(5)"),
    script("atexit after the traceback", "import atexit; atexit.register(print, 'bye'); 1 / 0"),
    script("if main", "if __name__ == '__main__':\n    print('main')"),
    script("reimport of main", "import __main__, script\nprint(__main__ is script, __name__)"),
    Case(
        "symbolic link",
        {"real/script.py": SHOW_MODULE, "link.py": b"->real/script.py"},
        ("link.py",),
    ),
    script(
        "interrupt",
        "import os, signal, atexit\natexit.register(print, 'bye')\n"
        "os.kill(os.getpid(), signal.SIGINT)\nsignal.pause()\n",
    ),
    Case("interrupt under -m", {"model.py": "raise KeyboardInterrupt"}, ("-m", "model")),
    script("killed", "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\nsignal.pause()"),
    Case(
        "latin-1",
        {"script.py": "# -*- coding: latin-1 -*-\nprint(ascii('\xe9'))".encode("latin-1")},
    ),
    Case("byte order mark", {"script.py": b"\xef\xbb\xbfprint(ascii('\xc3\xa9'))\n1/0"}),
    script(
        "future",
        "from __future__ import annotations\n"
        + MODEL
        + """\
def f(x: undefined) -> nowhere: ...
print(f.__annotations__)
for x in range(2):
    Loss().backward()
    def g(x: undefined): ...
    print(g.__annotations__)
""",
    ),
    script(
        "source of things",
        MODEL
        + """\
import inspect, linecache
def numbers(n=2):
    "Count."
    yield from range(n)

def train():
    for x in numbers():
        Loss().backward()
    print(inspect.currentframe().f_lineno)

print(inspect.getsource(train), inspect.getsource(numbers), linecache.getline(__file__, 2))
print(inspect.isgeneratorfunction(numbers), inspect.isgenerator(numbers()), numbers.__doc__)
print(inspect.signature(numbers), numbers.__name__, numbers.__qualname__, list(numbers(n=3)))
print(train.__code__.co_firstlineno, train.__code__.co_varnames, train.__code__.co_filename)
train()
""",
    ),
    script(
        "warnings",
        MODEL
        + """\
import warnings
def train():
    for x in range(2):
        Loss().backward()
        warnings.warn(f"odd {x}")
def outer():
    warnings.warn("deep", stacklevel=2)
train()
outer()
""",
    ),
    script(
        "generators talk",
        """\
def echo():
    got = None
    try:
        while True:
            got = yield got
    except KeyError as error:
        yield f"caught {error!r}"
    finally:
        print("closed")

talk = echo()
print(next(talk), talk.send(1), talk.send(2), talk.throw(KeyError("k")))
talk.close()

class Data:
    def __iter__(self):
        yield from (1, 2)
    def batches(self, n):
        for x in self:
            yield x * n
print(list(Data().batches(3)), Data.batches.__qualname__)
""",
    ),
    script(
        "scopes",
        MODEL
        + """\
class Base:
    def scale(self): return 10
class Trainer(Base):
    __steps = 0
    def scale(self):
        total = 0
        for self.__last in range(3):
            Loss().backward()
            self.__steps += super().scale()
            def add():
                nonlocal total
                total += 1
            add()
        return total, self.__steps, sorted(vars(self))
print(Trainer().scale())
print(sorted(name for name in globals() if not name.startswith("__")))
""",
    ),
    script(
        "loops in odd places",
        MODEL
        + """\
def f(n):
    while n:
        Loss().backward()
        for i in range(n):
            Loss().backward()
            if i == 2: break
        else:
            n -= 1
            continue
        n -= 2
    else:
        return n, "done"
for a, *b in (1, 2, 3), [4]: Loss().backward(); print(a, b)
for x in *[1], *(2,): Loss().backward()
print(f(5), x)
class C:
    for y in range(2):
        Loss().backward()
    print(sorted(n for n in locals() if not n.startswith("__")))
async def agen():
    yield 1
async def main():
    async for z in agen():
        Loss().backward()
    return z
import asyncio
print(asyncio.run(main()))
""",
    ),
    Case(
        "package of the project",
        {
            "script.py": "from trainer.loop import fit\nprint(fit())\n",
            "trainer/__init__.py": "",
            "trainer/loop.py": "from . import step\ndef fit():\n    n = 0\n    for x in range(4):\n"
            "        n += step.run(x)\n    return n\n",
            "trainer/step.py": MODEL + "def run(x):\n    Loss().backward()\n    return x\n",
        },
    ),
    Case(
        "safe path",
        {"script.py": "import sys; print(sys.path)\nimport beside", "beside.py": ""},
        env=(("PYTHONSAFEPATH", "1"),),
    ),
    script(
        "pickle",
        """\
import pickle
class Point:
    def __init__(self): self.x = 1
text = pickle.dumps(Point())
print(b"__main__" in text, pickle.loads(text).x, Point.__module__)
""",
    ),
    script(
        "fork",
        """\
import os, sys
child = os.fork()
if child == 0:
    print("child"); sys.exit(4)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
sys.exit(2)
""",
    ),
    script(
        "fork that fails",
        """\
import os
child = os.fork()
if child == 0:
    1 / 0
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""",
    ),
    script("rank 0 alone", ALONE),
    script("error on rank 0 alone", ALONE, "fail"),
]

MULTIPROCESSING = (
    MODEL
    + """\
import multiprocessing, sys
class Point:
    def __init__(self, x): self.x = x
def work(point):
    for x in range(2):
        Loss().backward()
    return Point(point.x + 1), __name__, "__recoverrun__" in globals(), sys.argv
if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    with context.Pool(1) as pool:
        point, name, protected, argv = pool.apply(work, (Point(1),))
        if sys.argv[1] == "spawn": print(protected)
        print(point.x, name, argv)
"""
)
for method in ("fork", "spawn", "forkserver"):
    CASES += [
        Case(f"{method} from a script", {"script.py": MULTIPROCESSING}, ("script.py", method)),
        Case(
            f"{method} from a module",
            {"pkg/__init__.py": "", "pkg/mod.py": MULTIPROCESSING},
            ("-m", "pkg.mod", method),
        ),
    ]
