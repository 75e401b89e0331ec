"""Trains, and ends a rank where it is told to, each time once: with it the last replica, and then
all go back.
"""

import argparse
import itertools
import os
import random
import signal
import time
from pathlib import Path

import averaged
import divided
import drawing
import fading
import given
import keeping
import numpy as np
import remembering
import row_counts
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--shape", default="counting", help="of the loop")
parser.add_argument("--layout", default="single")
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--dies", default="", help="RANK@STEP or all@STEP, with commas")
parser.add_argument("--halts", type=int, default=-1, help="all wait in it, if OUT/../halt is there")
parser.add_argument("--waits", type=int, default=-1, help="until OUT/../go, a pipe, is opened")
parser.add_argument("--awaits", default="", help="STEP@FILE: wait there until there is that file")
parser.add_argument("--scaled", default="", help="by the figure in a file, from the step there on")
parser.add_argument("--pace", type=float, default=0.0, help="seconds that a step takes, at least")
args = parser.parse_args()
OUT, STEPS = Path(args.out), args.steps
WIDTH, HIDDEN, BATCH = 16, 256, 4

rank = 0
if args.layout != "single":
    dist.init_process_group("gloo")
    rank = dist.get_rank()
torch.manual_seed(17)
xs, ys = torch.randn(64, WIDTH), torch.randn(64, 2)
inner = nn.Sequential(
    nn.Linear(WIDTH, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.Dropout(0.2),
    nn.Linear(HIDDEN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 2),
)  # fmt: skip
model: nn.Module = inner
if args.shape == "thawing":
    inner[0].requires_grad_(False)
if args.layout in ("ddp", "divided", "zero", "power"):
    model = nn.parallel.DistributedDataParallel(inner)
    if args.layout == "power":
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

        model.register_comm_hook(power.PowerSGDState(None), power.powerSGD_hook)
elif args.layout == "fsdp2":
    from torch.distributed.fsdp import fully_shard

    for layer in (inner[0], inner[3]):
        fully_shard(layer)
    model = fully_shard(inner)
elif args.layout.startswith("fsdp1"):
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    original = args.layout == "fsdp1-original"
    model = FSDP(inner, use_orig_params=original, device_id=torch.device("cpu"))
trained = [p for p in model.parameters() if p.requires_grad]
optimizer: torch.optim.Optimizer
if args.layout == "zero":
    from torch.distributed.optim import ZeroRedundancyOptimizer as Zero

    optimizer = Zero(trained, torch.optim.AdamW, lr=0.01)
else:
    kind = divided.Divided if args.layout == "divided" else torch.optim.AdamW
    optimizer = kind(trained, lr=0.01)
schedule: torch.optim.lr_scheduler.LRScheduler
if args.shape == "thawing" or args.layout == "zero":
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4)
else:
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=STEPS + 1)
average = torch.optim.swa_utils.AveragedModel(inner) if args.layout == "single" else None
torch.manual_seed(100 + rank)
random.seed(200 + rank)
done = 0
norms = torch.zeros(5000)


def wait_here() -> None:
    """Until the test has seen what it waits for."""
    for plan in args.awaits.split(","):
        step, _, path = plan.partition("@")
        if path and done == int(step):
            Path(f"{path}.{rank}").touch()
            while not Path(path).exists():
                time.sleep(0.01)  # a file of another process: there is nothing to wait on


def end_here() -> None:
    wait_here()
    for number, plan in enumerate(args.dies.split(",")):
        who, _, step = plan.partition("@")
        if who not in (str(rank), "all") or done != int(step):
            continue
        mark = OUT / f"died{number}.{rank}"
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def halt_here() -> None:
    if done == args.waits and (OUT.parent / "go").exists():
        (OUT / f"waits{rank}").write_text("here")
        (OUT.parent / "go").open("rb").close()
    if done == args.halts and (OUT.parent / "halt").exists():
        (OUT / f"halts{rank}").write_text("here")
        signal.pause()


def train(x: torch.Tensor, y: torch.Tensor) -> float:
    global done
    if args.shape == "thawing" and done == 7:
        inner[0].requires_grad_(True)
        optimizer.add_param_group({"params": list(inner[0].parameters()), "lr": 0.004})
    if args.scaled:
        since, figure = Path(args.scaled).read_text().split()
        x = x * float(figure) if done >= int(since) else x
    if args.shape == "filed":
        kept = OUT / f"count{rank}"
        kept.write_text(str(int(kept.read_text()) + 1 if kept.exists() else 0))
    optimizer.zero_grad()
    loss = F.mse_loss(model(x + 0.01 * torch.randn_like(x)), y)
    loss.backward()
    end_here()
    halt_here()
    if args.layout == "by-hand":
        for param in model.parameters():
            dist.all_reduce(param.grad)
            param.grad.div_(dist.get_world_size())
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if args.shape == "fading":
        fading.fade(model.parameters())
    optimizer.step()
    schedule.step()
    if average is not None:
        average.update_parameters(inner)
    done += 1
    time.sleep(args.pace)
    return loss.item()


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.randint(len(xs), (BATCH,))
    return xs[rows] * (1 + 0.1 * random.random()), ys[rows]


def by_counting() -> None:
    local_step = 0
    losses: list[float] = []
    x, y = batch()
    while True:
        if local_step % 10 == 0:
            model.eval()
            with torch.no_grad():
                model(xs)
            model.train()
        loss = train(x, y)
        x, y = batch()
        losses.append(loss)
        local_step += 1
        if local_step >= STEPS:
            break
    assert len(losses) == STEPS, len(losses)
    print(f"losses {sum(losses):.12f}", flush=True)


class Noisy(TensorDataset):
    def __getitem__(self, row: int) -> tuple[torch.Tensor, ...]:
        return xs[row] + 0.1 * torch.randn(WIDTH), ys[row]


def by_epochs(workers: int = 0, data=TensorDataset, lasting: bool = False) -> None:
    rows = data(xs, ys.clone())
    loader = DataLoader(rows, BATCH, shuffle=True, num_workers=workers, persistent_workers=lasting)
    total = 0.0
    for epoch in range(1000):
        for number, (x, y) in enumerate(loader):
            total += train(x, y)
            if args.shape == "relabelled" and done == 3:
                rows.tensors[1].mul_(0.5)
            if done == STEPS:
                print(f"epoch {epoch} batch {number} total {total:.12f}", flush=True)
                return


def ahead(loader: DataLoader):
    """Each item of `loader` is given once the one after it is read."""
    items = iter(loader)
    held = next(items)
    for following in items:
        yield held
        held = following
    yield held


def by_reading_ahead() -> None:
    loader = DataLoader(TensorDataset(xs, ys), BATCH, shuffle=True)
    while done < STEPS:
        for x, y in ahead(loader):
            train(x, y)
            if done == STEPS:
                return


class Counted:
    """Makes the iterator of its loader anew in all epochs but the first, which its maker did."""

    def __init__(self) -> None:
        self.loader = DataLoader(TensorDataset(xs, ys), BATCH, shuffle=True)
        self.items, self.epoch = iter(self.loader), 0

    def fit(self) -> None:
        while done < STEPS:
            if self.epoch > 0:
                self.items = iter(self.loader)
            for _ in range(len(self.loader)):
                x, y = next(self.items)
                train(x, y)
                if done == STEPS:
                    return
            self.epoch += 1


def by_micro() -> None:
    global done
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        trained = list(model.parameters())
        for group in optimizer.param_groups:
            group["weight_decay"] = 0.01 / (1 + step)
        for _micro in range(3):
            x, y = batch()
            (F.mse_loss(model(x), y) / 3).backward()
        end_here()
        for param in trained:
            param.grad.clamp_(-0.1, 0.1)
        optimizer.step()
        schedule.step()
        done += 1
        time.sleep(args.pace)


class Decays:
    """Asks iterators that no variable of a loop holds."""

    def __init__(self) -> None:
        self.held = {"numbers": itertools.count(1), "factors": itertools.cycle([1.0, 0.5, 0.25])}
        self.roots = self.made()
        (OUT / "decays").write_text("".join(f"{0.1 / (1 + n)}\n" for n in range(STEPS)))
        self.file = open(OUT / "decays")
        self.left = dict.fromkeys(range(STEPS + 1))

    def made(self):
        number = 0
        while True:
            number += 1
            yield number**0.5

    def following(self) -> float:
        scale = next(self.held["factors"]) / next(self.held["numbers"]) / next(self.roots)
        self.left.popitem()
        return float(self.file.readline()) * scale * len(self.left)


def by_decays() -> None:
    decays = Decays()
    for _ in range(STEPS):
        for group in optimizer.param_groups:
            group["weight_decay"] = decays.following()
        train(*batch())


def by_overlapping() -> None:
    """A message of rank 1 after a backward is waited for since the end of the step before."""
    figure, local_work = torch.zeros(1), None
    for _ in range(STEPS):
        x, y = batch()
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        if rank == 1 and done:
            dist.send(torch.ones(1), 0)
        if local_work is not None:
            local_work.wait()
        optimizer.step()
        count_step()
        if rank == 0 and done < STEPS:
            local_work = dist.irecv(figure, 1)


def count_step() -> None:
    global done
    done += 1


class Trainer:
    def __init__(self) -> None:
        self.loader = DataLoader(TensorDataset(xs, ys), BATCH, shuffle=True, drop_last=True)
        self.best, self.local_seen = float("inf"), 0
        self.kept: dict[str, torch.Tensor] = {}
        self.mean = {name: one.detach().clone() for name, one in inner.named_parameters()}
        self.past = np.zeros((1000, 3))
        self.history: list[tuple[int, float]] = []

    def fit(self) -> None:
        for _ in range(1000):
            self.train_epoch()
            if done >= STEPS:
                break
        assert self.local_seen == done * BATCH, (self.local_seen, done)
        assert len(self.history) == 2000 * done, (len(self.history), done)
        inner.load_state_dict(self.kept)
        for name, one in inner.named_parameters():
            with torch.no_grad():
                one.add_(self.mean[name]).add_(float(self.past.sum() + norms.sum()))

    def train_epoch(self) -> None:
        for x, y in self.loader:
            loss = train(x, y)
            self.local_seen += len(x)
            self.past[done % 1000] = (loss, self.best, self.past.sum())
            self.history.extend((done, loss) for _ in range(2000))
            norms.add_(self.past.sum())
            for name, one in inner.named_parameters():
                self.mean[name].mul_(0.9).add_(one.detach(), alpha=0.1)
            if loss < self.best:
                self.best = loss
                self.kept = {name: one.clone() for name, one in inner.state_dict().items()}
            if done >= STEPS:
                return


def by_given() -> None:
    held = given.Given()
    for step in range(STEPS):
        if step == 3:
            held.moves()
        for group in optimizer.param_groups:
            group["weight_decay"] = held.decay()
        x, y = batch()
        train(held.shape(held.activation(x)), y)


def by_keeping() -> None:
    meters = [keeping.Meter(), keeping.Meter()]
    keeping.Keeping(inner).run(STEPS, lambda: train(*batch()), meters)


SHAPES = {
    "drawing": lambda: drawing.Drawing(xs, ys, train).run(STEPS),
    "asking": lambda: drawing.Drawing(xs, ys, train).ask(STEPS),
    "keeping": by_keeping,
    "averaged": lambda: averaged.run(trained, lambda: train(*batch()), STEPS),
    "given": by_given,
    "remembering": lambda: remembering.run(remembering.batches(xs, ys), train, STEPS),
    "noisy": lambda: remembering.run_ahead(xs, ys, train, STEPS),
    "streaming": lambda: remembering.run_stream(xs, ys, train, STEPS),
    "header": lambda: row_counts.run(xs, ys, train, STEPS),
    "counting": by_counting,
    "fading": by_counting,
    "filed": by_counting,
    "thawing": by_counting,
    "epochs": by_epochs,
    "relabelled": by_epochs,
    "workers": lambda: by_epochs(2),
    "lasting": lambda: by_epochs(1, Noisy, lasting=True),
    "lasting-still": lambda: by_epochs(1, lasting=True),
    "ahead": by_reading_ahead,
    "renewed": lambda: Counted().fit(),
    "micro": by_micro,
    "decays": by_decays,
    "overlapping": by_overlapping,
    "trainer": lambda: Trainer().fit(),
}
SHAPES[args.shape]()
if args.layout.startswith("fsdp1"):
    with FSDP.summon_full_params(model):
        weights = {name: one.detach().clone() for name, one in model.named_parameters()}
else:
    weights = {
        name: one.to_local() if hasattr(one, "to_local") else one
        for name, one in inner.state_dict().items()
    }
if average is not None:
    weights.update({f"average.{n}": one for n, one in average.state_dict().items()})
torch.save(weights, OUT / f"weights{rank}.pt")
