"""The facts of one node before a run, without judgement.

They travel as JSON from node to node, so what is read from a peer is checked field by field.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args, get_type_hints

UNLIMITED = -1

Reach = Literal["here", "taken", "rendezvous", "answers", "refused", "silent", "unreachable", ""]
"""What happens at the endpoint: it is ours and free, ours and in use by another program, served by
recoverrun, served by we do not know what, or the ways in which nobody answers. "": none is used.
"""

TEXT_MOST, ITEMS_MOST = 4096, 256


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """One node; sizes in bytes, spans in milliseconds, -1: no limit, "" or 0: not known."""

    node: str = ""
    wall_s: float = 0.0  # seconds since 1970, when the facts were told
    version: str = ""
    python: str = ""
    torch: str = ""
    worker_server: bool = False  # torch has the server that tells stacks of a rank that hangs
    script: str = ""
    script_digest: str = ""
    script_trouble: str = ""  # the run would have nothing to run
    no_python: bool = False
    nnodes: int = 1
    nproc: int = 1
    threads: int = 0  # of each worker
    cores: int = 1
    protect: bool = True
    returns: bool = False
    allow_mixed: bool = False
    endpoint: str = ""
    unknown_hosts: tuple[str, ...] = ()  # of the endpoints, without an address
    reach: Reach = ""
    route: str = ""  # our address towards the endpoint, "*": there is no way
    own_name: str = ""  # the address that this host's name leads to
    local_addr: str = ""  # as the user gives it
    local_addr_trouble: str = ""  # why others may not find this node there, a predicate
    interfaces: tuple[str, ...] = ()
    key: str = ""  # the file
    key_trouble: str = ""
    shm_bytes: int = 0
    shm_free_bytes: int = 0
    open_files: int = UNLIMITED  # the hard limit: the launcher raises its own to that
    worker_files: int = UNLIMITED  # the soft one, which workers keep
    processes: int = UNLIMITED
    locked_bytes: int = UNLIMITED
    core_bytes: int = 0
    core_pattern: str = ""
    memory_bytes: int = UNLIMITED  # of the cgroup
    oom_group: bool = False
    pids_left: int = UNLIMITED  # of the cgroup
    ptrace_scope: int = 0
    py_spy: bool = False
    run_dir: str = ""
    run_dir_trouble: str = ""
    run_dir_free_bytes: int = 0
    fsync_ms: float = 0.0
    gpus: bool = False
    gpu_words: str = ""  # models and driver
    gpu_troubles: tuple[str, ...] = ()  # clauses
    kernel_log: bool = True  # it may be read
    oom_kills: int = 0  # on this machine, since it started
    oom_killed: tuple[str, ...] = ()  # the last of them, as the kernel's log has them
    xids: tuple[str, ...] = ()  # of the GPU driver, in the kernel's log
    proxied: tuple[str, ...] = ()  # what we tell others goes there through a proxy
    environ: Mapping[str, str] = field(default_factory=dict)  # what concerns training, no secrets
    scheduler: str = ""  # slurm, systemd, kubernetes
    batch_script: str = ""  # the part of a Slurm job's script that concerns us
    kill_on_bad_exit: bool = False  # of this Slurm
    oom_policy: str = ""  # of this systemd unit


def as_json(facts: NodeFacts) -> bytes:
    return json.dumps(asdict(facts)).encode()


def from_json(text: bytes) -> NodeFacts:
    """The facts that a peer tells of itself. Raises ValueError for what are no facts."""
    raw = json.loads(text)
    if not isinstance(raw, dict):
        raise ValueError("facts are a JSON object")
    known = {one.name for one in fields(NodeFacts)}
    hints = get_type_hints(NodeFacts)
    values = {name: _checked(name, hints[name], raw[name]) for name in sorted(known & raw.keys())}
    return NodeFacts(**values)


def _checked(name: str, hint: Any, value: Any) -> Any:
    if hint in (int, float):
        fine = isinstance(value, int | float) and not isinstance(value, bool)
        if not fine or not abs(value) < 1e18 or (hint is int and not isinstance(value, int)):
            raise ValueError(f"{name} is no number")
        return value
    if hint is bool:
        if not isinstance(value, bool):
            raise ValueError(f"{name} is neither true nor false")
        return value
    if hint is str:
        return _text(name, value)
    if hint == Reach:
        if value not in get_args(Reach):
            raise ValueError(f"{name} is none of its words")
        return value
    if isinstance(value, list) and hint == tuple[str, ...]:
        return tuple(_text(name, one) for one in value[:ITEMS_MOST])
    if isinstance(value, dict) and hint == Mapping[str, str]:
        pairs = list(value.items())[:ITEMS_MOST]
        return {_text(name, key): _text(name, one) for key, one in pairs}
    raise ValueError(f"{name} is of another type")


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} is no text")
    return value[:TEXT_MOST]
