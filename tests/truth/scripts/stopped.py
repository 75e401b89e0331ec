"""A handler asks the loop to end, while a rank computes the microbatch of a lost one: `stopped.py
OUT`.

In the forward of step 5 rank 1 has both ranks told, and goes on once it has been told itself. Once
rank 1 is lost, the other one does that for it.
"""

import os
import signal
import sys
from subprocess import PIPE, Popen

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_default_dtype(torch.float64)
STEPS, AT = 10, 5
CAME, TOLD, ASK = 200, 201, 202  # the same files on all ranks
asked = False


def ask(number, frame):
    global asked
    asked = True


def listen():
    """Python writes the signal's number to a pipe as it comes."""
    signal.signal(signal.SIGUSR1, ask)
    ends = os.pipe()
    os.dup2(ends[0], CAME)
    os.dup2(ends[1], TOLD)
    os.set_blocking(TOLD, False)
    signal.set_wakeup_fd(TOLD)
    pids = [None, None]
    dist.all_gather_object(pids, os.getpid())
    tell = f"read line; for pid in {pids[0]} {pids[1]}; do kill -USR1 $pid; done; exec cat"
    helper = Popen(["sh", "-c", tell], stdin=PIPE)
    os.dup2(helper.stdin.fileno(), ASK)
    return helper


def main(out):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    draws = torch.Generator().manual_seed(rank)
    helper = listen()
    for step in range(STEPS):
        if step == AT and rank == 1:
            os.write(ASK, b"\n")
            os.read(CAME, 1)
        optimizer.zero_grad()
        model(torch.randn(4, 8, generator=draws)).square().mean().backward()
        optimizer.step()
        if asked and step >= AT:  # the other rank may be a step behind
            break
    signal.set_wakeup_fd(-1)
    os.close(ASK)
    helper.kill()
    helper.wait()
    torch.save(model.module.state_dict(), f"{out}/weights{rank}.pt")
    dist.destroy_process_group()


main(*sys.argv[1:])
