"""All batches of a step are drawn first, then trained on; with `tokens`, counted over all ranks."""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

ACCUMULATE = 3


def batches_of(loader, sampler):
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(2)
    x = torch.randn(120, 8, dtype=torch.float64)
    sampler = DistributedSampler(TensorDataset(x))
    loader = DataLoader(TensorDataset(x), batch_size=4, sampler=sampler)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 8)).double()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batches = batches_of(loader, sampler)
    for _ in range(10):
        step = [next(batches) for _ in range(ACCUMULATE)]
        scale = torch.tensor(1.0 / ACCUMULATE, dtype=torch.float64)
        if "tokens" in sys.argv:
            count = torch.tensor(sum(len(one) for (one,) in step))
            dist.all_reduce(count)
            scale = dist.get_world_size() * 4 / count
        for (batch,) in step:
            loss = F.mse_loss(model(batch), batch.roll(1, 1))
            (loss * scale).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


main()
