"""The task of one launcher: parsed once, and frozen. The meaning of the options is torchrun's. A
job of one node opens no endpoint.
"""

import math
import os
import re
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from shutil import which

from recoverrun.config import numa, option_values
from recoverrun.config.cpu_count import cores
from recoverrun.config.given_options import Options
from recoverrun.config.option_values import Endpoint, StandardStreams
from recoverrun.config.snapshot_options import SnapshotOptions, snapshot_every, snapshot_options
from recoverrun.errors import RecoverrunError
from recoverrun.text import plural
from rendezvous.consensus.register_events import OnSilence
from rendezvous.coordinator.recovery_policy import RecoveryPolicy
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.fault_schedule import ScheduleError, parse


@dataclass(frozen=True, slots=True, kw_only=True)
class Logs:
    """The targets of the streams of this node's workers."""

    base: Path | None  # None: into the run directory
    redirects: StandardStreams
    tee: StandardStreams
    local_ranks: frozenset[int]  # that may use the console; empty: all
    ranks: frozenset[int]  # the same by global rank
    stdout_words: tuple[str, ...]  # what makes a line worth a copy
    stderr_words: tuple[str, ...]
    prefix: str  # template of torchrun's, "": ours


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """One launcher's part of a job."""

    script: str
    arguments: tuple[str, ...]
    module: bool
    no_python: bool
    nnodes: int  # at most
    nnodes_least: int
    node_rank: int  # -1: as the coordinator chooses
    nproc: int
    endpoints: tuple[Endpoint, ...]  # none: all workers are on this node
    bindings: tuple[tuple[int, ...], ...]  # CPUs of each local rank; empty: as it comes
    threads: int  # OMP_NUM_THREADS of a worker; 0: as the user or torch has it
    must_host: bool  # this launcher has to be the one that listens at the endpoint
    may_host: bool  # it tries to, and joins whoever already does
    local_addr: str  # "": as the way to the endpoint shows
    key_file: str  # "": wherever one is found, "none": no key
    key_required: bool
    allow_mixed: bool  # nodes may differ in what they run
    run_id: str
    master_port: int  # 0: any free one
    join_timeout_s: float
    last_call_s: float
    max_restarts: int
    recovery_policy: RecoveryPolicy  # what becomes of the job where ranks are lost or hang
    snapshots: SnapshotOptions  # on a disk
    spares: int  # processes of this node that wait to take a lost worker's place
    on_silence: OnSilence
    etcd: tuple[Endpoint, ...]  # where the launchers agree; none: among themselves
    witness: Endpoint | Path | None  # who votes when one of two nodes is lost
    run_dir: Path | None
    logs: Logs
    role: str
    virtual_local_rank: bool
    signals: tuple[signal.Signals, ...]  # that are passed on
    shutdown_s: float
    protect: bool
    exact: bool  # gradients are summed in an order that no loss changes
    check_finite: bool
    inject: str
    finals: str
    digest_every: int
    notes: tuple[str, ...]  # what the user should know about the options given
    met_at: tuple[Endpoint, ...] = ()  # the job's endpoints, where those above are other places
    had_endpoint: bool = False  # this launcher listened there until it was left out

    @property
    def meeting(self) -> str:
        """The place where the launchers of this job meet, however each of them spells its host."""
        return " ".join([self.run_id, *(str(endpoint.port) for endpoint in self.of_job)])

    @property
    def of_job(self) -> tuple[Endpoint, ...]:
        """The endpoints at which the job forms, whichever are asked."""
        return self.met_at or self.endpoints

    @property
    def endpoint(self) -> Endpoint | None:
        """The first of them, where the job forms; the others help to find it."""
        return self.endpoints[0] if self.endpoints else None

    @property
    def name(self) -> str:
        """The script's name as a part of a path."""
        stem = self.script if self.module else Path(self.script).stem
        return re.sub(r"[^A-Za-z0-9._-]", "_", stem).strip(".")[:64] or "run"


def parse_options(options: Options, environ: Mapping[str, str]) -> RunConfig:
    """Raises RecoverrunError with exit code 2 for what cannot be meant."""
    script, arguments = _command(options)
    least, most = option_values.nnodes(options.nnodes)
    alone = options.standalone or most == 1
    node_rank = -1 if options.node_rank is None or alone else options.node_rank
    if options.node_rank is not None and not alone and not 0 <= node_rank < most:
        raise _usage(f"--node-rank {node_rank} does not exist in a job of {most} nodes")
    _check_numbers(options)
    fixed = option_values.is_static(options.rdzv_backend)
    conf = option_values.rdzv_conf(options.rdzv_conf)
    nproc = _nproc(options, environ, alone=alone)
    bindings: tuple[tuple[int, ...], ...] = ()
    if options.numa_binding:
        allowed = os.sched_getaffinity(0)
        bindings = numa.bindings(options.numa_binding, nproc, environ, allowed)
    signals, no_signals = option_values.signals(options.signals_to_handle)
    return RunConfig(
        script=script,
        arguments=arguments,
        module=options.module and not options.run_path,
        no_python=options.no_python and not options.run_path,
        nnodes=1 if alone else most,
        nnodes_least=1 if alone else least,
        node_rank=node_rank,
        endpoints=() if alone else _endpoints(options, fixed),
        nproc=nproc,
        bindings=bindings,
        threads=_threads(nproc, environ),
        must_host=conf.is_host is True or (fixed and node_rank == 0),
        may_host=conf.is_host is not False and (not fixed or node_rank <= 0),
        local_addr=options.local_addr.strip("[]"),
        key_file=options.key_file,
        key_required=options.key_required,
        allow_mixed=options.allow_mixed,
        run_id=os.urandom(16).hex() if alone and options.rdzv_id == "none" else options.rdzv_id,
        master_port=option_values.port(options.master_port or 0, "--master-port"),
        join_timeout_s=conf.join_timeout_s,
        last_call_s=conf.last_call_s,
        max_restarts=options.max_restarts,
        recovery_policy=_recovery_policy(options, several_nodes=not alone),
        snapshots=_snapshots(options),
        spares=options.spares * (options.returns and _protects(options)),
        on_silence=option_values.on_silence(options.on_silence),
        etcd=_etcd(options, alone=alone),
        witness=_witness(options, alone=alone),
        run_dir=options.run_dir,
        logs=_logs(options),
        role=options.role,
        virtual_local_rank=options.virtual_local_rank,
        signals=signals,
        shutdown_s=option_values.patience(options.shutdown_timeout, environ),
        protect=_protects(options),
        exact=options.exact,
        check_finite=options.check_finite,
        inject=_inject(options.inject),
        finals=options.finals,
        digest_every=options.digest_every,
        notes=_notes(options, conf.unknown, no_signals, environ, alone=alone, bound=bool(bindings)),
    )


def _command(options: Options) -> tuple[str, tuple[str, ...]]:
    command = options.command[1:] if options.command[:1] == ("--",) else options.command
    if not command or not command[0]:
        raise _usage("no training script was given")
    # As under torchrun: the first -- next to the script is ours.
    script, arguments = command[0], command[2:] if command[1:2] == ("--",) else command[1:]
    if options.module and options.no_python and not options.run_path:
        raise _usage("-m needs Python, so it cannot go with --no-python")
    return script, arguments


def _protects(options: Options) -> bool:
    protects = not options.no_protect and not (options.no_python and not options.run_path)
    if options.exact and not protects:
        other = "--no-protect" if options.no_protect else "--no-python"
        raise _usage(f"--exact is about losses that a run survives, so it cannot go with {other}")
    return protects


def _nproc(options: Options, environ: Mapping[str, str], *, alone: bool) -> int:
    """Workers of this node, which are at least as many as replicas where it is the only one."""
    nproc = option_values.nproc(options.nproc_per_node, environ)
    if alone and options.min_replicas > nproc:
        least, workers = f"--min-replicas {options.min_replicas}", plural(nproc, "worker")
        replicas = plural(nproc, "replica")
        raise _usage(f"{least}: {workers} on one node cannot be more than {replicas}")
    return nproc


def _check_numbers(options: Options) -> None:
    for name, count, least in (
        ("max-restarts", options.max_restarts, 0),
        ("check-params-every", options.digest_every, 0),
        ("min-replicas", options.min_replicas, 1),
        ("spares", options.spares, 0),
        ("shutdown-timeout", options.shutdown_timeout or 0, 0),
    ):
        if count < least:
            raise _usage(f"--{name} must be at least {least}, not {count}")
    if not 0 <= options.hang_limit < math.inf:
        raise _usage("--hang-limit must be a number of seconds, or 0")
    if not options.monitor_interval > 0:
        raise _usage("--monitor-interval must be positive")
    if options.numa_binding:
        option_values.one_of("--numa-binding", options.numa_binding, numa.MODES)


def _endpoints(options: Options, fixed: bool) -> tuple[Endpoint, ...]:
    """--rdzv-endpoint, or --master-addr and --master-port, with torchrun's defaults."""
    default_port = option_values.STATIC_PORT if fixed else option_values.C10D_PORT
    if options.rdzv_endpoint:
        return option_values.endpoints(options.rdzv_endpoint, default_port)
    port = option_values.port(options.master_port or default_port, "--master-port")
    host = options.master_addr or ("127.0.0.1" if fixed else "localhost")
    return (Endpoint(host=host.strip("[]"), port=port),)


def _etcd(options: Options, *, alone: bool) -> tuple[Endpoint, ...]:
    """--etcd, parsed also where there is no use for it. Where etcd decides, nothing else can."""
    found = option_values.coord(options.coord)
    others = [
        name
        for name, value in (("--witness", options.witness), ("--on-partition", options.on_silence))
        if value not in ("", "stop")
    ]
    if found and others:
        raise _usage(f"--etcd replaces {others[0]}: leave that out")
    return () if alone else found


def _witness(options: Options, *, alone: bool) -> Endpoint | Path | None:
    """--witness, parsed also where there is no use for it."""
    found = option_values.witness(options.witness)
    return None if alone else found


def _logs(options: Options) -> Logs:
    return Logs(
        base=options.log_dir,
        redirects=option_values.streams("--redirects", options.redirects),
        tee=option_values.streams("--tee", options.tee),
        local_ranks=option_values.rank_set("--local-ranks-filter", options.local_ranks_filter),
        ranks=option_values.rank_set("--ranks-filter", options.ranks_filter),
        stdout_words=option_values.words(options.duplicate_stdout_filters),
        stderr_words=option_values.words(options.duplicate_stderr_filters),
        prefix=options.log_line_prefix_template,
    )


def _recovery_policy(options: Options, *, several_nodes: bool) -> RecoveryPolicy:
    return RecoveryPolicy(
        min_replicas=options.min_replicas,
        several_nodes=several_nodes,
        on_hang=option_values.on_hang(options.on_hang),
        hang_limit_s=options.hang_limit,
        returns=options.returns and not options.no_protect,
        snapshot_every=snapshot_every(options, protects=_protects(options)),
        snapshot_parity=option_values.snapshot_parity(options.snapshot_parity),
        snapshots_on_disk=_snapshots(options).directory is not None,
    )


def _snapshots(one: Options) -> SnapshotOptions:
    every, memory = one.snapshot_every, one.snapshot_memory
    found = snapshot_options(one.snapshot_dir, one.snapshot_resume, memory, every)
    return found if _protects(one) else SnapshotOptions()


def _threads(nproc: int, environ: Mapping[str, str]) -> int:
    """A fair share of this node's cores; one worker may have them all, as torch chooses."""
    return 0 if nproc == 1 or "OMP_NUM_THREADS" in environ else max(1, cores() // nproc)


def _notes(
    options: Options,
    unknown: tuple[str, ...],
    no_signals: tuple[str, ...],
    environ: Mapping[str, str],
    *,
    alone: bool,
    bound: bool,
) -> tuple[str, ...]:
    """One line each: options that do nothing here, keys and signals that nobody knows, and what is
    not watched.
    """
    idle = [
        f"--{name.replace('_', '-')}"
        for name in ("monitor_interval", "start_method", "event_log_handler", "logs_specs")
        if getattr(options, name) != getattr(_DEFAULTS, name)
    ]
    if options.numa_binding and not bound:
        idle.append("--numa-binding (no NVIDIA GPU for each worker, or no CPU next to it)")
    if options.spares and not (options.returns and _protects(options)):
        idle.append("--spares (without returns)" if _protects(options) else "--spares")
    notes = [f"without effect here: {', '.join(idle)}"] if idle else []
    if unknown:
        notes.append(f"--rdzv-conf: unknown {', '.join(unknown)}")
    if no_signals:
        notes.append(f"--signals-to-handle: unknown {', '.join(no_signals)}")
    if options.node_rank and alone and not options.standalone:
        notes.append(f"--node-rank {options.node_rank} means nothing in a job of one node")
    if _protects(options) and (sys.flags.optimize or environ.get("PYTHONOPTIMIZE")):
        why = "Python leaves assertions out (-O, PYTHONOPTIMIZE)"
        notes.append(f"{why}: the invariants of this run are watched by postmortem --verify alone")
    return tuple(notes)


_DEFAULTS = Options(command=())


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


def _inject(text: str) -> str:
    try:
        parse(text)
    except ScheduleError as error:
        raise _usage(f"--inject: {error}") from error
    return text
