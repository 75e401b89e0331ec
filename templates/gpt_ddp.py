"""A byte-level GPT in one file: data parallel (DDP), random crops of a text.

    torchrun --nproc-per-node 3 gpt_ddp.py

Every rank holds the whole model and draws its own crops; gradients are averaged once a step.
Without `--text` it learns the documentation that every Python carries.
"""

import argparse
import contextlib
import gc
import math
import os
import pydoc_data.topics
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

VOCABULARY = 256  # bytes


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.inputs = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.inputs(x).chunk(3, -1)
        )
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        joined: Tensor = self.output(y.transpose(1, 2).flatten(2))
        return joined


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), Attention(width, heads, dropout))
        self.mlp = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(x))
        x = x + self.dropout(self.mlp(x))
        return x


class GPT(nn.Module):
    def __init__(self, *, layers: int, heads: int, width: int, context: int, dropout: float):
        super().__init__()
        self.bytes = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(torch.zeros(context, width))
        self.layers = nn.Sequential(*(Layer(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.bytes.weight
        nn.init.normal_(self.bytes.weight, std=0.02)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.layers(self.bytes(x) + self.positions[: x.shape[1]])
        logits = self.head(self.norm(h))
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


def random_crops(text: Tensor, batch: int, context: int) -> tuple[Tensor, Tensor]:
    """Draw crops from the global random stream, with the same crops one byte later."""
    starts = torch.randint(len(text) - context, (batch, 1))
    crops = text[starts + torch.arange(context + 1)].long()
    return crops[:, :-1], crops[:, 1:]


def learning_rate(step: int, *, peak: float, warmup: int, max_steps: int) -> float:
    """Rise in a line for `warmup` steps, then fall in a cosine to a tenth of the peak."""
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    progress = (step - warmup) / max(1, max_steps - warmup)
    return peak * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, help="file to learn (default: Python's own manual)")
    parser.add_argument("--out", type=Path, help="where rank 0 writes the final checkpoint")
    parser.add_argument("--max-steps", type=int, default=40)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--accumulation", type=int, default=4, help="microbatches per step")
    parser.add_argument("--batch", type=int, default=8, help="crops per microbatch and rank")
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1337)
    return parser.parse_args()


def train(args: argparse.Namespace, device: torch.device) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed + rank)  # DDP copies rank 0's weights; crops and dropout differ

    manual = "\n".join(pydoc_data.topics.topics.values()).encode()
    content = args.text.read_bytes() if args.text else manual
    text = torch.frombuffer(bytearray(content), dtype=torch.uint8)

    gpt = GPT(
        layers=args.layers,
        heads=args.heads,
        width=args.width,
        context=args.context,
        dropout=args.dropout,
    )
    model = DistributedDataParallel(gpt.to(device))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=args.weight_decay
    )

    step = 0
    while step < args.max_steps:
        started = time.perf_counter()
        lr = learning_rate(step, peak=args.lr, warmup=args.warmup, max_steps=args.max_steps)
        for group in optimizer.param_groups:
            group["lr"] = lr

        mean_loss = torch.zeros((), device=device)
        for micro_step in range(args.accumulation):
            x, y = random_crops(text, args.batch, args.context)
            last = micro_step == args.accumulation - 1
            with contextlib.nullcontext() if last else model.no_sync():
                loss = model(x.to(device), y.to(device)) / args.accumulation
                loss.backward()
            mean_loss += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        optimizer.zero_grad()

        dist.all_reduce(mean_loss, op=dist.ReduceOp.AVG)
        if rank == 0:
            tokens = args.accumulation * args.batch * args.context * world
            speed = tokens / (time.perf_counter() - started)
            print(f"step {step} loss {mean_loss.item():.4f} lr {lr:.2e} {speed:.0f} tok/s")
        step += 1

    if rank == 0 and args.out:
        torch.save(gpt.state_dict(), args.out)


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
    gc.collect()  # DDP refers to itself, and would keep the group's threads alive until the end
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
