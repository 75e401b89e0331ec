"""Looks at this node and writes down what it finds. It judges nothing, and changes nothing.

Each look is bounded in time, and torch is read as files, never imported: a second is enough.
"""

import errno
import platform
import resource
import shutil
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.machinery import PathFinder
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from recoverrun.config.cpu_count import cores
from recoverrun.config.option_values import Endpoint
from recoverrun.config.run_config import RunConfig, find_script
from recoverrun.doctor.cgroup_limits import cgroup_limits
from recoverrun.doctor.gpu_probe import gpus
from recoverrun.doctor.kernel_log import kernel_log
from recoverrun.doctor.node_facts import UNLIMITED, NodeFacts, Reach
from recoverrun.doctor.run_directory import tried
from recoverrun.doctor.scheduler_probe import scheduler_facts
from recoverrun.errors import RecoverrunError
from recoverrun.launcher.network.addresses import ELSEWHERE, addresses, local_address
from recoverrun.launcher.network.handshake_diagnosis import is_rendezvous
from recoverrun.launcher.network.job_fingerprint import job_fingerprint, script_digest
from recoverrun.launcher.network.key_lookup import find_key
from recoverrun.launcher.network.name_lookup import NameLookup
from recoverrun.launcher.node import py_spy
from recoverrun.version import __version__
from rendezvous.transport.own_addresses import own_name_leads_to

CALL_S = 1.0
LOOKUP_S = 5.0
"""Only a name that nobody knows takes so long."""

SHARED_MEMORY = Path("/dev/shm")

CONCERNS = (
    "NCCL_",
    "TORCH_NCCL_",
    "GLOO_",
    "OMP_",
    "CUDA_LAUNCH_",
    "PET_",
    "SBATCH_NO_KILL",
    "SLURM_KILL_",
)
"""Beginnings of the names of variables that are looked at. No others are kept or sent."""


def node_facts(
    config: RunConfig,
    environ: Mapping[str, str],
    *,
    script: bool,
    meets: bool = False,
    addresses: Mapping[str, str] = MappingProxyType({}),
) -> NodeFacts:
    """The facts of this node; `script`: the user has named one. A node that `meets` the others
    leaves their meeting place alone: what happens there it learns as it meets them. `addresses`
    (URLs by what they are for) are what the run would tell others.
    """
    facts = replace(
        _machine(config, environ),
        version=__version__,
        python=platform.python_version(),
        torch=job_fingerprint(config).torch,
        worker_server=_has_worker_server(),
        script=config.script if script else "",
        script_digest=script_digest(config.script) if script and not config.module else "",
        script_trouble=_script_trouble(config) if script else "",
        no_python=config.no_python,
        nnodes=config.nnodes,
        nproc=config.nproc,
        threads=config.threads,
        protect=config.protect,
        returns=config.recovery_policy.returns,
        allow_mixed=config.allow_mixed,
        interfaces=tuple(name for _, name in socket.if_nameindex()),
        environ={name: text for name, text in environ.items() if name.startswith(CONCERNS)},
        proxied=proxied(addresses, environ),
    )
    try:
        facts = replace(facts, key=find_key(config, environ).origin)
    except RecoverrunError as error:
        facts = replace(facts, key_trouble=str(error))
    if config.endpoint is None:
        return facts
    facts = _networked(facts, config, config.endpoint)
    looked_at = facts.unknown_hosts or facts.route == "*" or meets
    return facts if looked_at else replace(facts, reach=reach(config.endpoint))


def _networked(facts: NodeFacts, config: RunConfig, endpoint: Endpoint) -> NodeFacts:
    """The facts, with those about the way to other nodes."""
    unknown = tuple(NameLookup(config.endpoints).wait(LOOKUP_S))
    if endpoint.host in unknown:
        every = unknown if len(unknown) == len(config.endpoints) else ()
        return replace(facts, endpoint=str(endpoint), unknown_hosts=every)
    return replace(
        facts,
        endpoint=str(endpoint),
        route=local_address(endpoint),
        own_name=own_name_leads_to(),
        local_addr=config.local_addr,
        local_addr_trouble=stray(config.local_addr) if config.local_addr else "",
    )


def stray(host: str) -> str:
    """Why others may not find this machine at `host`, a predicate; "" if it is one of its own."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return "has no address that is known here"
    for family, kind, _, _, place in found:
        with suppress(OSError), socket.socket(family, kind) as probe:
            probe.bind(place)
            return ""
    return "is no address of this machine"


def _machine(config: RunConfig, environ: Mapping[str, str]) -> NodeFacts:
    """The facts of the machine and its scheduler."""
    shm = _disk(SHARED_MEMORY)
    limits = cgroup_limits()
    graphics, kernel = gpus(), kernel_log()
    told = scheduler_facts(environ, limits.unit)
    run_dir = config.run_dir or Path("runs")
    trouble, free, fsync_ms = tried(run_dir)
    return NodeFacts(
        node=socket.gethostname(),
        wall_s=time.time(),
        cores=cores(),
        shm_bytes=shm[0],
        shm_free_bytes=shm[1],
        open_files=_limit(resource.RLIMIT_NOFILE, hard=True),
        worker_files=_limit(resource.RLIMIT_NOFILE),
        processes=_limit(resource.RLIMIT_NPROC),
        locked_bytes=_limit(resource.RLIMIT_MEMLOCK),
        core_bytes=_limit(resource.RLIMIT_CORE),
        core_pattern=_text(Path("/proc/sys/kernel/core_pattern")),
        memory_bytes=limits.memory_bytes,
        oom_group=limits.oom_group,
        pids_left=limits.pids_left,
        ptrace_scope=int(_text(Path("/proc/sys/kernel/yama/ptrace_scope")) or 0),
        py_spy=bool(py_spy.find()),
        run_dir=str(run_dir),
        run_dir_trouble=trouble,
        run_dir_free_bytes=free,
        fsync_ms=fsync_ms,
        gpus=graphics.there,
        gpu_words=graphics.words,
        gpu_troubles=graphics.troubles,
        kernel_log=kernel.readable,
        oom_kills=kernel.oom_kills,
        oom_killed=kernel.killed,
        xids=kernel.xids,
        scheduler=told.scheduler,
        batch_script=told.batch_script,
        kill_on_bad_exit=told.kill_on_bad_exit,
        oom_policy=told.oom_policy,
    )


def proxied(addresses: Mapping[str, str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """The URLs that are reached through a proxy, with the variable that says so."""
    found = []
    for what, url in addresses.items():
        parts = urlsplit(url)
        names = (f"{parts.scheme}_proxy", f"{parts.scheme}_proxy".upper(), "all_proxy", "ALL_PROXY")
        variable = next((name for name in names if environ.get(name)), "")
        outside = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
        if variable and not _is_outside(parts.hostname or "", outside):
            found.append(f"{what}: {variable}")
    return tuple(found)


def _is_outside(host: str, outside: str) -> bool:
    """True if `no_proxy`, a list of hosts and domains, holds this host."""
    domains = [word.strip().lstrip(".") for word in outside.split(",") if word.strip()]
    return any(one in ("*", host) or host.endswith(f".{one}") for one in domains)


def reach(endpoint: Endpoint) -> Reach:
    """The state of the endpoint: whether we may serve there, and who answers."""
    for address in addresses(endpoint.host):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            with socket.create_server((address, endpoint.port), family=family):
                return "here"
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return "rendezvous" if is_rendezvous(endpoint) else "taken"
            if error.errno not in ELSEWHERE:
                return "unreachable"
    return _called(endpoint)


def _called(endpoint: Endpoint) -> Reach:
    try:
        with socket.create_connection((endpoint.host, endpoint.port), CALL_S):
            pass
    except ConnectionRefusedError:
        return "refused"
    except TimeoutError:
        return "silent"
    except OSError:
        return "unreachable"
    return "rendezvous" if is_rendezvous(endpoint) else "answers"


def _disk(place: Path) -> tuple[int, int]:
    """Bytes in all, and free."""
    with suppress(OSError):
        usage = shutil.disk_usage(place)
        return usage.total, usage.free
    return 0, 0


def _limit(kind: int, *, hard: bool = False) -> int:
    found = resource.getrlimit(kind)[hard]
    return UNLIMITED if found == resource.RLIM_INFINITY else found


def _has_worker_server() -> bool:
    """True if torch's stubs name it: the library itself is not loaded."""
    torch = PathFinder.find_spec("torch")
    if torch is None or torch.origin is None:
        return False
    stubs = Path(torch.origin).parent / "_C" / "_distributed_c10d.pyi"
    return "_WorkerServer" in _text(stubs)


def _script_trouble(config: RunConfig) -> str:
    """The sentence with which the run would end before it starts, "" if it has what to run."""
    try:
        find_script(config)
    except RecoverrunError as error:
        return str(error)
    return ""


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(errors="replace").strip()
    return ""
