"""Defaults that nobody typed: a file of the project, and the scheduler that started this process.

Both are weaker than the command line and than any variable. The file is `recoverrun.toml`, or the
table `[tool.recoverrun]` of `pyproject.toml`, in the working directory. A scheduler is believed
only as a whole: as soon as the user says how many nodes there are or where they meet, the rest of
that is the user's too, except for this node's own place among them.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from recoverrun.config.given_options import Options
from recoverrun.config.option_values import C10D_PORT
from recoverrun.errors import RecoverrunError
from rendezvous.protocol.exit_codes import ExitCode

FILE = "recoverrun.toml"
PROJECT = "pyproject.toml"

SAID = frozenset({"nnodes", "standalone", "rdzv_endpoint", "master_addr"})
"""Options with which the user takes the topology into their own hands."""

FIRST_PORT, PORTS = 20_000, 10_000
"""Ports for endpoints that are derived from a job's number: below the range of the kernel's own."""


@dataclass(frozen=True, slots=True)
class Found:
    """A value as text, and where it is from."""

    text: str
    origin: str


def from_file(folder: Path) -> dict[str, Found]:
    """The options that the project's file sets. Raises RecoverrunError for one that is wrong."""
    own, project = folder / FILE, folder / PROJECT
    if own.exists():
        return _table(own, _load(own))
    try:
        # Read as bytes first: most projects have such a file, few mean us in it.
        ours = b"[tool.recoverrun" in project.read_bytes()
    except OSError:
        return {}
    if not ours:
        return {}
    tool = _load(project).get("tool")
    table = tool.get("recoverrun") if isinstance(tool, dict) else None
    return _table(project, table if isinstance(table, dict) else {})


def _load(path: Path) -> dict[str, object]:
    import tomllib  # Not at the top: a launcher without such a file need not hold it.

    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RecoverrunError(f"{path.name} cannot be read: {error}", ExitCode.USAGE) from error


def _table(path: Path, table: Mapping[str, object]) -> dict[str, Found]:
    known = Options.__dataclass_fields__.keys() - {"command", "dry_run"}
    found: dict[str, Found] = {}
    for key, value in table.items():
        field = key.replace("-", "_")
        if field not in known or not isinstance(value, str | int | float):
            sentence = f"{path.name}: there is no option {key!r} that could be {value!r}"
            raise RecoverrunError(sentence, ExitCode.USAGE)
        text = str(int(value)) if isinstance(value, bool) else str(value)
        found[field] = Found(text, path.name)
    return found


# ------------------------------------------------------------------------------- schedulers


def from_scheduler(environ: Mapping[str, str], given: Collection[str]) -> dict[str, Found]:
    """Nodes, place and endpoint as the scheduler tells them; `given` are the options that are set.

    Only what one launcher per node makes of them: with several tasks on a node they are ranks.
    """
    for detect in (_slurm, _leader_worker_set, _volcano, _openmpi, _indexed_job):
        found = detect(environ)
        if not found:
            continue
        if SAID.isdisjoint(given):
            # Half a topology would make a launcher wait for others that never come.
            return found if {"nnodes", "rdzv_endpoint"} <= found.keys() else {}
        return (
            {}
            if "standalone" in given
            else {field: value for field, value in found.items() if field == "node_rank"}
        )
    return {}


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1


def _topology(
    origin: str,
    *,
    node_rank: int,
    nnodes: int = 0,
    host: str = "",
    port: int = C10D_PORT,
    rdzv_id: str = "",
) -> dict[str, Found]:
    values = {
        "nnodes": str(nnodes) if nnodes > 0 else "",
        "node_rank": str(node_rank) if node_rank >= 0 else "",
        "rdzv_endpoint": f"{host}:{port}" if host else "",
        "rdzv_id": rdzv_id,
    }
    return {field: Found(text, origin) for field, text in values.items() if text}


def _port(number: int) -> int:
    return FIRST_PORT + max(0, number) % PORTS


def _slurm(environ: Mapping[str, str]) -> dict[str, Found]:
    """Inside a step (`srun`) with one task on each of several nodes."""
    nnodes = _number(environ, "SLURM_STEP_NUM_NODES")
    tasks = _number(environ, "SLURM_STEP_NUM_TASKS")
    if nnodes < 2 or tasks != nnodes:
        return {}
    job = environ.get("SLURM_JOB_ID", "")
    host = first_host(environ.get("SLURM_STEP_NODELIST", ""))
    rank = _number(environ, "SLURM_NODEID")
    port = _port(_number(environ, "SLURM_JOB_ID"))
    return _topology("Slurm", nnodes=nnodes, node_rank=rank, host=host, port=port, rdzv_id=job)


def first_host(nodes: str) -> str:
    """The first name of Slurm's list: `gpu-[03-05,9],login` gives gpu-03."""
    match = re.match(r"([^\[,]*)(?:\[([^\],-]+)[^\]]*\]([^,]*))?", nodes)
    return "".join(part or "" for part in match.groups()) if match else ""


def _leader_worker_set(environ: Mapping[str, str]) -> dict[str, Found]:
    host = environ.get("LWS_LEADER_ADDRESS", "")
    if not host:
        return {}
    size, index = _number(environ, "LWS_GROUP_SIZE"), _number(environ, "LWS_WORKER_INDEX")
    return _topology("LeaderWorkerSet", nnodes=size, node_rank=index, host=host)


def _volcano(environ: Mapping[str, str]) -> dict[str, Found]:
    index = _number(environ, "VC_TASK_INDEX")
    tasks = [name[3:-6] for name in environ if name.startswith("VC_") and name.endswith("_HOSTS")]
    if index < 0 or len(tasks) != 1:
        return {}  # With several kinds of task nobody can tell which of them are ours.
    hosts = environ[f"VC_{tasks[0]}_HOSTS"].split(",")
    return _topology("Volcano", nnodes=len(hosts), node_rank=index, host=hosts[0])


def _openmpi(environ: Mapping[str, str]) -> dict[str, Found]:
    """`mpirun --npernode 1`; it names no host, so MASTER_ADDR has to."""
    size, rank = _number(environ, "OMPI_COMM_WORLD_SIZE"), _number(environ, "OMPI_COMM_WORLD_RANK")
    if size < 2 or environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") != "1":
        return {}
    port = _number(environ, "MASTER_PORT")
    host = environ.get("MASTER_ADDR", "")
    port = port if port > 0 else C10D_PORT
    return _topology("Open MPI", nnodes=size, node_rank=rank, host=host, port=port)


def _indexed_job(environ: Mapping[str, str]) -> dict[str, Found]:
    """A Kubernetes Job tells each pod its index, and not how many there are."""
    return _topology("Kubernetes Job", node_rank=_number(environ, "JOB_COMPLETION_INDEX"))
