"""One batch is drawn for each step and trained on in slices, as memory allows.

`chunks`: cut in the loop itself; the last batch of an epoch has fewer slices. `looped`: drawn from
a generator and cut in a function, as in guided-diffusion; each slice draws numbers of its own.
"""

import argparse

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH, SLICE = 8, 4


class Trainer:
    def __init__(self, model: nn.Module, clips: bool) -> None:
        self.model = model
        self.clips = clips
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)

    def run_loop(self, batches, steps: int) -> None:
        step = 0
        while step < steps:
            (batch,) = next(batches)
            self.forward_backward(batch)
            if self.clips:
                with torch.no_grad():
                    for param in self.model.parameters():
                        param.grad.clamp_(-0.005, 0.005)
            self.optimizer.step()
            step += 1

    def forward_backward(self, batch: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        for begin in range(0, batch.shape[0], SLICE):
            part = batch[begin : begin + SLICE]
            time = torch.from_numpy(np.random.choice(100, size=(len(part), 1)) / 100)
            noised = part + time * torch.randn_like(part)
            if begin + SLICE >= batch.shape[0]:
                loss = F.mse_loss(self.model(noised), part)
            else:
                with self.model.no_sync():
                    loss = F.mse_loss(self.model(noised), part)
            (loss * len(part) / len(batch)).backward()


def endless(loader, sampler):
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def chunks(model: nn.Module, loader, sampler, by_hand: bool) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for (batch,) in loader:
            mean = torch.zeros(())
            for part in batch.split(SLICE):
                loss = F.mse_loss(model(part), part.roll(1, 1)) * len(part) / len(batch)
                loss.backward()
                mean += loss.detach()
            if by_hand:
                for param in model.parameters():
                    dist.all_reduce(param.grad)
                    param.grad /= dist.get_world_size()
            dist.all_reduce(mean)
            if not torch.isfinite(mean):
                raise SystemExit(1)
            optimizer.step()
            optimizer.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=("chunks", "looped", "clipped", "hsdp", "by-hand"))
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo")
    torch.manual_seed(4)
    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 8))
    model: nn.Module = net
    if args.way == "hsdp":
        mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("r", "s"))
        fully_shard(net, mesh=mesh)
    elif args.way != "by-hand":
        model = DistributedDataParallel(net)
    data = TensorDataset(torch.randn(44 * dist.get_world_size(), 8))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, BATCH, sampler=sampler)
    torch.manual_seed(5 + dist.get_rank())
    np.random.seed(5 + dist.get_rank())
    if args.way in ("looped", "clipped"):
        Trainer(model, args.way == "clipped").run_loop(endless(loader, sampler), 12)
    else:
        chunks(model, loader, sampler, args.way == "by-hand")
    local = [getattr(one, "_local_tensor", one) for one in model.parameters()]
    total = sum(float(one.detach().abs().sum()) for one in local)
    print(f"rank {dist.get_rank()} weights {total:.14f}\n", end="", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
