"""Trains slowly until OUT/go is there, so that a lost rank has the time to come back."""

import argparse
import os
import queue
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import evaluations
import fading
import masters
import packed
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--shape", default="range", help="of the loop")
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--shards", type=int, default=0, help="of a replica: its ranks")
parser.add_argument("--wrap", default="", help="how gradients are reduced; DDP, FSDP2 with shards")
parser.add_argument("--corrupt", default="", help="RANK:STEP, after whose update a bit flips")
parser.add_argument("--overflows", default="", help="RANK:STEP, where the machine spoils a loss")
parser.add_argument("--dies", default="", help="where the first newcomer ends itself")
args = parser.parse_args()
OUT, KIND, STEPS, PACE_S, WIDTH, BATCH = args.out, args.shape, args.steps, 0.8, 16, 4
WRAP = args.wrap or ("fsdp2" if args.shards else "ddp")

torch.set_default_dtype(torch.float64)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(17)
xs, ys = torch.randn(256, WIDTH), torch.randn(256, 2)
middle = nn.BatchNorm1d(32) if KIND == "norms" else nn.LayerNorm(32)
inner = nn.Sequential(
    nn.Linear(WIDTH, 32), middle, nn.Dropout(0.2), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2)
)
SMALL_MB = 1e-3  # several buckets
DDP_FEATURES = {
    "ddp": {},
    "tensors": {},
    "unused": {"find_unused_parameters": True, "bucket_cap_mb": SMALL_MB},
    "static": {"static_graph": True, "bucket_cap_mb": SMALL_MB},
    "views": {"gradient_as_bucket_view": True, "bucket_cap_mb": SMALL_MB},
}


class Branching(nn.Module):
    """A part of it has no gradient in every other microbatch or so, on each rank in others."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.more, self.never = inner, nn.Linear(WIDTH, 2), nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.inner(x)
        return out + self.more(x) if torch.rand(()) < 0.5 else out


def replicas_of(shards: int) -> DeviceMesh:
    return init_device_mesh("cpu", (world // shards, shards), mesh_dim_names=("replicate", "shard"))


def in_fsdp1() -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    more = {"use_orig_params": WRAP == "fsdp1-orig", "device_id": torch.device("cpu")}
    strategy = ShardingStrategy.HYBRID_SHARD
    for place in (0, 3):
        inner[place] = FullyShardedDataParallel(
            inner[place], device_mesh=mesh, sharding_strategy=strategy, **more
        )
    return FullyShardedDataParallel(inner, device_mesh=mesh, sharding_strategy=strategy, **more)


def in_stages() -> tuple[nn.Module, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]:
    """This rank's half of the model, and a microbatch of the pipeline."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    names = ("replicate", "shard", "stage")
    whole = init_device_mesh("cpu", (world // args.shards, 1, args.shards), mesh_dim_names=names)
    place = whole["stage"].get_local_rank()
    half = fully_shard(inner[3 * place : 3 * place + 3], mesh=whole["replicate", "shard"])
    group = whole["stage"].get_group()
    stage = PipelineStage(half, place, 2, torch.device("cpu"), group=group)
    schedule = Schedule1F1B(stage, 2, loss_fn=F.mse_loss)

    def microbatch(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        losses: list[torch.Tensor] = []
        if place:
            schedule.step(target=y, losses=losses)
        else:
            schedule.step(x)
        return sum(losses, torch.zeros(()))

    return half, microbatch


mesh = replicas_of(args.shards) if args.shards else None
if WRAP == "fsdp2":
    for layer in (inner[0], inner[3]):
        fully_shard(layer, mesh=mesh)
    model = fully_shard(inner, mesh=mesh)
elif WRAP.startswith("fsdp1"):
    model = in_fsdp1()
elif WRAP == "stages":
    model, run_stages = in_stages()
elif WRAP == "tensors":
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
    from torch.distributed.tensor.parallel import parallelize_module as split

    split(inner, mesh["shard"], {"3": ColwiseParallel(), "5": RowwiseParallel()})
    model = DDP(inner, device_mesh=mesh["replicate"])
elif WRAP in DDP_FEATURES:
    model = DDP(Branching() if WRAP == "unused" else inner, **DDP_FEATURES[WRAP])
else:
    model = inner
beside = masters.Masters(model.parameters() if KIND == "masters" else ())
optimizer = torch.optim.AdamW(beside.copies or model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
pace = threading.Event()
alike = args.shards if WRAP in ("tensors", "stages") else 1  # neighbours that see the same data
torch.manual_seed(100 + rank // alike)
random.seed(200 + rank // alike)


def end_here(where: str) -> None:
    birth = int(os.environ.get("RECOVERRUN_INCARNATION", "0")) & 0xFFFF
    if birth == 1 and where == args.dies:
        os.kill(os.getpid(), signal.SIGKILL)


def faulty(what: str) -> bool:
    """True in the process that RANK:STEP names, and only in the first one of its rank.

    In code that is executed for it `os.environ` is its own; what a process was started with is not.
    """
    started = Path("/proc/self/environ").read_text().split("\0")
    named, _, step = what.partition(":")
    first = "RECOVERRUN_INCARNATION=0" in started and f"RANK={named}" in started
    return first and step == str(schedule.last_epoch)


def slowly() -> None:
    if not os.path.exists(os.path.join(OUT, "go")):
        pace.wait(PACE_S)


def reduce_by_hand() -> None:
    gradients = [param.grad for param in model.parameters()]
    if WRAP == "each":
        for one in gradients:
            dist.all_reduce(one)
            one /= world
    elif WRAP == "flat":
        flat = torch.cat([one.view(-1) for one in gradients]) / world
        dist.all_reduce(flat)
        parts = flat.split([one.numel() for one in gradients])
        for one, part in zip(gradients, parts, strict=True):
            one.copy_(part.view_as(one))


def strays(how: str) -> bool:
    """True in rank 1's first process that comes back, if it is to go another way than others."""
    first = int(os.environ.get("RECOVERRUN_INCARNATION", "0")) & 0xFFFF == 1
    return args.dies == how and rank == 1 and first


def late(how: str) -> bool:
    """The same, and it is back."""
    return strays(how) and os.path.exists(os.path.join(OUT, "go"))


def lose_again() -> None:
    """In a step after one with noise."""
    noisy = Path(OUT) / "noisy"
    if late("noisy, then lost") and noisy.exists():
        os.kill(os.getpid(), signal.SIGKILL)
    elif late("noisy, then lost"):
        noisy.touch()


def train(x: torch.Tensor, y: torch.Tensor) -> float:
    end_here("forward")
    if strays("alone"):
        dist.all_reduce(torch.ones(2))  # which nobody else calls
    optimizer.zero_grad()
    noisy = x + 0.01 * torch.randn_like(x)
    if KIND == "loose" or late("noisy") or late("noisy, then lost"):  # drawn where nobody sees it
        noisy += 0.01 * int.from_bytes(os.urandom(1), "little") / 255
    if WRAP == "stages":
        loss = run_stages(noisy, y)
    else:
        loss = F.mse_loss(model(noisy), y)
        if faulty(args.overflows):
            loss = loss * torch.inf
        loss.backward()
    reduce_by_hand()
    corrupted = faulty(args.corrupt)
    if KIND == "fading":
        fading.fade(model.parameters())
    beside.take_gradients()
    optimizer.step()
    beside.give_back()
    schedule.step()
    if KIND == "evaluated":
        evaluations.without_gradients(model, x)
    if KIND == "told":
        dist.all_reduce(torch.ones(2 if strays("otherwise") else 1))
    if corrupted:
        next(iter(model.parameters())).detach().view(-1)[:1].view(torch.int64).bitwise_xor_(1)
    lose_again()
    slowly()
    return loss.item()


def by_range() -> None:
    for step in range(STEPS):
        rows = torch.randint(len(xs), (BATCH,))
        scale = 1 + 0.1 * random.random()
        loss = train(scale * xs[rows], ys[rows])
        if rank == 0 and step % 10 == 0:
            print(f"step {step} {loss:.6f}", flush=True)


def by_epochs(workers: int = 0) -> None:
    data = TensorDataset(xs, ys)
    sampler = DistributedSampler(data, seed=3)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler, num_workers=workers)
    done, averages = 0, None
    for epoch in range(1000):
        sampler.set_epoch(epoch)
        total = 0.0
        for x, y in loader:
            total += train(x, y)
            averages = evaluations.averaged(averages, model) if KIND == "averaged" else None
            done += 1
            if done == STEPS:
                return
        if KIND == "means":
            evaluations.steer_by(total, optimizer)


def by_counting() -> None:
    step = seen = 0
    losses: list[float] = []
    while True:
        rows = torch.randint(len(xs), (BATCH,))
        losses.append(train(xs[rows], ys[rows]))
        step += 1
        seen += BATCH * world
        if step >= STEPS:
            break
    assert len(losses) == STEPS and seen == STEPS * BATCH * world, (len(losses), seen)


def microbatches() -> int:
    return 2 if strays("fewer") or late("fewer later") else 3


def by_micro() -> None:
    slow = {param: param.detach().clone() for param in model.parameters()}
    for step in range(STEPS):
        optimizer.zero_grad()
        trained = list(model.parameters())
        for group in optimizer.param_groups:
            group["weight_decay"] = 0.01 / (1 + step)
        for micro in range(microbatches()):
            rows = torch.randint(len(xs), (BATCH,))
            model.require_backward_grad_sync = micro == microbatches() - 1
            (F.mse_loss(model(xs[rows]), ys[rows]) / 3).backward()
        for param in trained:
            param.grad.clamp_(-0.1, 0.1)
        optimizer.step()
        with torch.no_grad():
            for param, average in slow.items():
                average.lerp_(param, 0.5)
                param.lerp_(average, 0.5)
        schedule.step()
        slowly()


def by_shares() -> None:
    """Each rank keeps its share of the data, which is too large to be told in each step."""
    rows = torch.randn(20_000, WIDTH, generator=torch.Generator().manual_seed(5))
    mine = rows[rank::world].clone()
    goals = mine[:, :2].sin()
    for step in range(STEPS):
        picked = torch.randint(len(mine), (BATCH,))
        loss = train(mine[picked], goals[picked])
        if rank == 0 and step % 10 == 0:
            print(f"step {step} {loss:.6f}", flush=True)


def by_reading_ahead() -> None:
    """A thread reads ahead, and nobody knows how far the one of another rank has come."""
    data = TensorDataset(xs, ys)
    loader = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data, seed=3))
    ahead: queue.Queue[list[torch.Tensor]] = queue.Queue(3)

    def read() -> None:
        while True:
            for batch in loader:
                ahead.put(batch)

    threading.Thread(target=read, daemon=True).start()
    for _ in range(STEPS):
        train(*ahead.get())


def warm_up() -> object:
    for step in range(3):
        train(*(each[torch.randint(len(xs), (BATCH,))] for each in (xs, ys)))
        if step == 2:
            return iter(()) if KIND == "silent phases" else step
    return None


def by_phases() -> None:
    assert warm_up() == 2 or KIND == "silent phases"
    torch.save(model.state_dict(), os.path.join(OUT, f"warm{rank}.pt"))
    by_range()


def by_odd_state() -> None:
    optimizer.param_groups[0]["odd"] = (one for one in "abc")  # which cannot travel
    by_range()


class Trainer:
    def __init__(self) -> None:
        self.data = TensorDataset(xs, ys)
        self.sampler = DistributedSampler(self.data)
        self.loader = DataLoader(self.data, batch_size=BATCH, sampler=self.sampler)
        self.done, self.best = 0, float("inf")
        self.average = {"loss": torch.zeros(300, 300)}
        self.log = open(os.path.join(OUT, "log"), "a") if rank == 0 else None

    def fit(self) -> None:
        for epoch in range(1000):
            self.sampler.set_epoch(epoch)
            self.train_epoch()
            self.evaluate()
            if self.done >= STEPS:
                KEPT.update(self.average)
                return

    def train_epoch(self) -> None:
        for _, (x, y) in enumerate(self.loader):
            loss = train(x, y)
            self.done += 1
            self.average["loss"].mul_(0.9).add_(self.done)
            if rank == 0:
                print(f"step {self.done} {loss:.6f}", file=self.log, flush=True)

    def evaluate(self) -> None:
        model.eval()
        with torch.no_grad():
            total = F.mse_loss(model(xs), ys)
        dist.all_reduce(total)
        self.best = min(self.best, total.item())
        model.train()


KEPT: dict[str, torch.Tensor] = {}  # beside the model
SHAPES = {
    **dict.fromkeys(("range", "told", "norms", "fading", "masters"), by_range),
    **dict.fromkeys(("epochs", "loose", "evaluated", "averaged", "means"), by_epochs),
    "workers": lambda: by_epochs(2),
    "counting": by_counting,
    "micro": by_micro,
    "shares": by_shares,
    "ahead": by_reading_ahead,
    **dict.fromkeys(("phases", "silent phases"), by_phases),
    "odd state": by_odd_state,
    "packed": lambda: packed.train_on(xs, ys, 300 + rank, STEPS, train),
    "weighed": lambda: packed.train_weighed(xs, ys, 300 + rank, STEPS, train),
    "drawing": lambda: packed.train_drawing(xs, ys, 300 + rank, STEPS, train),
    "trainer": lambda: Trainer().fit(),
}
end_here("prologue")
if args.dies == "elsewhere" and os.environ.get("RECOVERRUN_INCARNATION", "0") != "0":
    dist.all_reduce(torch.ones(3))  # which no other process has done
SHAPES[KIND]()
if WRAP.startswith("fsdp1"):  # whose state_dict gathers
    held = {str(number): param.detach() for number, param in enumerate(model.parameters())}
else:
    held = (model.module if WRAP in DDP_FEATURES else model).state_dict()
held |= KEPT
weights = {name: one.to_local() if hasattr(one, "to_local") else one for name, one in held.items()}
torch.save(weights, os.path.join(OUT, f"weights{rank}.pt"))
