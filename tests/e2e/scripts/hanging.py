"""A training script in which ranks hang: how, where, which and when is told on the command line.

`--hang lock:forward:1:6` has rank 1 hang in the forward of step 6: it waits for a lock of its own.
Each hangs once, so what it was at can be redone. Written as for torchrun.
"""

import argparse
import ctypes
import json
import os
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

BATCH = 4


class Hang:
    """Each of `ranks` hangs once, where `visit` names the place in the step."""

    def __init__(self, spec: str, out: Path, redo: str = "") -> None:
        self.how, self.where, ranks, step = (spec or "none:nowhere::0").split(":")
        ways = self.how.split(",")  # the same for all, or one for each
        self.ranks = [int(rank) for rank in ranks.split(",") if rank]
        self.ways = dict(zip(self.ranks, ways * len(self.ranks), strict=False))
        self.step, self.now, self.out, self.redo = int(step), 0, out, redo

    def visit(self, where: str, rank: int) -> None:
        if rank not in self.ranks or self.now != self.step:
            return
        if where != self.where:
            return
        if self.first(f"hangs{rank}"):
            getattr(self, self.ways[rank])()
        elif self.redo and self.begun_by(f"hangs{rank}") != os.getpid() and self.first("redoes"):
            getattr(self, self.redo)()

    def begun_by(self, what: str) -> int:
        """The process that wrote it down."""
        return int(json.loads((self.out / f"{what}.json").read_text())["pid"])

    def first(self, what: str) -> bool:
        """True for the process that asks this first, which is written down."""
        flag = self.out / f"{what}.json"
        if flag.exists():
            return False
        flag.write_text(json.dumps({"at": time.time(), "pid": os.getpid()}))
        return True

    def give(self, index: int) -> None:
        """In that step the niggard gives one batch, as often as is wished. That is in files: what
        is in memory would be another rank's when its batch is computed.
        """
        if self.now != self.step or not (self.out / "niggard.json").exists():
            return
        given = self.out / "given"
        known = given.read_text().split() if given.exists() else []
        if self.begun_by("niggard") != os.getpid() or str(index) in known:
            return
        if len(known) >= BATCH:
            raise LookupError("no more")
        given.write_text(" ".join([*known, str(index)]))

    def stop(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def spin(self) -> None:
        while True:
            pass

    def lock(self) -> None:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()

    def sleep(self) -> None:
        time.sleep(1e6)

    def keep(self) -> None:
        """In C, with Python's global lock kept."""
        ctypes.PyDLL(None).sleep(100_000)

    def barrier(self) -> None:
        """One more than the others have."""
        dist.barrier()

    def hold(self) -> None:
        """Until whoever watches has written to the pipe."""
        (self.out / "go").read_bytes()

    def linger(self) -> None:
        """The script goes on to its end, and a thread of it does not."""
        threading.Thread(target=threading.Event().wait).start()

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def fail(self) -> None:
        """No hang either: an error of this rank's part of the batch."""
        raise LookupError("no such token")

    def late(self) -> None:
        """No hang: it comes."""
        time.sleep(4)


class Points(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self, hang: Hang, rank: int, niggard: int) -> None:
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(640, 16, generator=generator, dtype=torch.float64)
        self.y = torch.randn(640, 4, generator=generator, dtype=torch.float64)
        self.hang, self.rank = hang, rank
        if rank == niggard:
            hang.first("niggard")

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.hang.visit("data", self.rank)
        self.hang.give(index)
        return self.x[index], self.y[index]


class Within(torch.autograd.Function):
    """The identity, with a place to hang in its backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, hang: Hang, rank: int) -> torch.Tensor:
        ctx.place = hang, rank
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        hang, rank = ctx.place
        hang.visit("backward", rank)
        return grads[0], None, None


class Model(nn.Module):
    def __init__(self, hang: Hang, rank: int) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32, dtype=torch.float64)
        self.second = nn.Linear(32, 4, dtype=torch.float64)
        self.hang, self.rank = hang, rank

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        self.hang.visit("forward", self.rank)
        inner = Within.apply(hidden, self.hang, self.rank)  # type: ignore[no-untyped-call]
        error: torch.Tensor = self.second(inner) - y
        return error.square().mean()


def wrapped(model: Model, shards: int) -> nn.Module:
    if shards == 1:
        return DistributedDataParallel(model)
    mesh = init_device_mesh(
        "cpu", (dist.get_world_size() // shards, shards), mesh_dim_names=("replicate", "shard")
    )
    for part in (model.first, model.second, model):
        fully_shard(part, mesh=mesh)
    return model


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--hang", default="")
    parser.add_argument("--redo", default="", help="how whoever redoes that microbatch hangs")
    parser.add_argument("--niggard", type=int, default=-1, help="gives one batch in that step")
    parser.add_argument("--timeout", type=float, default=1800)
    args = parser.parse_args()

    dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout))
    rank = dist.get_rank()
    hang = Hang(args.hang, args.out, args.redo)
    torch.manual_seed(1)
    net = wrapped(Model(hang, rank), args.shards)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    data = Points(hang, rank, args.niggard)
    sampler = DistributedSampler(data, shuffle=True, seed=3, drop_last=True)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler, drop_last=True)
    torch.manual_seed(100 + rank)
    for x, y in loader:
        hang.visit("body", rank)
        loss = net(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            hang.visit("alone", rank)
        hang.now += 1
        if hang.now >= args.steps:
            break
    weights = {
        name: (value.to_local() if hasattr(value, "to_local") else value).detach()
        for name, value in net.state_dict().items()
    }
    torch.save(weights, args.out / f"weights{rank}.pt")
    (args.out / f"canary{rank}.json").write_text("[]")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
