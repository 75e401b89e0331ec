"""Modules that are instrumented at import; all others are not touched."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest

from recoverrun.worker.analysis.module_graph import exports_of
from recoverrun.worker.analysis.rank_conditions import BoundNames
from recoverrun.worker.boot import run_script
from recoverrun.worker.instrumentation import NO_CHANGES, Changes, Lone, Loop, TrainingHints
from recoverrun.worker.rewriting import import_hook
from recoverrun.worker.rewriting.import_hook import Finder, Instrumenter, install
from recoverrun.worker.rewriting.post_import import PostImportHooks
from recoverrun.worker.rewriting.project import Project
from recoverrun.worker.rewriting.project_analysis import parse_or_none

T = TypeVar("T")

TRAINING = "def fit(batches):\n    for x in batches:\n        x.backward()\n"


class FakeRuntime:
    """Notes what it is told."""

    Unwind = KeyboardInterrupt

    def __init__(self) -> None:
        self.loops: list[str] = []
        self.refusals: list[str] = []
        self.lone: list[str] = []
        self.owned: dict[str, bool] = {}  # by module: True if it is installed

    def register(self, loop: Loop) -> None:
        self.loops.append(os.path.basename(loop.id))

    def own(
        self,
        module: str,
        path: str,
        source: bytes,
        changes: Changes = NO_CHANGES,
        *,
        installed: bool = False,
    ) -> None:
        self.owned[module] = installed

    def refuse(self, filename: str, reason: str) -> None:
        self.refusals.append(reason)

    def iterate(self, loop_id: str, iterable: Iterable[T]) -> Iterator[T]:
        return iter(iterable)

    def top(self, loop_id: str, local: dict[str, object], global_: dict[str, object]) -> None: ...

    def enter(self, loop_id: str) -> bool:
        return True

    def leave(self, loop_id: str) -> None: ...

    def hand_on(self, places: Mapping[str, Lone]) -> None:
        self.lone += [place for place, lone in places.items() if lone.reads]

    def generator(self, function: Any) -> Any:
        return function


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRuntime:
    """Install a finder for the project in `tmp_path`; the test writes its modules there."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    monkeypatch.syspath_prepend(str(tmp_path))
    return FakeRuntime()


def _import(
    name: str, runtime: FakeRuntime, folder: Path, trainers: dict[str, frozenset[str]] | None = None
) -> ModuleType:
    install(runtime, Project.of([str(folder)]), TrainingHints(modules=trainers or {}))
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    finally:
        del sys.modules[name]


def test_a_module_with_a_training_loop_is_instrumented(
    runtime: FakeRuntime, tmp_path: Path
) -> None:
    (tmp_path / "rr_fit.py").write_text(TRAINING)

    module = _import("rr_fit", runtime, tmp_path)

    assert runtime.loops == ["rr_fit.py:2"]
    assert module.__dict__["__recoverrun__"] is runtime
    assert module.__spec__ is not None
    assert module.__spec__.cached == module.__cached__
    assert not list(tmp_path.rglob("*.pyc")), "rewritten code must not be cached"


def test_other_modules_are_imported_and_cached_as_ever(
    runtime: FakeRuntime, tmp_path: Path
) -> None:
    (tmp_path / "rr_plain.py").write_text("x = 1\n")

    module = _import("rr_plain", runtime, tmp_path)

    assert "__recoverrun__" not in module.__dict__
    assert len(list(tmp_path.rglob("rr_plain*.pyc"))) == 1


def test_compiled_code_of_an_earlier_run_is_not_used(runtime: FakeRuntime, tmp_path: Path) -> None:
    path = tmp_path / "rr_cached.py"
    path.write_text(TRAINING)
    cached = Path(importlib.util.cache_from_source(str(path)))
    importlib.import_module("rr_cached")
    del sys.modules["rr_cached"]
    before = cached.read_bytes()

    _import("rr_cached", runtime, tmp_path)

    assert runtime.loops == ["rr_cached.py:2"]
    assert cached.read_bytes() == before


def test_a_mistake_of_the_rewriter_leaves_the_module_as_it_is(
    runtime: FakeRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise LookupError("our bug")

    monkeypatch.setattr(import_hook, "instrument", fail)
    (tmp_path / "rr_bug.py").write_text(TRAINING)

    module = _import("rr_bug", runtime, tmp_path)

    assert "__recoverrun__" not in module.__dict__
    assert callable(module.fit)
    assert ["our bug" in reason for reason in runtime.refusals] == [True]


def test_a_trainer_of_a_framework_is_instrumented_by_name(
    runtime: FakeRuntime, tmp_path: Path
) -> None:
    (tmp_path / "rr_trainer.py").write_text(TRAINING)

    _import("rr_trainer", runtime, tmp_path / "elsewhere", {"rr_trainer": frozenset()})

    assert runtime.loops == ["rr_trainer.py:2"]


def test_a_framework_may_train_by_a_name_that_does_not_show_it(
    runtime: FakeRuntime, tmp_path: Path
) -> None:
    source = "def run(self):\n    while not self.done:\n        self.advance()\n"
    (tmp_path / "rr_loop.py").write_text(source)
    (tmp_path / "rr_same.py").write_text(source)

    _import("rr_loop", runtime, tmp_path / "elsewhere", {"rr_loop": frozenset({"advance"})})
    _import("rr_same", runtime, tmp_path / "elsewhere", {"rr_same": frozenset()})

    assert runtime.loops == ["rr_loop.py:2"]


@pytest.mark.parametrize(("text", "loops"), [("import pipes", ["rr_piped.py:4"]), ("", [])])
def test_a_word_in_a_project_may_say_which_names_train(
    text: str, loops: list[str], runtime: FakeRuntime, tmp_path: Path
) -> None:
    (tmp_path / "rr_piped.py").write_text(f"{text}\n\ndef run(self):\n  while 1: self.advance()\n")
    hints = TrainingHints(words={b"pipes": frozenset({"advance"})})

    instrumenter = Instrumenter.for_project(runtime, Project.of([str(tmp_path)]), hints)
    path = str(tmp_path / "rr_piped.py")
    instrumenter.code(path, Path(path).read_bytes())

    assert runtime.loops == loops


EXPORTING = "import torch.distributed as dist\nR, W = dist.get_rank(), 2\nBOSS = R == 0\nN = 3\n"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("from rr_setup import R as me\nif me == 0: print()", [2]),
        ("from pkg.rr_setup import BOSS\nif BOSS: print()", [2]),
        ("import rr_setup\nif rr_setup.BOSS: print()\nif not rr_setup.R: print()", [2, 3]),
        ("from . import rr_setup as s\nif s.R == 0: print()", [2]),
        ("from rr_setup import *\nmine = R\nif mine == 0: print()", [3]),
        ("from rr_setup import N\nif N == 0: print()", []),
        ("from rr_setup import R\nfor R in [0]:\n    if R == 0: print()", []),
        ("from other import R\nif R == 0: print()", []),
        ("R = 0\nif R == 0: print('rr_setup')", []),
    ],
)
def test_ranks_that_another_module_of_the_project_has_are_known(
    text: str, lines: list[int], runtime: FakeRuntime, tmp_path: Path
) -> None:
    (tmp_path / "rr_setup.py").write_text(EXPORTING)
    script = tmp_path / "rr_main.py"
    script.write_text(text)
    instrumenter = install(runtime, Project.of([str(tmp_path)]), TrainingHints())

    instrumenter.code(str(script), text.encode())

    assert runtime.lone == [f"{script}:{line}" for line in lines]


def test_modules_of_one_name_export_what_all_of_them_have(tmp_path: Path) -> None:
    for folder, text in (("a", EXPORTING), ("b", "R = 3  # no rank\nBOSS = rank == 0\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rr_setup.py").write_text(text)

    sources = dict(Project.of([str(tmp_path)]).sources())

    assert exports_of(sources, parse_or_none) == {
        "rr_setup": BoundNames(frozenset(), frozenset({"BOSS"}))
    }


STEPS = "def step(x): x.backward()\nSTEPS = {'sgd': step}\n"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("step = STEPS[name]\nfor x in xs:\n    step(x)\n", ["4"]),
        ("for x in xs:\n    getattr(self, name)(x)\n", ["3"]),
        ("def items():\n    for x in xs: yield abs(x)\nfor x in items():\n    pass\n", []),
        ("for x in xs:\n    step(x)\nfor x in xs:\n    print(x)\n", ["3"]),
        ("import transformers\nfor x in xs:\n    print(x)\n", []),
    ],
    ids=["registry", "by name", "data", "known", "framework"],
)
def test_where_no_loop_is_known_to_train_any_with_a_call_may(
    text: str, lines: list[str], runtime: FakeRuntime, tmp_path: Path
) -> None:
    script, source = tmp_path / "train.py", STEPS + text
    script.write_text(source)
    hints = TrainingHints(packages=frozenset({"transformers"}))
    project = Project.of([str(tmp_path)], str(script))

    Instrumenter.for_project(runtime, project, hints).code(str(script), source.encode())

    assert runtime.loops == [f"train.py:{line}" for line in lines]


def test_a_package_that_trains_is_instrumented_though_it_is_installed(
    runtime: FakeRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, packages = tmp_path / "project", tmp_path / "site-packages"
    (packages / "rr_engine").mkdir(parents=True)
    project.mkdir()
    (packages / "rr_engine" / "__init__.py").write_text("from rr_engine import state\n" + TRAINING)
    (packages / "rr_engine" / "state.py").write_text("for x in []: print(x)\n")
    (project / "rr_train.py").write_text("import rr_engine\nfor k in [[]]: k = rr_engine.fit(k)\n")
    monkeypatch.syspath_prepend(str(packages))
    monkeypatch.syspath_prepend(str(project))

    _import("rr_train", runtime, project)

    assert runtime.loops == ["rr_train.py:2", "__init__.py:3"]
    assert runtime.owned == {"rr_train": False, "rr_engine": True, "rr_engine.state": True}
    del sys.modules["rr_engine"], sys.modules["rr_engine.state"]


def test_a_forked_process_imports_as_ever(
    runtime: FakeRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rr_forked.py").write_text(TRAINING)
    project = Project.of([str(tmp_path)])
    finder = Finder(Instrumenter.for_project(runtime, project), {})
    sys.meta_path.insert(0, finder)
    importlib.invalidate_caches()

    monkeypatch.setattr(os, "getpid", lambda: -1)
    spec = finder.find_spec("rr_forked", None)

    assert spec is not None
    assert type(spec.loader) is importlib.machinery.SourceFileLoader


def test_a_finder_that_asks_all_others_is_asked_once(runtime: FakeRuntime, tmp_path: Path) -> None:
    """Ours asks those behind it: each would ask the other for ever."""
    (tmp_path / "rr_fit.py").write_text(TRAINING)
    asked = list[str]()

    class Asks:
        def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
            asked.append(name)
            others = (finder for finder in sys.meta_path if finder is not self)
            found = (finder.find_spec(name, path, target) for finder in others)
            return next((spec for spec in found if spec is not None), None)

    finder: Any = Asks()
    sys.meta_path.insert(0, finder)
    hooks, arrived = PostImportHooks(), list[ModuleType]()
    hooks.when_imported("rr_fit", arrived.append)

    module = _import("rr_fit", runtime, tmp_path)

    assert asked == ["rr_fit"]
    assert runtime.loops == ["rr_fit.py:2"] and arrived == [module]


@pytest.mark.parametrize(
    ("code", "status"),
    [(None, 0), (0, 0), (7, 7), (256, 0), (-1, 255), (2**70, 255), (True, 1), ("x", 1), ((1,), 1)],
)
def test_exit_codes_are_those_of_the_interpreter(code: Any, status: int) -> None:
    assert run_script.exit_code(SystemExit(code)) == status


def test_a_run_that_ends_by_itself_has_code_0() -> None:
    assert run_script.exit_code(None) == 0
