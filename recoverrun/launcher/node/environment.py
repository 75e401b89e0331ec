"""The environment of a worker: torchrun's contract, and our table on top of it.

TORCHELASTIC_USE_AGENT_STORE is "False": no launcher of ours serves a TCPStore, because a c10d store
of torch needs torch. A worker of ours gets its store over the launcher's socket; a script that runs
without our hooks has rank 0 serve one at MASTER_ADDR:MASTER_PORT, as with any other launcher.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from string import Template

from recoverrun.config.run_config import RunConfig
from recoverrun.errors import RecoverrunError
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.fault_schedule import of_attempt
from rendezvous.protocol.formation_messages import Start
from rendezvous.protocol.incarnations import attempt_of
from rendezvous.protocol.worker_env import CUDA, WorkerEnv

WATCHDOG = {
    # else the watchdog ends the process, or aborts communicators by itself
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    # else there is no watchdog, so no error is seen, and `wait()` blocks
    "TORCH_NCCL_BLOCKING_WAIT": "0",
    # else ASYNC_ERROR_HANDLING=0 is turned into 3
    "TORCH_NCCL_DESYNC_DEBUG": "0",
    # else one rank's failure ends all, by a key in the store
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    # else a watchdog that sits in CUDA for 8 minutes ends the process
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    # else one rank's error is written to the store for all
    "TORCH_NCCL_PROPAGATE_ERROR": "0",
    # the script's thread meets the same error
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    # else a lock that operations need is held for a minute
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1",
}
"""So that NCCL's watchdog in torch ends no survivor (docs/gpu.md); the user's own would."""

CONNECT_WITHIN = ("TORCH_NCCL_NONBLOCKING_TIMEOUT", "60")
"""Seconds for a communicator to be made, unless the user knows better: torch's are half an hour."""


OUR_WORKER = ("-u", "-m", "recoverrun.worker")
"""Arguments with which Python runs a worker of ours; the script and its own follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """The values that differ from worker to worker, or from launch to launch."""

    local_rank: int
    incarnation: int
    endpoint: str
    run_dir: str
    context: str
    error_file: str
    restarts: int = 0
    keeper: str = ""


def worker_environ(
    config: RunConfig, start: Start, place: WorkerSettings, inherited: Mapping[str, str]
) -> dict[str, str]:
    """All variables of one worker."""
    rank = start.first_rank + place.local_rank
    address, _, port = start.master_addr.rpartition(":")
    first_role_rank = start.first_role_rank if start.first_role_rank >= 0 else start.first_rank
    role_world_size = start.role_world_size if start.role_world_size > 0 else start.world_size
    environ = {
        **inherited,
        "GROUP_RANK": str(start.node_rank),
        "GROUP_WORLD_SIZE": str(start.nnodes),
        "ROLE_RANK": str(first_role_rank + place.local_rank),
        "ROLE_WORLD_SIZE": str(role_world_size),
        "ROLE_NAME": config.role,
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "TORCHELASTIC_RESTART_COUNT": str(place.restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(config.max_restarts),
        "TORCHELASTIC_RUN_ID": config.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": ",".join(number.name for number in config.signals),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": inherited.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
    environ.update(_watchdog(config, inherited))
    if config.threads and "OMP_NUM_THREADS" not in inherited:
        environ["OMP_NUM_THREADS"] = str(config.threads)
    ours = WorkerEnv(
        endpoint=place.endpoint,
        incarnation=place.incarnation,
        run_dir=place.run_dir,
        context=place.context,
        protect=config.protect,
        inject=of_attempt(config.inject, attempt_of(place.incarnation)),
        finals=config.finals,
        exact=config.exact,
        check_finite=config.check_finite,
        digest_every=config.digest_every,
        returns=config.recovery_policy.returns,
        keeper=place.keeper,
        snapshot_every=config.recovery_policy.snapshot_every if place.keeper else "0",
        restore=start.restore if place.keeper else "",
        rank=rank,
        local_rank=place.local_rank,
        world_size=start.world_size,
        local_world_size=start.nproc,
        error_file=place.error_file,
    )
    environ.update(ours.to_environ())
    if config.virtual_local_rank:
        environ["LOCAL_RANK"] = "0"
        environ["CUDA_VISIBLE_DEVICES"] = _own_device(place.local_rank, inherited)
    return environ


def _watchdog(config: RunConfig, inherited: Mapping[str, str]) -> dict[str, str]:
    """The variables that keep torch's NCCL from ending survivors, where models on CUDA are
    protected. Raises RecoverrunError.
    """
    asked = inherited.get(CUDA, "")
    if asked not in ("", "host", "nccl"):
        sentence = f"{CUDA} must be host or nccl, not {asked[:40]!r}"
        raise RecoverrunError(sentence, ExitCode.USAGE)
    if not asked or not config.protect:
        return {}
    name, seconds = CONNECT_WITHIN
    return {**WATCHDOG, name: inherited.get(name, seconds)}


def _own_device(local_rank: int, inherited: Mapping[str, str]) -> str:
    """The GPU that a worker is to see as its only one. Raises RecoverrunError if it has none."""
    visible = inherited.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return str(local_rank)
    devices = visible.split(",")
    if local_rank >= len(devices):
        sentence = f"--virtual-local-rank: CUDA_VISIBLE_DEVICES={visible} has none for {local_rank}"
        raise RecoverrunError(sentence, ExitCode.USAGE)
    return devices[local_rank].strip()


def worker_command(config: RunConfig, local_rank: int, python: str) -> list[str]:
    """The command line of one worker; `${local_rank}` in the arguments is filled in."""
    arguments = [
        Template(argument).safe_substitute(local_rank=str(local_rank))
        for argument in config.arguments
    ]
    if config.no_python:
        return [config.script, *arguments]
    module = ["-m"] if config.module else []
    return [python, *OUR_WORKER, *module, config.script, *arguments]
