"""The answers of a scheduler's programs about the job or unit in which this process runs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from recoverrun.doctor.program_output import output_of

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
    return output_of(*command, within_s=ANSWER_S)
