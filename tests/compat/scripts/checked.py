"""EDM's way: replicas are compared by broadcasts of rank 0, which also says when to stop.

Rank 0 alone knows the folder of checkpoints, as in DiT, and all hear which was the last.
Output goes through an object of the script's own. Gradients are cleaned before each update.
"""

import os
import shutil
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Sampler, TensorDataset

rank = int(os.environ["RANK"])
torch.manual_seed(3)
torch.set_default_dtype(torch.float64)


class Logger:
    def __init__(self, file):
        self.file = file

    def write(self, text):
        self.file.write(text)

    def flush(self):
        self.file.flush()


class Infinite(Sampler):
    def __init__(self, data, rank, world):
        self.data, self.rank, self.world = data, rank, world

    def __iter__(self):
        order = torch.randperm(len(self.data), generator=torch.Generator().manual_seed(7))
        at = 0
        while True:
            if at % self.world == self.rank:
                yield order[at % len(order)].item()
            at += 1


def check_consistency(module):
    for name, tensor in module.named_parameters():
        other = tensor.detach().clone()
        dist.broadcast(tensor=other, src=0)
        assert torch.equal(tensor, other), name


@torch.no_grad()
def evaluate(model):
    model.eval()
    loss = (model(inputs[:16]).squeeze(1) - inputs[:16].sum(dim=1)).square().mean()
    model.train()
    return loss.item()


sys.stdout = Logger(sys.stdout)
dist.init_process_group("gloo")
if rank == 0:
    folder = tempfile.mkdtemp()
    print(f"checkpoints go to {folder}")
else:
    print("another rank")
inputs = torch.randn(96, 8)
data = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
sampler = Infinite(data, rank, dist.get_world_size())
batches = iter(DataLoader(data, 4, sampler=sampler))
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 1))
ddp = DDP(model)
optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-2)
stop, saved = torch.zeros(1), torch.zeros(1)
step = 0
while True:
    optimizer.zero_grad(set_to_none=True)
    for micro in range(2):
        with ddp.no_sync() if micro == 0 else torch.enable_grad():
            x, y = next(batches)
            (ddp(x) - y).square().mean().div(2).backward()
    for param in model.parameters():
        if param.grad is not None:
            torch.nan_to_num(param.grad, nan=0, posinf=1e5, neginf=-1e5, out=param.grad)
    optimizer.step()
    step += 1
    if step % 3 == 1:
        check_consistency(model)
    if rank == 0 and evaluate(model) < 6.0:
        stop.fill_(1)
    if rank == 0 and step % 3 == 0:
        torch.save(model.state_dict(), f"{folder}/last.pt")
        saved.fill_(step)
    dist.broadcast(saved, src=0)
    dist.broadcast(stop, src=0)
    if stop.item():
        break
assert saved.item() == step == 9
if rank == 0:
    shutil.rmtree(folder)
print(f"stopped after {step} steps")
dist.barrier()
dist.destroy_process_group()
