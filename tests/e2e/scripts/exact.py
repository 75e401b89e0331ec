"""Single precision, dropout, clipping and AdamW: whatever is added in another order shows.

Leaves the parameters and the whole state of the optimizer of each rank, for a comparison of bits.
"""

import argparse
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def built(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(16, width), nn.GELU(), nn.Dropout(0.2), nn.LayerNorm(width),
        nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 4),
    )  # fmt: skip


class Often(nn.Module):
    """Dropout of many copies, averaged: with 4 rows of 48 a million numbers, and two draws each."""

    COPIES = 6000

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        copies = x.unsqueeze(0).expand(self.COPIES, *x.shape)
        return nn.functional.dropout(copies, 0.2, self.training).mean(0)


class Choosy(nn.Module):
    """Leaves a layer out, another one for each microbatch and rank, or none."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, width), nn.Linear(width, 4)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            if torch.rand(()) < 0.6:
                x = torch.tanh(layer(x))
        return self.last(x)


DDP_VARIANTS: dict[str, dict[str, Any]] = {
    "views": {"gradient_as_bucket_view": True},
    "static": {"static_graph": True},
    "unused": {"find_unused_parameters": True},
    "often": {},
    "": {},
}


def wrapped(args: argparse.Namespace) -> Any:
    """The model as DDP or FSDP2 trains it."""
    model: Any = Choosy(args.width) if args.variant == "unused" else built(args.width)
    if args.variant == "often":
        model[2] = Often()
    if not args.shards:
        return DistributedDataParallel(
            model, bucket_cap_mb=args.bucket_mb, **DDP_VARIANTS[args.variant]
        )
    mesh = init_device_mesh(
        "cpu", (dist.get_world_size() // args.shards, args.shards),
        mesh_dim_names=("replicate", "shard"),
    )  # fmt: skip
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    how = {"mp_policy": half} if args.variant == "half" else {}
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, **how)
    fully_shard(model, mesh=mesh, **how)
    return model


def unlike(x: torch.Tensor) -> torch.Tensor:
    """Noise of the same shape that no other process draws, and this one never again."""
    return torch.frombuffer(bytearray(os.urandom(x.numel())), dtype=torch.uint8).view_as(x)


def local(value: Any) -> Any:
    return value.to_local() if hasattr(value, "to_local") else value


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shards", type=int, default=0, help="of FSDP2; 0: DDP")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--accumulation", type=int, default=3)
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--bucket-mb", type=float, default=0.005)
    parser.add_argument("--equal-count", action="store_true", help="no two draws alike")
    parser.add_argument("--twice", action="store_true", help="two backward passes a microbatch")
    parser.add_argument("--corrupt", default="", help="RANK:STEP, after whose update a bit flips")
    parser.add_argument("--machine-overflows", default="", help="RANK:STEP")
    parser.add_argument("--loss-overflows", default="", help="RANK:STEP")
    parser.add_argument("--variant", default="", choices=[*DDP_VARIANTS, "half"])
    return parser.parse_args()


def strays(args: argparse.Namespace, rank: int, step: int) -> bool:
    """True if this loss overflows: the script's doing goes by `rank`, a machine's by the process.

    `os.environ` is the lost rank's in executed code; what the process was started with is its own.
    """
    started = Path("/proc/self/environ").read_text().split("\0")
    machine, at = args.machine_overflows.split(":") if args.machine_overflows else ("", "")
    spoilt = f"RANK={machine}" in started and at == str(step)
    return spoilt or args.loss_overflows == f"{rank}:{step}"


def main() -> None:
    args = parsed()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(2048, 16), torch.randn(2048, 4))
    model = wrapped(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    sampler = DistributedSampler(data, shuffle=True, seed=3, drop_last=True)
    batches = iter(DataLoader(data, batch_size=4, sampler=sampler, drop_last=True))
    torch.manual_seed(100 + rank)

    for step in range(args.steps):
        for micro in range(args.accumulation):
            last = micro == args.accumulation - 1
            x, y = next(batches)
            if args.equal_count:
                x = x + unlike(x)
            if args.shards:
                model.set_requires_gradient_sync(last)
            with nullcontext() if last or args.shards else model.no_sync():
                loss = (model(x).sub(y) ** 2).mean() / args.accumulation
                if strays(args, rank, step):
                    loss = loss * torch.inf
                loss.backward(retain_graph=args.twice)
                if args.twice:
                    loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if args.corrupt == f"{os.environ['RANK']}:{step}":
            weights = local(next(iter(model.parameters())).detach()).view(-1)
            weights[:1].view(torch.int32).bitwise_xor_(1)
    dist.barrier()
    left = {}
    for name, param in model.named_parameters():
        left[name] = local(param.detach()).clone()
        for part, value in optimizer.state[param].items():
            left[f"{name}/{part}"] = local(value).clone()
    torch.save(left, args.out / f"weights{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
