"""Losses over all ranks' samples: each is compared with those that the other ranks embed.

`own`: gradients flow through the rank's own half alone, as in MoCo or SimCLR; `through`: through
all of them, as in OpenCLIP; `centre`: a running mean of a teacher's outputs, as in DINO.
"""

import argparse

import torch
import torch.distributed as dist
import torch.distributed.nn
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(16, 8), nn.Linear(12, 8)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        one, other = (F.normalize(z, dim=-1) for z in (self.one(x), self.other(y)))
        return one, other, self.scale.exp()


def gathered(own: torch.Tensor, way: str) -> torch.Tensor:
    if way == "through":
        return torch.cat(torch.distributed.nn.all_gather(own))
    rows = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, own)
    rows[dist.get_rank()] = own
    return torch.cat(rows)


class Centred(nn.Module):
    """A student follows a teacher whose outputs are taken from their mean over all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(8))

    def forward(self, student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
        wanted = F.softmax((teacher - self.centre) / 0.05, dim=-1).detach()
        mean = teacher.detach().sum(0)
        dist.all_reduce(mean)
        mean /= len(teacher) * dist.get_world_size()
        self.centre = 0.9 * self.centre + 0.1 * mean
        return -(wanted * F.log_softmax(student / 0.1, dim=-1)).sum(-1).mean()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=("own", "through", "centre"))
    way = parser.parse_args().way
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo")
    torch.manual_seed(6)
    model = DistributedDataParallel(Towers())
    centred, teacher = Centred(), nn.Linear(12, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    size = 40 * dist.get_world_size()
    data = TensorDataset(torch.randn(size, 16), torch.randn(size, 12))
    sampler = DistributedSampler(data)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in DataLoader(data, batch_size=8, sampler=sampler):
            one, other, scale = model(x, y)
            if way == "centre":
                loss = centred(one * scale + other, teacher(y))
            else:
                labels = torch.arange(len(x)) + dist.get_rank() * len(x)
                logits = scale * one @ gathered(other, way).T
                loss = F.cross_entropy(logits, labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    total = sum(float(param.detach().abs().sum()) for param in model.parameters())
    print(f"rank {dist.get_rank()} weights {total:.14f}\n", end="", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
