"""One function goes through the data to train and to evaluate; rank 0 evaluates first, alone."""

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.set_default_dtype(torch.float64)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
train_set = TensorDataset(torch.randn(96, 8), torch.randn(96, 2))
test_set = TensorDataset(torch.randn(16, 8), torch.randn(16, 2))
net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 2))
model = DDP(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(10 + rank)


def run(loader, train):
    total = 0.0
    for x, y in loader:
        x = x + 0.1 * torch.randn_like(x)
        loss = F.mse_loss((model if train else net)(x), y)
        if train:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += loss.item()
    return total


sampler = DistributedSampler(train_set)
train_loader = DataLoader(train_set, 4, sampler=sampler)
test_loader = DataLoader(test_set, 4)
for epoch in range(2):
    sampler.set_epoch(epoch)
    if rank == 0:
        run(test_loader, False)
    run(train_loader, True)
dist.destroy_process_group()
