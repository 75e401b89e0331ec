"""The answers of a scheduler's programs about the job or unit in which this process runs."""

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shutil import which

ANSWER_S = 1.0
"""How long a scheduler's program may take: a doctor that waits is of no use."""

CONCERNS = re.compile(r"^#SBATCH .*|^[^#\n]*\bsrun\b(?:.*\\\n)*.*", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerFacts:
    scheduler: str = ""
    batch_script: str = ""
    kill_on_bad_exit: bool = False
    oom_policy: str = ""


def scheduler_facts(environ: Mapping[str, str], unit: str) -> SchedulerFacts:
    """`unit` is systemd's, "" where there is none."""
    job = environ.get("SLURM_JOB_ID", "")
    if job.isdigit():
        script = _asked("scontrol", "write", "batch_script", job, "-")
        settings = _asked("scontrol", "show", "config")
        kills = re.search(r"^KillOnBadExit\s*=\s*1", settings, re.MULTILINE)
        return SchedulerFacts(
            scheduler="slurm",
            batch_script="\n".join(CONCERNS.findall(script))[:4096],
            kill_on_bad_exit=kills is not None,
        )
    if "KUBERNETES_SERVICE_HOST" in environ:
        return SchedulerFacts(scheduler="kubernetes")
    if unit:
        policy = _asked("systemctl", "show", "--property=OOMPolicy", "--value", "--", unit)
        return SchedulerFacts(scheduler="systemd", oom_policy=policy.strip()[:32])
    return SchedulerFacts()


def _asked(*command: str) -> str:
    """The output of a program, "" if it is not there, fails or takes too long."""
    return _said(command) if which(command[0]) else ""


def _said(command: Sequence[str]) -> str:
    try:
        ran = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ran.stdout.decode(errors="replace") if ran.returncode == 0 else ""
