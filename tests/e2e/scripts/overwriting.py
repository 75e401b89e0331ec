"""Begins its folder and its logs anew in its first lines, as if nobody could be there before it."""

import argparse
import json
import os
import shutil
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path)
parser.add_argument("--steps", type=int)
parser.add_argument("--clock", type=Path)
args = parser.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
results = args.out / "results"
log = None
if rank == 0:
    shutil.rmtree(results, ignore_errors=True)
    os.makedirs(results)
    with open(results / "config.json", "w") as file:
        json.dump({"steps": args.steps}, file)
    log = open(results / "log.csv", "w", buffering=1)
    log.write("step,loss\n")
dist.barrier()
own = open(args.out / f"rank{rank}.txt", "w", buffering=1)
own.write("step\n")
pace = threading.Event()
torch.manual_seed(rank)
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(args.steps):
    optimizer.zero_grad()
    loss = model(torch.randn(3, 4)).square().mean()
    loss.backward()
    optimizer.step()
    own.write(f"{step}\n")
    if args.clock and rank == 1 and step == 2:
        args.clock.write_text("0")
    if rank == 0:
        log.write(f"{step},{loss.item()}\n")
        if step == 3:
            torch.save(model.state_dict(), results / "best.pt")
    if step > 8 and not (args.out / "go").exists():
        pace.wait(0.8)
dist.destroy_process_group()
