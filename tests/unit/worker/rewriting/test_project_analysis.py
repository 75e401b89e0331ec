"""An analysis of a project that is kept is that of the very same files, or is made anew."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recoverrun.worker.analysis.project_findings import Findings
from recoverrun.worker.instrumentation import TrainingHints
from recoverrun.worker.rewriting import project_analysis
from recoverrun.worker.rewriting.import_hook import Instrumenter
from recoverrun.worker.rewriting.packages_beside import scan
from recoverrun.worker.rewriting.project import Project
from recoverrun.worker.rewriting.project_analysis import ProjectAnalysis

FILES = {
    "train.py": "from model import step\nfor batch in batches:\n    step(batch)\n",
    "model.py": "import torch.distributed as dist\nR = dist.get_rank()\n"
    "def step(batch): batch.backward()\n",
}
OUTSIDE = "for one in them:\n    step(one)\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a project that is worth keeping, with a cache beside it."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(project_analysis, "WORTH_KEEPING_BYTES", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "project"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of files that are parsed from now on."""
    names: list[str] = []
    parse = project_analysis.parse_or_none

    def noted(path: str, data: bytes) -> Any:
        names.append(Path(path).name)
        return parse(path, data)

    monkeypatch.setattr(project_analysis, "parse_or_none", noted)
    return names


def _analysis(
    folder: Path, training: frozenset[str] = frozenset(), packages: tuple[str, ...] = ()
) -> ProjectAnalysis:
    found = scan(Project.of([str(folder)], str(folder / "train.py")))
    return ProjectAnalysis(found, training, packages)


def _leading(findings: Findings) -> set[str]:
    return {Path(path).name for path, leads in findings.leading.items() if leads}


def test_the_second_time_nothing_is_parsed_and_all_is_the_same(
    project: Path, parsed: list[str]
) -> None:
    first = _analysis(project).findings()
    assert sorted(parsed) == ["model.py", "train.py"]
    parsed.clear()

    second = _analysis(project).findings()

    assert second == first and parsed == []
    assert _leading(second) == {"train.py"}
    assert second.exports["model"].ranks == {"R"}


def _edited(folder: Path) -> dict[str, Any]:
    (folder / "model.py").write_text(FILES["model.py"].replace("step", "other"))
    return {}


def _added(folder: Path) -> dict[str, Any]:
    (folder / "step.py").write_text("step = 1\n")
    (folder / "train.py").write_text(FILES["train.py"] + "import step\n")
    return {}


def _moved(folder: Path) -> dict[str, Any]:
    (folder / "inner").mkdir()
    (folder / "model.py").rename(folder / "inner" / "model.py")
    return {}


@pytest.mark.parametrize(
    "change",
    [
        _edited,
        _added,
        _moved,
        lambda _: {"training": frozenset({"fit"})},
        lambda _: {"packages": ("transformers",)},
    ],
    ids=["edited", "added", "moved", "other words", "other packages"],
)
def test_what_is_kept_of_anything_else_is_not_taken(
    change: Callable[[Path], dict[str, Any]], project: Path, parsed: list[str]
) -> None:
    _analysis(project).findings()
    parsed.clear()

    more = change(project)
    found = _analysis(project, **more).findings()

    assert "model.py" in parsed
    assert ("train.py" in _leading(found)) == ("def step" in _text(project))


def _text(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.rglob("*.py"))


def test_where_what_is_kept_is_no_analysis_another_one_is_made(
    project: Path, parsed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Findings, "packed", lambda self: {"names": 3})
        first = _analysis(project).findings()
    parsed.clear()

    assert _analysis(project).findings() == first
    assert "train.py" in parsed


def test_a_small_project_is_analysed_each_time(
    project: Path, parsed: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(project_analysis, "WORTH_KEEPING_BYTES", 10_000)

    _analysis(project).findings()
    _analysis(project).findings()

    assert parsed.count("train.py") == 2
    assert not (tmp_path / "cache").exists()


class Registry:
    """Notes what is registered with it, and refused."""

    def __init__(self) -> None:
        self.loops: list[str] = []
        self.refusals: list[str] = []

    def register(self, loop: Any) -> None:
        self.loops.append(loop.id)

    def refuse(self, path: str, reason: str) -> None:
        self.refusals.append(reason)

    def hand_on(self, places: Any) -> None: ...


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("train.py", FILES["train.py"], [2]),
        ("outside.py", OUTSIDE, [1]),
        ("outside.py", "for one in them:\n    print(one)  # no step\n", []),
        ("outside.py", "rank = 3\nfor one in them: print(rank)\n", []),
    ],
    ids=["of the project", "outside", "no loop that trains", "nothing to rewrite"],
)
def test_code_is_rewritten_as_the_first_time(
    name: str, text: str, lines: list[int], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    hints, path = TrainingHints(), str(project.parent / "project" / name)
    for again in (False, True):
        runtime: Any = Registry()
        scanned = Project.of([str(project)], str(project / "train.py"))
        instrumenter = Instrumenter.for_project(runtime, scanned, hints)
        if again:
            monkeypatch.setattr(project_analysis, "build_call_graph", None)  # it is not needed
        code = instrumenter.code(path, text.encode())
        made.append((runtime.loops, code and code.co_code, runtime.refusals))

    assert made[0] == made[1]
    assert made[0][0] == [f"{path}:{line}" for line in lines] and not made[0][2]


def test_a_file_in_which_nothing_is_rewritten_is_not_parsed_again(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime: Any = Registry()
    path, text = str(project / "plain.py"), b"rank = 3\nprint(rank)\n"
    scanned = Project.of([str(project)], str(project / "train.py"))
    assert Instrumenter.for_project(runtime, scanned).code(path, text) is None
    tried: list[object] = []
    monkeypatch.setattr(
        "recoverrun.worker.rewriting.import_hook.instrument", lambda *given: tried.append(given)
    )

    assert Instrumenter.for_project(runtime, scanned).code(path, text) is None
    assert not tried
    Instrumenter.for_project(runtime, scanned).code(path, text + b"#")
    assert len(tried) == 1
