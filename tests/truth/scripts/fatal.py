"""One sample ends whoever sees it: `fatal.py OUT WAY [shards]`; WAY is "none" or one of those
below. With shards two ranks hold a model together.
"""

import ctypes
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

STEPS, BATCH, BAD = 12, 4, -1000.0

torch.set_default_dtype(torch.float64)
out, way, *shards = sys.argv[1:]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
lock = threading.Lock()


class Samples(Dataset):
    def __init__(self):
        self.xs = torch.randn(STEPS * BATCH * world, 8)
        self.ys = torch.randn(STEPS * BATCH * world, 2)
        self.xs[5 * BATCH * world + 1, 0] = BAD  # rank 1 has it in step 5

    def __len__(self):
        return len(self.xs)

    def __getitem__(self, row):
        x = self.xs[row].clone()
        if x[0] == BAD:
            x[0] = 1.0
            if way == "exit":
                sys.exit(f"record {row} is damaged")
            elif way == "hard":
                os._exit(7)
            elif way == "quiet":
                os._exit(0)
            elif way == "fault":
                os.kill(os.getpid(), signal.SIGSEGV)
            elif way == "crash":
                ctypes.string_at(0)
            elif way == "memory":
                [bytearray(b"x") * (1 << 26) for _ in range(64)]
            elif way == "sleep":
                time.sleep(1000)
            elif way == "late":  # it dies as it next speaks to others
                os.closerange(3, 1024)
        return x, self.ys[row]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x):
        if way == "lock" and (x[:, 0] == 1.0).any():
            lock.acquire()
            lock.acquire()
        if way == "deaf" and (x[:, 0] == 1.0).any():  # no signal ends this wait
            mutex = ctypes.create_string_buffer(256)
            for _ in range(2):
                ctypes.CDLL(None).pthread_mutex_lock(mutex)
        return self.layers(x)


torch.manual_seed(0)
data = Samples()
loader = DataLoader(data, BATCH, sampler=DistributedSampler(data, shuffle=False))
if shards:
    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("replicas", "shards"))
    model = fully_shard(Model(), mesh=mesh)
else:
    model = DDP(Model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for x, y in loader:
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
state = model.state_dict() if shards else model.module.state_dict()
local = {k: v.to_local() if shards else v for k, v in state.items()}
torch.save(local, f"{out}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
