"""What one launcher was asked to do: parsed once, frozen, and from then on believed.

The meaning of the options is torchrun's. Where torchrun would start a rendezvous on the network for
a job of one node, we use none: no endpoint is opened that nobody else needs.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from shutil import which

from recoverrun.errors import ExitCode, RecoverrunError
from rendezvous.formation import NPROC_MOST
from rendezvous.schedule import ScheduleError, parse

C10D_PORT = 29400
STATIC_PORT = 29500
JOIN_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where the launchers of a job meet."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line as given, before anything is concluded from it."""

    command: tuple[str, ...]  # the script and its arguments
    module: bool = False
    no_python: bool = False
    nnodes: str = "1"
    node_rank: int | None = None
    nproc_per_node: str = "1"
    standalone: bool = False
    rdzv_backend: str = "static"
    rdzv_endpoint: str = ""
    rdzv_id: str = "none"
    rdzv_conf: str = ""
    master_addr: str = ""
    master_port: int | None = None
    max_restarts: int = 0
    min_replicas: int = 1
    run_dir: Path | None = None
    no_protect: bool = False
    inject: str = ""
    witness: str = ""
    digest_every: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """One launcher's part of a job."""

    script: str
    arguments: tuple[str, ...]
    module: bool
    no_python: bool
    nnodes: int
    node_rank: int  # -1: as the coordinator chooses
    nproc: int
    endpoint: Endpoint | None  # None: all workers are on this node
    must_host: bool  # this launcher has to be the one that listens at the endpoint
    may_host: bool  # it tries to, and joins whoever already does
    run_id: str
    master_port: int  # 0: any free one
    join_timeout_s: float
    max_restarts: int
    min_replicas: int
    run_dir: Path | None
    protect: bool
    inject: str
    witness: str
    digest_every: int

    @property
    def name(self) -> str:
        """The script's name as a part of a path."""
        stem = self.script if self.module else Path(self.script).stem
        return re.sub(r"[^A-Za-z0-9._-]", "_", stem).strip(".")[:64] or "run"


def parse_options(options: Options, environ: Mapping[str, str]) -> RunConfig:
    """Raises RecoverrunError with exit code 2 for what cannot be meant."""
    command = options.command[1:] if options.command[:1] == ("--",) else options.command
    if not command or not command[0]:
        raise _usage("no training script was given")
    script, arguments = command[0], command[1:]
    if arguments[:1] == ("--",):  # As under torchrun: the first one next to the script is ours.
        arguments = arguments[1:]
    if options.module and options.no_python:
        raise _usage("-m needs Python, so it cannot go with --no-python")
    nnodes = _nnodes(options.nnodes)
    node_rank = -1 if options.node_rank is None else options.node_rank
    if options.node_rank is not None and not 0 <= node_rank < nnodes:
        raise _usage(f"--node-rank {node_rank} does not exist in a job of {nnodes} nodes")
    alone = options.standalone or nnodes == 1
    fixed = options.rdzv_backend == "static"
    for name, count in (
        ("max-restarts", options.max_restarts),
        ("digest-every", options.digest_every),
        ("min-replicas", options.min_replicas - 1),
    ):
        if count < 0:
            raise _usage(f"--{name} is too small")
    return RunConfig(
        script=script,
        arguments=arguments,
        module=options.module,
        no_python=options.no_python,
        nnodes=1 if options.standalone else nnodes,
        node_rank=-1 if alone else node_rank,
        nproc=_nproc(options.nproc_per_node, environ),
        endpoint=None if alone else _endpoint(options),
        must_host=fixed and node_rank == 0,
        may_host=not fixed or node_rank <= 0,
        run_id=os.urandom(16).hex() if alone and options.rdzv_id == "none" else options.rdzv_id,
        master_port=_port(options.master_port or 0, "--master-port"),
        join_timeout_s=_join_timeout(options.rdzv_conf),
        max_restarts=options.max_restarts,
        min_replicas=options.min_replicas,
        run_dir=options.run_dir,
        protect=not options.no_protect and not options.no_python,
        inject=_inject(options.inject),
        witness=options.witness,
        digest_every=options.digest_every,
    )


def find_script(config: RunConfig) -> None:
    """Raises RecoverrunError if there is nothing to run, before any process is started."""
    if config.no_python:
        if which(config.script) is None:
            raise _usage(f"there is no program {config.script!r} to run")
    elif config.module:
        # Only the top level: to look for a submodule would import its parents into the launcher.
        top = config.script.split(".")[0]
        if PathFinder.find_spec(top, None) is None and PathFinder.find_spec(top, [""]) is None:
            raise _usage(f"there is no module {config.script!r} to run")
    elif not Path(config.script).exists():
        raise _usage(f"there is no script {config.script!r} in {os.getcwd()}")
    elif not os.access(config.script, os.R_OK):
        raise _usage(f"the script {config.script!r} cannot be read")
    elif Path(config.script).is_dir() and not Path(config.script, "__main__.py").exists():
        raise _usage(f"{config.script!r} is a directory without a __main__.py")


def _usage(sentence: str) -> RecoverrunError:
    return RecoverrunError(sentence, ExitCode.USAGE)


def _nnodes(text: str) -> int:
    """N, or MIN:MAX with both the same: a job that grows and shrinks is not supported yet."""
    parts = text.split(":")
    if len(parts) > 2 or not all(part.isascii() and part.isdigit() for part in parts):
        raise _usage(f"--nnodes must be a number like 2, not {text!r}")
    least, most = int(parts[0]), int(parts[-1])
    if least != most:
        raise _usage(f"--nnodes {text}: a range of nodes is not supported yet, give one number")
    if not 1 <= most <= 10_000:
        raise _usage(f"--nnodes must be at least 1, not {text}")
    return most


def _nproc(text: str, environ: Mapping[str, str]) -> int:
    """Workers of this node: a number, or as many as there are "cpu"s or "gpu"s; "auto": either."""
    if text.isascii() and text.isdigit():
        if not 1 <= int(text) <= NPROC_MOST:
            raise _usage(f"--nproc-per-node must be between 1 and {NPROC_MOST}, not {text}")
        return int(text)
    cpus = len(os.sched_getaffinity(0))
    if text == "cpu":
        return cpus
    if text not in ("auto", "gpu"):
        raise _usage(f"--nproc-per-node must be a number, auto, cpu or gpu, not {text!r}")
    gpus = _gpus(environ)
    if text == "gpu" and not gpus:
        raise _usage("--nproc-per-node gpu: this node shows no GPU")
    return gpus or cpus


def _gpus(environ: Mapping[str, str]) -> int:
    """As many as CUDA would show, found without loading it."""
    present = sum(1 for path in Path("/dev").glob("nvidia*") if path.name[6:].isdigit())
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return present
    chosen = [part for part in visible.split(",") if part.strip() not in ("", "-1")]
    return min(present, len(chosen))


def _endpoint(options: Options) -> Endpoint:
    """--rdzv-endpoint, or --master-addr and --master-port, with torchrun's defaults."""
    fixed = options.rdzv_backend == "static"
    default_port = STATIC_PORT if fixed else C10D_PORT
    if not options.rdzv_endpoint:
        port = _port(options.master_port or default_port, "--master-port")
        host = options.master_addr or ("127.0.0.1" if fixed else "localhost")
        return Endpoint(host=host.strip("[]"), port=port)
    match = re.fullmatch(
        r"(\[[0-9A-Fa-f:.%\w]+\]|[^:\[\]\s]+)(?::([0-9]+))?", options.rdzv_endpoint
    )
    if match is None:
        raise _usage(f"--rdzv-endpoint must be host:port, not {options.rdzv_endpoint!r}")
    port = _port(int(match[2]) if match[2] else default_port, "--rdzv-endpoint")
    if port == 0:
        raise _usage("--rdzv-endpoint: port 0 means any, and the other nodes cannot know which")
    return Endpoint(host=match[1].strip("[]"), port=port)


def _port(port: int, option: str) -> int:
    if not 0 <= port <= 65535:
        raise _usage(f"{option}: there is no port {port}")
    return port


def _join_timeout(text: str) -> float:
    """`join_timeout` (or static's `timeout`) of --rdzv-conf in seconds; other keys are ignored."""
    seconds = JOIN_TIMEOUT_S
    for pair in filter(None, text.strip("'\"").split(",")):
        key, equals, value = pair.partition("=")
        if not equals or not value:
            raise _usage(f"--rdzv-conf must be key=value,key=value, not {text!r}")
        if key.strip() in ("join_timeout", "timeout"):
            try:
                seconds = float(value)
            except ValueError:
                raise _usage(f"--rdzv-conf {key.strip()} must be seconds, not {value!r}") from None
            if not 0 < seconds <= 7 * 86400:
                raise _usage(f"--rdzv-conf {key.strip()} must be positive, not {value}")
    return seconds


def _inject(text: str) -> str:
    try:
        parse(text)
    except ScheduleError as error:
        raise _usage(f"--inject: {error}") from error
    return text
