"""The script looks at its own process: its threads, and who forks it. `own_process.py OUT`."""

import os
import sys
import threading

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS = 6


def say(line):
    """In one go: lines of two ranks must not mix."""
    os.write(1, f"{line}\n".encode())


(out,) = sys.argv[1:]
forks = []
os.register_at_fork(
    before=lambda: forks.append("before"),
    after_in_parent=lambda: forks.append("parent"),
    after_in_child=lambda: os.write(1, b"step in a child\n"),
)
torch.set_default_dtype(torch.float64)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
xs = torch.randn(STEPS, dist.get_world_size(), 4, 8)
for step in range(STEPS):
    optimizer.zero_grad()
    model(xs[step, rank]).square().mean().backward()
    optimizer.step()
    say(f"step {step} rank {rank} forks {forks} threads {threading.active_count()}")
if not os.fork():
    os._exit(0)
os.wait()
others = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
say(f"step {STEPS} rank {rank} forks {forks} threads {[thread.name for thread in others]}")
for thread in others:
    thread.join()
torch.save(model.module.state_dict(), f"{out}/weights{rank}.pt")
dist.destroy_process_group()
