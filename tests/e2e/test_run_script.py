"""A script cannot tell `python -m recoverrun.worker` from Python: output, tracebacks, exit codes.

Each case runs three times: by plain Python, by the hooks without protection, and by the hooks with
a runtime that counts (every loop instrumented). All three must say the same.
"""

import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.failing_scripts import FAILING
from tests.e2e.script_cases import CASES, SHOW_MODULE, Case, script

ROOT = Path(__file__).resolve().parents[2]
COUNTING = str(Path(__file__).with_name("counting_worker.py"))
LIMIT_S = 60


def _write(case: Case, folder: Path) -> None:
    folder.mkdir()
    for name, text in case.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = text.encode() if isinstance(text, str) else text
        if data.startswith(b"->"):
            path.symlink_to(data[2:].decode())
        else:
            path.write_bytes(data)


def _run(
    before: Sequence[str], case: Case, folder: Path, env: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    plain = {
        k: v for k, v in os.environ.items() if not k.startswith(("RECOVERRUN", "TORCHE", "PYTHON"))
    }
    done = subprocess.run(
        [sys.executable, "-u", *before, *case.command],
        cwd=folder,
        env={**plain, "PYTHONPATH": str(ROOT), **dict(case.env), **(env or {})},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=LIMIT_S,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.e2e
@pytest.mark.parametrize("case", [*CASES, *FAILING], ids=lambda case: case.name)
def test_a_script_runs_as_under_plain_python(case: Case, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    _write(case, folder)
    # All but the last line of defence: hash order, and compiled files of an earlier run.
    env = {"PYTHONHASHSEED": "0", "COUNTS": str(tmp_path / "counts")}

    plain = _run([], case, folder, env)
    inert = _run(["-m", "recoverrun.worker"], case, folder, env)
    counted = _run([COUNTING], case, folder, env)

    assert inert == plain
    assert counted == plain


def _counts(case: Case, tmp_path: Path) -> dict[str, Any]:
    _write(case, tmp_path / "project")
    counts = tmp_path / "counts"
    code, out, err = _run([COUNTING], case, tmp_path / "project", {"COUNTS": str(counts)})
    assert code == 0, out + err
    result: dict[str, Any] = json.loads(counts.read_text())
    return result


@pytest.mark.e2e
def test_loops_of_the_script_and_of_its_modules_are_met(tmp_path: Path) -> None:
    (case,) = [case for case in CASES if case.name == "package of the project"]

    report = _counts(case, tmp_path)

    assert report["loops"] == ["loop.py:4"]
    assert report["counts"] == {"iterate": 1, "item": 4, "top": 4}
    assert not report["refusals"]
    cached = {path.name.split(".")[0] for path in (tmp_path / "project").rglob("*.pyc")}
    assert cached == {"__init__", "step"}, "only what is executed as written is cached"


@pytest.mark.e2e
def test_every_loop_of_a_script_is_entered_and_left(tmp_path: Path) -> None:
    (case,) = [case for case in CASES if case.name == "loops in odd places"]

    report = _counts(case, tmp_path)

    assert len(report["loops"]) == 6
    # One `while` is left by `return` in its else, and not told: an outer loop's next call tells.
    # Of `for` loops only those say so that have a `break`.
    assert report["counts"]["enter"] == 2
    assert report["counts"]["leave"] == 3


@pytest.mark.e2e
def test_code_for_rank_0_alone_is_met(tmp_path: Path) -> None:
    (case,) = [case for case in CASES if case.name == "rank 0 alone"]

    counts = _counts(case, tmp_path)["counts"]

    assert counts["first"] == 3 + 2, "`rank == 0` in each step, `rank != 0` in each save"
    assert counts["leading"] == 2 * (1 + 2) + 2 * (1 + 1), "blocks, and calls that stand in them"


@pytest.mark.e2e
def test_an_archive_runs_as_it_is(tmp_path: Path) -> None:
    case = Case("archive", {"x": ""}, ("app.zip", "a"))
    _write(case, tmp_path / "project")
    with zipfile.ZipFile(tmp_path / "project" / "app.zip", "w") as archive:
        archive.writestr("__main__.py", SHOW_MODULE + "import beside; 1 / 0")
        archive.writestr("beside.py", "print(__file__)")
    env = {"COUNTS": str(tmp_path / "counts")}

    plain = _run([], case, tmp_path / "project")

    assert _run(["-m", "recoverrun.worker"], case, tmp_path / "project") == plain
    assert _run([COUNTING], case, tmp_path / "project", env) == plain
    assert json.loads((tmp_path / "counts").read_text())["refusals"]


@pytest.mark.e2e
def test_an_error_is_left_for_the_launcher_before_finish(tmp_path: Path) -> None:
    case = script("error", "import sys\nraise ValueError('bad')\n")
    _write(case, tmp_path / "project")
    env = {"COUNTS": str(tmp_path / "c"), "TORCHELASTIC_ERROR_FILE": str(tmp_path / "error.json")}

    code, _, shown = _run([COUNTING], case, tmp_path / "project", env)

    message = json.loads((tmp_path / "error.json").read_text())["message"]
    assert message["message"] == "ValueError: bad"
    assert message["extraInfo"]["py_callstack"] == shown
    assert message["extraInfo"]["timestamp"].isdigit()
    assert json.loads((tmp_path / "c").read_text())["code"] == code == 1


@pytest.mark.e2e
def test_one_error_of_many_ranks_is_told_in_full_once(tmp_path: Path) -> None:
    case = script("error", "import os\nraise ValueError('bad row ' + os.environ['ROW'])\n")
    _write(case, tmp_path / "project")

    def shown(rank: int, row: int) -> list[str]:
        env = {"RECOVERRUN_CONTEXT": str(tmp_path / "c"), "RANK": str(rank), "ROW": str(row)}
        worker = [sys.executable, "-m", "recoverrun.worker", *case.command]
        done = subprocess.run(
            ["sh", "-c", '"$@"; exit $?', "sh", *worker],  # a parent with the same stderr
            cwd=tmp_path / "project", env={**os.environ, "PYTHONPATH": str(ROOT), **env},
            stderr=subprocess.PIPE, text=True, timeout=LIMIT_S,
        )  # fmt: skip
        assert done.returncode == 1
        return done.stderr.splitlines()

    assert shown(0, 7)[-1:] == ["ValueError: bad row 7"]
    assert shown(1, 7) == []
    several = [shown(rank, 6 + rank) for rank in range(2, 8)]

    note = "(at the same place as another rank)"
    assert several[0] == [f"[rank2]: ValueError: bad row 8 {note}"]
    assert [len(lines) for lines in several] == [1, 1, 1, 0, 0, 0]


@pytest.mark.e2e
def test_a_report_that_the_script_wrote_itself_stands(tmp_path: Path) -> None:
    text = "import os\nopen(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write('mine')\n1 / 0"
    case = script("own report", text)
    _write(case, tmp_path / "project")
    error_file = tmp_path / "error.json"

    _run(
        ["-m", "recoverrun.worker"],
        case,
        tmp_path / "project",
        {"TORCHELASTIC_ERROR_FILE": str(error_file)},
    )

    assert error_file.read_text() == "mine"


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("text", "code"),
    [("", 0), ("exit(300)", 44), ("exit('x')", 1), ("1/0", 1), ("raise KeyboardInterrupt", 130)],
)
def test_finish_is_told_the_exit_code(text: str, code: int, tmp_path: Path) -> None:
    case = script("end", text)
    _write(case, tmp_path / "project")

    returned, _, _ = _run([COUNTING], case, tmp_path / "project", {"COUNTS": str(tmp_path / "c")})

    assert json.loads((tmp_path / "c").read_text())["code"] == code
    assert returned == (-signal.SIGINT if code == 130 else code)


@pytest.mark.e2e
def test_without_a_script_the_usage_is_shown(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()

    code, out, err = _run(["-m", "recoverrun.worker"], Case("", {}, ()), tmp_path / "project")

    assert (code, out) == (2, "")
    assert err.startswith("usage: ")
