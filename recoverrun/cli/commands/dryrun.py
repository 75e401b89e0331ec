"""`--dry-run`: what every worker of this node would be started with. Nothing is started."""

import os
import shlex
import sys

from recoverrun.config.run_config import RunConfig, find_script
from recoverrun.launcher.network.addresses import master_address
from recoverrun.launcher.node.environment import WorkerSettings, worker_command, worker_environ
from recoverrun.text import ranges
from rendezvous.protocol.formation_messages import Start


def lines(config: RunConfig, environ: dict[str, str]) -> list[str]:
    """The text, as if all nodes were like this one. Raises RecoverrunError as a run would."""
    find_script(config)
    node_rank = max(0, config.node_rank)
    hosts = config.must_host or config.endpoint is None or node_rank == 0
    start = Start(
        generation=1,
        node_rank=node_rank,
        nnodes=config.nnodes,
        first_rank=node_rank * config.nproc,
        nproc=config.nproc,
        world_size=config.nnodes * config.nproc,
        master_addr=master_address(config, hosts=hosts),
        nodes=tuple(f"node{rank}" for rank in range(config.nnodes)),
    )
    where = config.endpoint or "no network: one node"
    found = [f"# node {node_rank} of {config.nnodes}, rendezvous: {where}"]
    python = environ.get("PYTHON_EXEC") or sys.executable
    run_dir = str(config.run_dir or f"runs/{config.name}/TIME-PID")
    for local_rank in range(config.nproc):
        rank = start.first_rank + local_rank
        place = WorkerSettings(
            local_rank=local_rank,
            incarnation=0,
            endpoint="ipc://PRIVATE/s",
            run_dir=run_dir,
            context=f"PRIVATE/c{rank}.0",
            error_file=f"{run_dir}/error.r{rank}.0.json",
        )
        new = worker_environ(config, start, place, environ)
        added = {name: text for name, text in sorted(new.items()) if environ.get(name) != text}
        cpus = config.bindings[local_rank] if config.bindings else ()
        found.append(f"# rank {rank}" + (f", CPUs {ranges(cpus)}" if cpus else ""))
        found += [f"{name}={shlex.quote(text)} \\" for name, text in added.items()]
        found.append(f"  {shlex.join(worker_command(config, local_rank, python))}")
    return found


def dry_run(config: RunConfig) -> int:
    for note in config.notes:
        print(f"# {note}")
    print("\n".join(lines(config, dict(os.environ))))
    return 0
