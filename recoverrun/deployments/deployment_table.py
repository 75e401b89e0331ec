"""The table of job files: their names, their files, and what each undoes of a scheduler."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deployment:
    """One kind of job file."""

    name: str
    file: str  # what it is called in `templates/`
    undoes: str  # the default that would kill survivors
    tried: str  # how far it has been tried


VALIDATED = "against a strict schema"

DEPLOYMENTS = (
    Deployment(
        "slurm",
        "slurm.sbatch",
        "a lost node ends the job, one bad exit ends the step",
        "a real Slurm of three nodes on one host",
    ),
    Deployment("jobset", "jobset.yaml", "a lost pod begins all of them again", VALIDATED),
    Deployment("trainjob", "trainjob.yaml", "a lost pod begins all of them again", VALIDATED),
    Deployment("lws", "lws.yaml", "a lost pod begins its whole group again", VALIDATED),
    Deployment("volcano", "volcano.yaml", "an evicted pod begins the job again", VALIDATED),
    Deployment(
        "systemd",
        "recoverrun.service",
        "one process out of memory ends all of the unit",
        "systemd-analyze verify",
    ),
    Deployment(
        "compose",
        "compose.yaml",
        "64 MiB of shared memory, a launcher as process 1",
        VALIDATED,
    ),
    Deployment("ray", "ray_job.py", "one failed task ends the others", "compiled, not run"),
    Deployment(
        "skypilot",
        "skypilot.yaml",
        "a cluster that is recovered begins from scratch",
        "against a strict schema, not run",
    ),
)

NAMES = tuple(one.name for one in DEPLOYMENTS)


def deployment(name: str) -> Deployment:
    """The one of this name. Raises KeyError."""
    return {one.name: one for one in DEPLOYMENTS}[name]
