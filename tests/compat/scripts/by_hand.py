"""Gradients averaged by hand, as in torch's tutorial on distributed applications; no DDP."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FEATURES = (
    "plain", "mean", "accumulate", "every", "clip", "divided", "weighted",
    "flat", "flat-divided", "buckets", "unused", "clamp-late", "apart",
)  # fmt: skip


def average_gradients(model: nn.Module, feature: str) -> None:
    size = float(dist.get_world_size())
    if feature == "clip":
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    if feature == "clamp-late":  # on one rank, in a later step than the first
        for param in model.parameters():
            param.grad.clamp_(-0.1, 0.1)
    if feature in ("flat", "flat-divided", "unused", "apart"):
        flat_average(model, feature, size)
        return
    if feature == "buckets":
        buckets_average(model, size)
        return
    for param in model.parameters():
        if feature == "mean":
            dist.all_reduce(param.grad, op=dist.ReduceOp.AVG)
        elif feature in ("divided", "weighted"):
            param.grad.data *= (1 + dist.get_rank()) / 6 if feature == "weighted" else 1 / size
            dist.all_reduce(param.grad.data)
        else:
            dist.all_reduce(param.grad.data, op=dist.ReduceOp.SUM)
            param.grad.data /= size


def flat_average(model: nn.Module, feature: str, size: float) -> None:
    """As CleanRL's scripts for several GPUs do."""
    if feature == "flat-divided":
        for param in model.parameters():
            param.grad /= size
    flat = torch.cat([p.grad.view(-1) for p in model.parameters() if p.grad is not None])
    dist.all_reduce(flat, op=dist.ReduceOp.SUM)
    if feature == "apart":
        return  # it only wanted to know
    offset = 0
    for param in model.parameters():
        if param.grad is None:
            continue
        part = flat[offset : offset + param.numel()].view_as(param.grad.data)
        param.grad.data.copy_(part if feature == "flat-divided" else part / size)
        offset += param.numel()


def buckets_average(model: nn.Module, size: float) -> None:
    """As apex's DistributedDataParallel does, one bucket for each kind of layer."""
    gradients = [param.grad.data for param in model.parameters()]
    buckets = [gradients[4:], gradients[:4]]
    flats = [_flatten_dense_tensors(bucket) for bucket in buckets]
    works = [dist.all_reduce(flat.div_(size), async_op=True) for flat in flats]
    for bucket, flat, work in zip(buckets, flats, works, strict=True):
        work.wait()
        for gradient, part in zip(bucket, _unflatten_dense_tensors(flat, bucket), strict=True):
            gradient.copy_(part)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("feature", choices=FEATURES)
    feature = parser.parse_args().feature
    dist.init_process_group("gloo")
    torch.manual_seed(1234)
    model = nn.Sequential(
        nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 16)
    ).double()
    if feature == "unused":
        model.register_parameter("unused", nn.Parameter(torch.ones(3, dtype=torch.float64)))
    x = torch.randn(360, 16, dtype=torch.float64)
    data = TensorDataset(x, x.roll(1, 1) * 0.5)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=6, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    every = 2 if feature in ("accumulate", "every", "flat-divided") else 1
    for epoch in range(2):
        sampler.set_epoch(epoch)
        epoch_loss = 0.0
        for number, (x, y) in enumerate(loader):
            loss = F.mse_loss(model(x), y)
            epoch_loss += loss.item()
            if feature == "clamp-late" and epoch and dist.get_rank() == 1:
                loss = loss * 50
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
