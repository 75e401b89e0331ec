"""A script that meets by itself at MASTER_ADDR and MASTER_PORT: rank 0 hosts the store."""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
assert dist.is_torchelastic_launched()
if sys.argv[1] == "store":
    store = dist.TCPStore(host, port, world, rank == 0, timedelta(seconds=30))
    store.set(f"rank{rank}", "here")
    store.wait([f"rank{other}" for other in range(world)])
    store.add("done", 1)
    while rank == 0 and store.add("done", 0) < world:
        pass
else:
    method = "env://" if sys.argv[1] == "env" else f"tcp://{host}:{port}"
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=world)
    total = torch.ones(1)
    dist.all_reduce(total)
    assert int(total) == world
    if len(sys.argv) > 2 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        if rank == 1:
            os.kill(os.getpid(), 9)
        dist.barrier()
    dist.destroy_process_group()
os.write(1, f"MET {rank}\n".encode())
