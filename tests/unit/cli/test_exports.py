"""Files of `postmortem`: whole or not at all."""

import gzip
import json
import os
import tarfile
from pathlib import Path

import pytest

from recoverrun.cli.examination import for_bundle
from recoverrun.cli.exports import Exports, Material, export
from recoverrun.errors import RecoverrunError
from recoverrun.reports.history import history
from recoverrun.reports.postmortem import judged
from recoverrun.reports.secret_masks import allowed
from rendezvous.journal.reader import read_run
from tests.unit import journals


@pytest.fixture
def material(tmp_path: Path) -> Material:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    facts = history(log := read_run(journals.one_loss(run_dir)))
    environment = {"HF_TOKEN": "s3cr3t-Value_42", "NCCL_DEBUG": "INFO"}
    return Material(
        found=judged(facts, log),
        facts=facts,
        run_dirs=(run_dir,),
        utc_offset_s=0,
        environment=environment,
        about={"recoverrun": "1"},
        doctor=for_bundle,
    )


def test_all_files_are_written_and_named(tmp_path: Path, material: Material) -> None:
    out = tmp_path / "out"
    out.mkdir()
    wanted = Exports(
        html=out / "a.html", perfetto=out / "b.json.gz", csv=out / "c.csv", bundle=out / "d.tar.gz"
    )

    said = export(wanted, material)

    assert [line.split(" (")[0] for line in said] == [
        f"wrote {out / name}" for name in ("a.html", "b.json.gz", "c.csv", "d.tar.gz")
    ]
    assert sorted(path.name for path in out.iterdir()) == [
        "a.html", "b.json.gz", "c.csv", "d.tar.gz"
    ]  # fmt: skip
    assert json.loads(gzip.decompress((out / "b.json.gz").read_bytes()))["traceEvents"]
    assert b"s3cr3t" not in gzip.decompress((out / "d.tar.gz").read_bytes())
    assert b"NCCL_DEBUG" in gzip.decompress((out / "d.tar.gz").read_bytes())
    assert (out / "a.html").stat().st_mode & 0o400


def test_a_bundle_holds_what_the_doctor_says_and_no_variable_that_no_list_names(
    tmp_path: Path, material: Material, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check 14 of the user experience: `--bundle` leaks no variable outside the allow-list."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("NCCL_API_TOKEN", "t0ken-Value_77")
    monkeypatch.setenv("MY_PASSWORD", "t0ken-Value_78")
    monkeypatch.setenv("SLURM_KILL_BAD_EXIT", "0")

    export(Exports(bundle=tmp_path / "d.tar.gz"), material)

    with tarfile.open(tmp_path / "d.tar.gz") as archive:
        (member,) = [one for one in archive.getnames() if one.endswith("doctor.json")]
        file = archive.extractfile(member)
        assert file is not None
        told = json.load(file)
    assert told["findings"]
    assert told["nodes"][0]["environ"].items() <= allowed(os.environ).items()
    assert told["nodes"][0]["environ"]["NCCL_DEBUG"] == "INFO"
    assert b"t0ken" not in gzip.decompress((tmp_path / "d.tar.gz").read_bytes())


def test_a_file_that_cannot_be_written_is_said_and_leaves_nothing(
    tmp_path: Path, material: Material
) -> None:
    with pytest.raises(RecoverrunError, match="cannot be written"):
        export(Exports(html=tmp_path / "nowhere" / "a.html"), material)

    (tmp_path / "a.html").mkdir()
    with pytest.raises(RecoverrunError, match="cannot be written"):
        export(Exports(html=tmp_path / "a.html"), material)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".a.html")]


def test_nothing_is_asked_for() -> None:
    assert not Exports().any
