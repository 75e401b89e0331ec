"""A script without functions, as they are written first: its loop variables are the module's."""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 8)).double())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
data = TensorDataset(torch.randn(240, 16).double(), torch.randn(240, 8).double())
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
torch.manual_seed(7 + rank)

if sys.argv[1] == "plain":
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(loader):
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0 and i % 5 == 0:
                print(f"epoch {epoch}, batch {i}: {loss.item():.4f}")

if sys.argv[1] == "views":  # two passes of the model a step, as contrastive losses have them
    for x, _ in loader:
        one = F.normalize(model(x + 0.1 * torch.randn_like(x)), dim=1)
        other = F.normalize(model(x + 0.1 * torch.randn_like(x)), dim=1)
        loss = F.cross_entropy(one @ other.T / 0.5, torch.arange(len(x)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

dist.destroy_process_group()
