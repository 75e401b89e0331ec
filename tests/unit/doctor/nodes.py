"""Facts of nodes for tests: one with which nothing is wrong, and changes of it."""

from dataclasses import replace
from typing import Any

from recoverrun.doctor.node_facts import NodeFacts

GIB = 1 << 30

HEALTHY = NodeFacts(
    node="gpu-01",
    wall_s=1_790_000_000.0,
    version="0.1.0",
    python="3.11.7",
    torch="2.13.0",
    worker_server=True,
    script="train.py",
    script_digest="ab12",
    nnodes=3,
    nproc=8,
    threads=8,
    cores=64,
    endpoint="gpu-01:29400",
    reach="here",
    route="10.0.0.1",
    own_name="10.0.0.1",
    interfaces=("lo", "eth0", "ib0"),
    key="/home/me/.config/recoverrun/key",
    shm_bytes=64 * GIB,
    shm_free_bytes=60 * GIB,
    open_files=1 << 20,
    core_pattern="|/usr/lib/systemd/systemd-coredump",
    core_bytes=-1,
    run_dir="runs",
    run_dir_free_bytes=900 * GIB,
    fsync_ms=4.0,
)


def node(name: str = "gpu-01", **changes: Any) -> NodeFacts:
    return replace(HEALTHY, node=name, **changes)
