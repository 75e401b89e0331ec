"""nanoGPT's way: pieces of a mapped file at random, `while True`, rank 0 evaluates alone."""

import math
import os
import tempfile
import time
from contextlib import nullcontext

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP

eval_interval = 6
eval_iters = 2
log_interval = 1
max_iters = 12
gradient_accumulation_steps = 6
batch_size = 3
block_size = 8
grad_clip = 1.0
ddp = int(os.environ.get("RANK", -1)) != -1
init_process_group(backend="gloo")
ddp_rank = int(os.environ["RANK"])
ddp_local_rank = int(os.environ["LOCAL_RANK"])
ddp_world_size = int(os.environ["WORLD_SIZE"])
master_process = ddp_rank == 0
seed_offset = ddp_rank
gradient_accumulation_steps //= ddp_world_size
torch.manual_seed(1337 + seed_offset)
torch.set_default_dtype(torch.float64)
ctx = nullcontext()
device = "cpu"
device_type = "cpu"
path = os.path.join(tempfile.mkdtemp(), "train.bin")
np.random.RandomState(0).randint(0, 50, 4000).astype(np.uint16).tofile(path)


def get_batch(split):
    data = np.memmap(path, dtype=np.uint16, mode="r")
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy((data[i : i + block_size]).astype(np.int64)) for i in ix])
    y = torch.stack(
        [torch.from_numpy((data[i + 1 : i + 1 + block_size]).astype(np.int64)) for i in ix]
    )
    return x, y


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(50, 16)
        self.d = nn.Dropout(0.1)
        self.l = nn.Linear(16, 50)

    def forward(self, i, t):
        o = self.l(self.d(self.e(i)))
        return o, F.cross_entropy(o.view(-1, 50), t.view(-1))


iter_num = 0
best_val_loss = 1e9
model = GPT()
scaler = torch.amp.GradScaler("cpu", enabled=False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model = DDP(model)


@torch.no_grad()
def estimate_loss():
    out = {}
    model.eval()
    for split in ["train", "val"]:
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            X, Y = get_batch(split)
            with ctx:
                logits, loss = model(X, Y)
            losses[k] = loss.item()
        out[split] = losses.mean()
    model.train()
    return out


def get_lr(it):
    return 1e-2 * 0.5 * (1 + math.cos(math.pi * it / max_iters))


X, Y = get_batch("train")
t0 = time.time()
local_iter_num = 0
raw_model = model.module
running_mfu = -1.0
while True:
    lr = get_lr(iter_num)
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr
    if iter_num % eval_interval == 0 and master_process:
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
        if losses["val"] < best_val_loss:
            best_val_loss = losses["val"]
            if iter_num > 0:
                torch.save({"model": raw_model.state_dict(), "iter_num": iter_num}, os.devnull)
    for micro_step in range(gradient_accumulation_steps):
        model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps
        X, Y = get_batch("train")
        scaler.scale(loss).backward()
    if grad_clip != 0.0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    t1 = time.time()
    dt = t1 - t0
    t0 = t1
    if iter_num % log_interval == 0 and master_process:
        lossf = loss.item() * gradient_accumulation_steps
        if local_iter_num >= 5:
            running_mfu = 0.5 if running_mfu == -1.0 else 0.9 * running_mfu + 0.05
        print(f"iter {iter_num}: loss {lossf:.4f}, time {dt * 1000:.2f}ms")
    iter_num += 1
    local_iter_num += 1
    if iter_num > max_iters:
        break
destroy_process_group()
