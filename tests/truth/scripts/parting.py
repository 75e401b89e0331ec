"""A value of each rank's own weighs its loss, and is kept where it is easily missed:
`parting.py OUT WAY`.
"""

import sys
from contextvars import ContextVar
from statistics import median

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

out, way = sys.argv[1:]
STEPS, BATCH = (82 if way == "history" else 13), 4

torch.set_default_dtype(torch.float64)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
xs = torch.randn(STEPS * BATCH * world, 8)
if way == "streak":  # rank 1 has large batches from the one before the last that it trains on
    for step in range(7, 11):
        xs[(step * world + 1) * BATCH, 0] = 3.0
ys = xs.square().sum(1, keepdim=True)


READ = ContextVar("samples read so far", default=0)


def given(first):
    READ.set(READ.get() + BATCH)
    return xs[first : first + BATCH], ys[first : first + BATCH]


class Criterion:
    """The loss function is looked up by the name that a configuration has for it."""

    def __init__(self):
        self.average, self.calls = 0.0, 0

    def focused(self, predicted, target):
        each = (predicted - target).pow(2).mean(1)
        if self.calls >= 9:  # after the third proof
            each = each * torch.sigmoid(each.detach() - self.average)
        return each.mean()

    def update(self, value):
        self.average = 0.9 * self.average + 0.1 * value
        self.calls += 1


class Noise:
    """A hook of a parameter, from its seventh call on."""

    def __init__(self, seed):
        self.chance, self.calls = torch.Generator().manual_seed(seed), 0

    def __call__(self, gradient):
        self.calls += 1
        if self.calls < 7:
            return gradient
        return gradient + 0.05 * torch.randn(gradient.shape, generator=self.chance)


net = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 1))
if way == "hook":
    for number, param in enumerate(net.parameters()):
        param.register_hook(Noise(100 * rank + number))
model = DDP(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.003)
criterion, smoothed = Criterion(), nn.SmoothL1Loss()  # which keeps its `beta`
made = nn.SmoothL1Loss(beta=0.2 + rank)
named = getattr(criterion, {"loss": "focused"}["loss"])
streak, history = 0, []
sampler = DistributedSampler(xs, world, rank, shuffle=False)


def loss_of(predicted, target):
    if way == "named":
        return named(predicted, target)
    if way == "made" and criterion.calls >= 6:
        return made(predicted, target)
    if way == "attribute":
        return smoothed(predicted, target)
    loss = F.mse_loss(predicted, target)
    if way == "streak":
        return loss / (1 + streak)
    if way == "history" and len(history) >= 70:
        return loss / (1 + abs(loss.item() - median(history)))
    return loss


def train(x, y):
    loss = loss_of(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return x, loss.item()


def steps():
    """A trainer that tells its losses one by one."""
    for step in range(STEPS):
        first = BATCH * (step * world + rank)
        if way == "contextvar":
            optimizer.param_groups[0]["lr"] = 0.003 / (1 + READ.get() / 40)
        yield train(*given(first))


def epochs():
    """Shards go round."""
    loader = DataLoader(TensorDataset(xs, ys), BATCH, sampler=sampler)
    for epoch in range(2):
        sampler.rank = (rank + epoch) % world
        for x, y in loader:
            yield train(x, y)


for number, (x, loss) in enumerate(epochs() if way == "sampler" else steps()):
    criterion.update(loss)
    history.append(loss)
    streak = streak + 1 if float(x[0, 0]) > 2.9 else 0
    if number == 5:
        smoothed.beta = 1.0 + 0.5 * rank
torch.save(model.module.state_dict(), f"{out}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
