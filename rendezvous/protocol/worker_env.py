"""The one table of environment variables that a launcher hands to its workers.

Each field of `WorkerEnv` names its variable and says what it is for; parsing and writing follow
from that. Whatever else torchrun's contract wants in the environment is written by the launcher
and read by torch, never by us.
"""

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any

from rendezvous.protocol.incarnations import birth_of

UNASKED = "unasked"
"""The pace of snapshots that nobody has asked for: "auto", where no step outlives a loss."""

UNASKED_AFTER_S = 10.0
"""So long a script trains before the first snapshot that nobody has asked for: what is over sooner
loses less than that costs."""


class EnvError(ValueError):
    """A variable holds what it cannot hold. The text names the variable."""


def _variable(name: str, meaning: str, *, least: int = 0) -> Any:
    return field(metadata={"name": name, "meaning": meaning, "least": least})


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEnv:
    """The knowledge of a worker of its launcher and of its own place."""

    endpoint: str = _variable("RECOVERRUN_ENDPOINT", "socket of the launcher on this node")
    incarnation: int = _variable("RECOVERRUN_INCARNATION", "attempt and birth of this process")
    run_dir: str = _variable("RECOVERRUN_RUN_DIR", "directory of this run")
    context: str = _variable("RECOVERRUN_CONTEXT", "file for what successors need of this worker")
    protect: bool = _variable("RECOVERRUN_PROTECT", "1: recovery is on, 0: off")
    inject: str = _variable("RECOVERRUN_INJECT", "fault schedule, normally empty")
    finals: str = _variable("RECOVERRUN_FINALS", "directory for final parameters, or empty")
    exact: bool = _variable("RECOVERRUN_EXACT", "1: sums are bitwise those of a run without losses")
    check_finite: bool = _variable("RECOVERRUN_CHECK_FINITE", "1: look for gradients gone astray")
    digest_every: int = _variable("RECOVERRUN_DIGEST_EVERY", "steps between digests, 0: never")
    returns: bool = _variable("RECOVERRUN_RETURNS", "1: lost ranks come back")
    keeper: str = _variable("RECOVERRUN_KEEPER", "socket of this node's keeper, or empty")
    snapshot_every: str = _variable(
        "RECOVERRUN_SNAPSHOT_EVERY", f"steps, auto, {UNASKED}, or 0: never"
    )
    restore: str = _variable("RECOVERRUN_RESTORE", "ATTEMPT:STEP of what to begin from, or empty")
    rank: int = _variable("RANK", "global rank")
    local_rank: int = _variable("LOCAL_RANK", "rank on this node")
    world_size: int = _variable("WORLD_SIZE", "workers of the job", least=1)
    local_world_size: int = _variable("LOCAL_WORLD_SIZE", "workers of this node", least=1)
    error_file: str = _variable("TORCHELASTIC_ERROR_FILE", "file for the script's last exception")

    @property
    def birth(self) -> int:
        """> 0: this process is to take the place that its rank had before it was lost."""
        return birth_of(self.incarnation)

    @staticmethod
    def from_environ(environ: Mapping[str, str]) -> "WorkerEnv | None":
        """The table as the launcher fills it, or None outside a run of ours. Raises EnvError."""
        if not environ.get(ENDPOINT):
            return None
        values: dict[str, Any] = {f.name: _parse(f, environ) for f in fields(WorkerEnv)}
        env = WorkerEnv(**values)
        if env.rank >= env.world_size:
            raise EnvError(f"RANK is {env.rank}, but WORLD_SIZE is only {env.world_size}")
        if env.local_rank >= env.local_world_size:
            raise EnvError(
                f"LOCAL_RANK is {env.local_rank}, but LOCAL_WORLD_SIZE is {env.local_world_size}"
            )
        return env

    def to_environ(self) -> dict[str, str]:
        """The variables to add to a worker's environment."""
        return {f.metadata["name"]: _written(getattr(self, f.name)) for f in fields(WorkerEnv)}


ENDPOINT = "RECOVERRUN_ENDPOINT"
"""Its presence is what makes a process a worker of ours."""

CUDA = "RECOVERRUN_CUDA"
"""The user's, not the launcher's: "host" or "nccl" lets models on CUDA be served (docs/gpu.md)."""


def _written(value: bool | int | str) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _parse(field: "Field[Any]", environ: Mapping[str, str]) -> bool | int | str:
    name = field.metadata["name"]
    text = environ.get(name)
    if text is None:
        raise EnvError(f"{name} is not set, although {ENDPOINT} is")
    if field.type is bool:
        if text not in ("0", "1"):
            raise EnvError(f"{name} must be 0 or 1, not {text!r}")
        return text == "1"
    if field.type is str:
        return text
    least = field.metadata["least"]
    # Not int(): that takes underscores, blanks and the digits of every script.
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise EnvError(f"{name} must be an integer of at least {least}, not {text[:40]!r}")
    if int(text) < least:
        raise EnvError(f"{name} must be at least {least}, not {text}")
    return int(text)
