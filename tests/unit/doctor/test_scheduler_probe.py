"""Facts from Slurm's and systemd's programs, with stand-ins that are slow, absent or failing."""

from pathlib import Path

import pytest

from recoverrun.doctor.scheduler_probe import SchedulerFacts, scheduler_facts

SCONTROL = """#!/bin/bash
case "$*" in
    "write batch_script 7 -") cat "$0.script" ;;
    "show config") echo "JobRequeue              = 1"; echo "KillOnBadExit           = 1" ;;
esac
"""
SCRIPT = """#!/bin/bash
#SBATCH --no-kill
export SECRET=1
srun --no-kill \\
    recoverrun train.py
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def put(programs: Path, name: str, text: str) -> None:
    (programs / name).write_text(text)
    (programs / name).chmod(0o755)


def test_the_lines_of_a_slurm_job_that_concern_us_and_no_others(programs: Path) -> None:
    put(programs, "scontrol", SCONTROL)
    (programs / "scontrol.script").write_text(SCRIPT)

    found = scheduler_facts({"SLURM_JOB_ID": "7"}, "")

    assert found.scheduler == "slurm"
    assert found.kill_on_bad_exit
    assert "#SBATCH --no-kill" in found.batch_script
    assert "recoverrun train.py" in found.batch_script
    assert "SECRET" not in found.batch_script


def test_a_program_that_fails_tells_nothing(programs: Path) -> None:
    put(programs, "scontrol", "#!/bin/bash\necho KillOnBadExit = 1; exit 1\n")

    assert scheduler_facts({"SLURM_JOB_ID": "7"}, "") == SchedulerFacts(scheduler="slurm")


def test_the_policy_of_a_systemd_unit(programs: Path) -> None:
    put(programs, "systemctl", "#!/bin/bash\n[ $5 = a.service ] && echo stop\n")

    found = scheduler_facts({}, "a.service")

    assert found == SchedulerFacts(scheduler="systemd", oom_policy="stop")


def test_without_a_scheduler_there_is_nothing_to_tell() -> None:
    assert scheduler_facts({}, "") == SchedulerFacts()
