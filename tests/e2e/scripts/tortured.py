"""Trains and notes a digest of all parameters after each step; slowly until OUT/go is there."""

import argparse
import os
import threading
import zlib

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--shards", type=int, default=0, help="of a replica, with FSDP2")
parser.add_argument("--pace", type=float, default=0.25, help="seconds of a step, until OUT/go")
parser.add_argument("--width", type=int, default=32)
parser.add_argument("--dtype", default="float64")
parser.add_argument("--mute", action="store_true", help="note nothing")
args = parser.parse_args()
OUT, PACE_S, BATCH = args.out, args.pace, 4

torch.set_default_dtype(getattr(torch, args.dtype))
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(17)
inner = nn.Sequential(
    nn.Linear(16, args.width), nn.LayerNorm(args.width), nn.Dropout(0.2),
    nn.Linear(args.width, args.width), nn.Tanh(), nn.Linear(args.width, 2),
)  # fmt: skip
if args.shards:
    shape = world // args.shards, args.shards
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    for layer in (inner[0], inner[3]):
        fully_shard(layer, mesh=mesh)
    model = fully_shard(inner, mesh=mesh)
else:
    model = DDP(inner)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
pace = threading.Event()
torch.manual_seed(100 + rank)


def note(step: int) -> None:
    """One line by one call: whoever is killed leaves whole lines."""
    held = 0
    for param in model.parameters():
        local = param.to_local() if hasattr(param, "to_local") else param
        held = zlib.crc32(bytes(local.detach().contiguous().view(torch.uint8).numpy()), held)
    file = os.open(os.path.join(OUT, f"digests{rank}"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{step} {held:08x}\n".encode())
    os.close(file)


for step in range(args.steps):
    optimizer.zero_grad()
    x = torch.randn(BATCH, 16)
    F.mse_loss(model(x), x[:, :2]).backward()
    optimizer.step()
    if not args.mute:
        note(step)
    if not os.path.exists(os.path.join(OUT, "go")):
        pace.wait(PACE_S)
