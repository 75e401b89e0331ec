"""A training script that notes when it is killed and when its steps are applied.

The same file runs under any launcher. recoverrun kills by its fault schedule; elsewhere the script
kills itself (`--kill STEP:PHASE,...`, one for each start) at the same points of a step, and
`--checkpoints` saves every step and resumes from the newest. The notes of a rank are
JSON lines with CLOCK_MONOTONIC, which all processes of a host share; os.write has handed them to
the kernel before the signal is sent.
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

import network
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

NOTES = open(Path(os.environ["BENCH_NOTES"], f"notes.{os.environ['RANK']}.jsonl"), "ab", 0)


def note(what: str, step: int = -1) -> None:
    fields = {"what": what, "step": step, "mono_ns": time.monotonic_ns(), "wall_ns": time.time_ns()}
    NOTES.write(json.dumps(fields).encode() + b"\n")


def noted_kill(pid: int, number: int) -> None:
    if number == signal.SIGKILL and pid == os.getpid():
        note("kill")
    os.kill(pid, number)


if (failpoints := sys.modules.get("recoverrun.worker.step.failpoints")) is not None:
    failpoints.end = noted_kill  # it holds `os.kill` as it was before the script


class Points:
    """Moments of a step: the forward of its middle microbatch, and half of its last backward."""

    def __init__(self, kills: str, victim: bool) -> None:
        start = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        plan = kills.split(",")[start : start + 1] if victim else []
        self.kill = plan[0] if plan else ""
        self.step = 0
        self.last = False

    def reach(self, phase: str) -> None:
        note(phase, self.step)
        if self.kill == f"{self.step}:{phase}":
            noted_kill(os.getpid(), signal.SIGKILL)

    def in_backward(self, *_: object) -> None:
        if self.last:
            self.reach("reduce")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", choices=network.STRATEGIES, default="ddp")
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--accumulation", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--kill", default="", help="STEP:PHASE of the last rank for each start")
    parser.add_argument("--checkpoints", type=Path)
    return parser.parse_args()


def resume(model: nn.Module, optimizer: torch.optim.Optimizer, file: Path | None) -> int:
    """Load the newest checkpoint; the step to begin with. Data are not skipped: that costs more."""
    if file is None or not file.exists():
        return 0
    saved = torch.load(file)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return saved["step"] + 1


def save(model: nn.Module, optimizer: torch.optim.Optimizer, file: Path, step: int) -> None:
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    new = file.with_suffix(".new")
    torch.save(states, new)
    new.replace(file)


def train(args: argparse.Namespace) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    width = network.width_of(args.parameters, args.layers)
    model = network.network(args.strategy, width, args.layers, bucket_mb=0.5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    file = args.checkpoints / "newest.pt" if args.checkpoints else None
    first = resume(model, optimizer, file)
    points = Points(args.kill, victim=rank == world - 1)
    blocks = getattr(model, "module", model)
    blocks[args.layers // 2].register_full_backward_pre_hook(points.in_backward)
    loader = network.batches(width, args.batch, args.steps * args.accumulation)
    torch.manual_seed(rank)

    data = iter(loader)
    for step in range(first, args.steps):
        points.step = step
        for micro in range(args.accumulation):
            points.last = micro == args.accumulation - 1
            network.reduce_in_backward(model, points.last)
            (x,) = next(data)
            if micro == args.accumulation // 2:
                points.reach("forward")
            loss = F.mse_loss(model(x), x) / args.accumulation
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        note("commit", step)
        if file is not None and rank == 0:
            save(model, optimizer, file, step)


def main() -> None:
    dist.init_process_group("gloo")
    train(parse_args())  # a DDP module that outlives its group can hang in gloo's destructor
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
