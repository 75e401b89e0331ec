"""A byte-level GPT in one file: hybrid sharded data parallel (HSDP) with FSDP2.

    torchrun --nproc-per-node 4 gpt_hsdp.py --shard-size 2

Each replica shards the model over `--shard-size` ranks; replicas average their gradients once a
step. Without `--text` it learns the documentation that every Python carries.
"""

import argparse
import math
import os
import pydoc_data.topics
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset, DistributedSampler

Sampler = DistributedSampler[tuple[Tensor, Tensor]]
Loader = DataLoader[tuple[Tensor, Tensor]]

VOCABULARY = 256  # bytes


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, help="file to learn (default: Python's own manual)")
    parser.add_argument("--out", type=Path, help="where rank 0 writes the final checkpoint")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--accumulation", type=int, default=4, help="microbatches per step")
    parser.add_argument("--batch", type=int, default=4, help="sequences per microbatch and rank")
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--shard-size", type=int, help="default: 2 if the world is even, else 1")
    parser.add_argument("--seed", type=int, default=1337)
    return parser.parse_args()


class Sequences(Dataset[tuple[Tensor, Tensor]]):
    """Consecutive pieces of a text, each with the same piece one byte later."""

    def __init__(self, text: bytes, context: int) -> None:
        self.bytes = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self.context = context

    def __len__(self) -> int:
        return (len(self.bytes) - 1) // self.context

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        piece = self.bytes[index * self.context :][: self.context + 1]
        return piece[:-1], piece[1:]


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv: Tensor = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        p = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        return F.dropout(self.out(y.transpose(1, 2).reshape(x.shape)), p)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return x


class GPT(nn.Module):
    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, args.width)
        self.position = nn.Embedding(args.context, args.width)
        self.dropout = nn.Dropout(args.dropout)
        self.blocks = nn.ModuleList(
            Block(args.width, args.heads, args.dropout) for _ in range(args.layers)
        )
        self.norm = nn.LayerNorm(args.width)
        self.head = nn.Linear(args.width, VOCABULARY, bias=False)
        self.apply(self.initialize)

    @staticmethod
    def initialize(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1], device=x.device)
        h = self.dropout(self.embedding(x) + self.position(positions))
        for block in self.blocks:
            h = block(h)
        logits = self.head(self.norm(h))
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


def warmup_cosine(step: int, warmup: int, steps: int) -> float:
    """Return the factor on the peak learning rate: a linear rise, then a cosine down to 10 %."""
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * progress))


def sharded_model(args: argparse.Namespace, mesh: DeviceMesh, device: torch.device) -> GPT:
    torch.manual_seed(args.seed)  # the same weights on every rank
    model = GPT(args).to(device)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def training_data(args: argparse.Namespace) -> tuple[Sampler, Loader]:
    manual = "\n".join(pydoc_data.topics.topics.values())
    text = args.text.read_bytes() if args.text else manual.encode()
    data = Sequences(text, args.context)
    sampler: Sampler = DistributedSampler(data, shuffle=True, seed=args.seed, drop_last=True)
    return sampler, DataLoader(data, batch_size=args.batch, sampler=sampler, drop_last=True)


def train(args: argparse.Namespace, device: torch.device) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    shards = args.shard_size or (2 if world % 2 == 0 else 1)
    mesh = init_device_mesh(
        device.type, (world // shards, shards), mesh_dim_names=("replicate", "shard")
    )
    model = sharded_model(args, mesh, device)
    assert isinstance(model, FSDPModule), "fully_shard() has made it one"
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=args.weight_decay
    )
    scheduler = LambdaLR(optimizer, lambda step: warmup_cosine(step, args.warmup, args.steps))
    sampler, loader = training_data(args)
    steps_per_epoch = len(loader) // args.accumulation
    tokens_per_step = args.accumulation * args.batch * args.context * world

    torch.manual_seed(args.seed + rank)  # each rank its own dropout
    model.train()
    for step in range(args.steps):
        started = time.perf_counter()
        if step % steps_per_epoch == 0:
            sampler.set_epoch(step // steps_per_epoch)
            batches = iter(loader)

        mean_loss = torch.zeros((), device=device)
        for micro_step in range(args.accumulation):
            # Each microbatch is reduced within its replica, only their sum between replicas.
            model.set_requires_all_reduce(micro_step == args.accumulation - 1)
            x, y = next(batches)
            loss = model(x.to(device), y.to(device)) / args.accumulation
            loss.backward()
            mean_loss += loss.detach()

        lr = scheduler.get_last_lr()[0]
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()

        dist.all_reduce(mean_loss, op=dist.ReduceOp.AVG)
        if rank == 0:
            speed = tokens_per_step / (time.perf_counter() - started)
            print(f"step {step} loss {mean_loss.item():.4f} lr {lr:.2e} {speed:.0f} tok/s")

    full = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = get_model_state_dict(model, options=full)
    if rank == 0 and args.out:
        torch.save(weights, args.out)


def main() -> None:
    args = parse_args()
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl")
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")

    train(args, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
