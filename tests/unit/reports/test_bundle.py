"""The content of an archive for a bug report, and what stays out of it."""

import io
import json
import tarfile
from pathlib import Path

from recoverrun.reports.bundle import LOG_BYTES, write_bundle
from tests.unit import journals

SECRET = "s3cr3t-Value_42"


def _members(run_dir: Path, **reports: str) -> dict[str, str]:
    out = io.BytesIO()
    write_bundle(out, "b", (run_dir,), reports)
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as archive:
        files = {one.name: archive.extractfile(one) for one in archive.getmembers()}
        return {name: file.read().decode() for name, file in files.items() if file is not None}


def _run(tmp_path: Path) -> Path:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    journals.one_loss(run_dir)
    logs = run_dir / "logs" / "attempt_0" / "3"
    logs.mkdir(parents=True)
    (logs / "stderr.log").write_text("x" * LOG_BYTES + f"\nlogin with token={SECRET}\nlast words\n")
    hangs = run_dir / "hangs" / "1"
    hangs.mkdir(parents=True)
    (hangs / "rank3.stack").write_text('File "data.py", line 131 in load_batch\n')
    return run_dir


def test_journals_ends_of_logs_stacks_and_reports_are_in_it(tmp_path: Path) -> None:
    members = _members(_run(tmp_path), **{"about.json": "{}"})

    assert set(members) == {
        "b/about.json",
        "b/run/events.gpu-01.jsonl",
        "b/run/hangs/1/rank3.stack",
        "b/run/logs/attempt_0/3/stderr.log",
    }
    assert members["b/run/logs/attempt_0/3/stderr.log"].endswith("last words\n")
    assert all(json.loads(line) for line in members["b/run/events.gpu-01.jsonl"].splitlines())


def test_no_secret_and_no_other_file_is_in_it(tmp_path: Path) -> None:
    run_dir = _run(tmp_path)
    (run_dir / "job.key").write_text(SECRET)
    (run_dir / "checkpoint.pt").write_text(SECRET)
    (tmp_path / "elsewhere.log").write_text(SECRET)
    (run_dir / "logs" / "link.log").symlink_to(tmp_path / "elsewhere.log")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.log").write_text(SECRET)
    (run_dir / "logs" / "folder").symlink_to(tmp_path / "folder")

    members = _members(run_dir, report=f'["--hf-token","{SECRET}"]')

    assert SECRET not in str(members)
    assert not [name for name in members if "link" in name or "folder" in name or "key" in name]
