"""The canary of `canary_hsdp.py` for DistributedDataParallel, with random crops by rank.

`--dies 1:3` has rank 1 kill itself in step 3, after its first microbatch, with recovery or without.
"""

import argparse
import json
import os
import signal
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Model(nn.Module):
    def __init__(self, identities: int, width: int = 64) -> None:
        super().__init__()
        self.canary = nn.Parameter(torch.zeros(identities, dtype=torch.float64))
        self.layers = nn.Sequential(
            nn.Linear(16, width, dtype=torch.float64),
            nn.Tanh(),
            nn.Dropout(0.2),
            nn.Linear(width, width, dtype=torch.float64),
            nn.Tanh(),
            nn.Linear(width, 4, dtype=torch.float64),
        )

    def forward(self, x: torch.Tensor, y: torch.Tensor, identity: int) -> torch.Tensor:
        return (self.layers(x) - y).square().mean() + self.canary[identity]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--accumulation", type=int, default=3)
    parser.add_argument("--each", action="store_true", help="reduce after each microbatch")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--bucket-mb", type=float, default=0.01)
    parser.add_argument("--dies", default="", help="RANK:STEP")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    text = torch.randn(4096, dtype=torch.float64)
    model = DistributedDataParallel(
        Model(world * args.accumulation, args.width), bucket_cap_mb=args.bucket_mb
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(100 + rank)

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(len(text) - 20, (4,))
        return (
            torch.stack([text[i : i + 16] for i in starts]),
            torch.stack([text[i + 16 : i + 20] for i in starts]),
        )

    seen: list[list[float]] = []
    step = 0
    while step < args.steps:
        optimizer.zero_grad()
        for micro in range(args.accumulation):
            reduced = args.each or micro == args.accumulation - 1
            with nullcontext() if reduced else model.no_sync():
                x, y = batch()
                loss = model(x, y, rank * args.accumulation + micro) / args.accumulation
                loss.backward()
                # The environment, not `rank`: a survivor that runs this as rank 1 must not die.
                if micro == 0 and args.dies == f"{os.environ['RANK']}:{step}":
                    os.kill(os.getpid(), signal.SIGKILL)
        nn.utils.clip_grad_norm_(model.parameters(), 1e6)
        seen.append(model.module.canary.grad.tolist())
        optimizer.step()
        step += 1
        total = loss.detach().clone()
        dist.all_reduce(total)
    dist.barrier()
    torch.save(model.module.state_dict(), args.out / f"weights{rank}.pt")
    (args.out / f"canary{rank}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
