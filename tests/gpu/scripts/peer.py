"""Rank 1 of two over NCCL: one all-reduce, and then it waits to be killed."""

import signal
import sys
import time
from datetime import timedelta

import torch
from torch.distributed import AllreduceOptions, FileStore

from ft_collectives.communicators.nccl import Nccl, NcclChannel


def main() -> None:
    device = torch.device("cuda", 0)
    torch.cuda.synchronize(device)
    print("here", flush=True)
    over = NcclChannel(Nccl(device, timedelta(minutes=10)))
    link = over.connect(1, FileStore(sys.argv[1], 2), 1, 2, lambda: True)
    assert link is not None, "nobody ends the wait"
    tensor = torch.full((1 << 20,), 2.0, device=device)
    operation = over._begin_operation(
        link, lambda group: group.allreduce([tensor], AllreduceOptions())
    )
    while not operation.passed():
        time.sleep(0.001)
    print(tensor[0].item(), flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
