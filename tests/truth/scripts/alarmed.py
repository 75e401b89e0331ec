"""A signal handler raises an exception while this rank waits for the other one's gradients; the
script catches it, and goes on with the gradients of that backward: `alarmed.py OUT`.

Python writes the signal's number to a pipe as it comes, also where torch waits: until then the
other rank has no gradients.
"""

import os
import signal
import sys
from contextlib import suppress

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_default_dtype(torch.float64)
STEPS, AT = 10, 5


class Late(Exception):
    pass


def raise_late(number, frame):
    raise Late(number)


def main(out):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    draws = torch.Generator().manual_seed(rank)
    signal.signal(signal.SIGALRM, raise_late)
    assert signal.getsignal(signal.SIGALRM) is raise_late
    with suppress(FileExistsError):
        os.mkfifo(f"{out}/came")
    came = os.open(f"{out}/came", os.O_RDWR | os.O_NONBLOCK * rank)
    if rank == 1:
        signal.set_wakeup_fd(came)
    caught = 0
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8, generator=draws)).square().mean()
        if step == AT and rank == 0:
            os.read(came, 1)
        if step == AT and rank == 1:
            signal.setitimer(signal.ITIMER_REAL, 0.5)
        try:
            loss.backward()
        except Late:
            caught += 1
        optimizer.step()
    assert caught == rank
    torch.save(model.module.state_dict(), f"{out}/weights{rank}.pt")
    dist.destroy_process_group()


main(*sys.argv[1:])
