"""Two jobs at once never have one run directory; launchers of one job do, and so do its heirs."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from recoverrun.launcher.output.run_claim import Claimed, claim, claim_path, refuse_others

HOLDER = """
import sys
from pathlib import Path
from recoverrun.launcher.output.run_claim import claim
claim(Path(sys.argv[1]), sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""


def _other_process(run_dir: Path, job: str) -> subprocess.Popen[str]:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(run_dir), job],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def test_another_job_is_refused_while_a_launcher_of_the_first_lives(tmp_path: Path) -> None:
    first, second = (claim(tmp_path, "train/1-1") for _ in range(2))

    os.close(first)
    with pytest.raises(Claimed, match=f"another running job writes to {tmp_path}"):
        claim(tmp_path, "train/2-2")

    os.close(second)
    os.close(claim(tmp_path, "train/2-2"))


def test_a_shorter_name_leaves_nothing_of_a_longer_one(tmp_path: Path) -> None:
    os.close(claim(tmp_path, "train/1-1000"))
    first = claim(tmp_path, "train/1")
    second = claim(tmp_path, "train/1")

    assert claim_path(tmp_path).read_text() == "train/1\n"
    os.close(first)
    os.close(second)


def test_a_job_that_meets_elsewhere_is_refused_before_it_has_a_name(tmp_path: Path) -> None:
    refuse_others(tmp_path, "none 29400")
    first = claim(tmp_path, "train/1-1", "none 29400")

    refuse_others(tmp_path, "none 29400")  # it may be of that job
    with pytest.raises(Claimed, match=f"another running job writes to {tmp_path}"):
        refuse_others(tmp_path, "none 29401")

    os.close(first)
    refuse_others(tmp_path, "none 29401")


def test_a_launcher_that_was_killed_claims_nothing(tmp_path: Path) -> None:
    holder = _other_process(tmp_path, "train/1-1")
    try:
        with pytest.raises(Claimed):
            claim(tmp_path, "train/2-2")
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()

    os.close(claim(tmp_path, "train/2-2"))


def test_a_link_in_the_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "precious").write_text("weights")
    claim_path(tmp_path / "run").symlink_to(tmp_path / "precious")

    with pytest.raises(OSError, match="symbolic links"):
        claim(tmp_path / "run", "train/1-1")

    assert (tmp_path / "precious").read_text() == "weights"
