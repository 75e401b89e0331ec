"""Gradients averaged by hand, as in torch's tutorial on distributed applications; no DDP."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FEATURES = ("plain", "mean", "accumulate", "every", "clip", "divided", "flat")


def average_gradients(model: nn.Module, feature: str) -> None:
    size = float(dist.get_world_size())
    if feature == "clip":
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    if feature == "flat":
        flat = torch.cat([param.grad.view(-1) for param in model.parameters()])
        dist.all_reduce(flat)
        parts = flat.split([param.numel() for param in model.parameters()])
        for param, part in zip(model.parameters(), parts, strict=True):
            param.grad.copy_(part.view_as(param) / size)
        return
    for param in model.parameters():
        if feature == "mean":
            dist.all_reduce(param.grad, op=dist.ReduceOp.AVG)
        elif feature == "divided":
            param.grad.data /= size
            dist.all_reduce(param.grad.data)
        else:
            dist.all_reduce(param.grad.data, op=dist.ReduceOp.SUM)
            param.grad.data /= size


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("feature", choices=FEATURES)
    feature = parser.parse_args().feature
    dist.init_process_group("gloo")
    torch.manual_seed(1234)
    model = nn.Sequential(
        nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 16)
    ).double()
    x = torch.randn(360, 16, dtype=torch.float64)
    data = TensorDataset(x, x.roll(1, 1) * 0.5)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=6, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    every = 2 if feature in ("accumulate", "every") else 1
    for epoch in range(2):
        sampler.set_epoch(epoch)
        epoch_loss = 0.0
        for number, (x, y) in enumerate(loader):
            loss = F.mse_loss(model(x), y)
            epoch_loss += loss.item()
            loss.backward()
            if feature == "every" or number % every == every - 1:
                average_gradients(model, feature)
            if number % every == every - 1:
                optimizer.step()
                optimizer.zero_grad()
        print("rank", dist.get_rank(), "epoch", epoch, "loss", epoch_loss / len(loader))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
