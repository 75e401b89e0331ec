"""build-nanogpt's way: a strided loader of its own through files that end at different times."""

import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_default_dtype(torch.float64)


class DataLoaderLite:
    def __init__(self, B, T, process_rank, num_processes, split):
        self.B, self.T, self.process_rank, self.num_processes = B, T, process_rank, num_processes
        g = torch.Generator().manual_seed(0 if split == "train" else 1)
        self.shards = [torch.randint(50, (1000,), generator=g) for _ in range(2)]
        self.reset()

    def reset(self):
        self.current_shard = 0
        self.tokens = self.shards[0]
        self.current_position = self.B * self.T * self.process_rank

    def next_batch(self):
        B, T = self.B, self.T
        buf = self.tokens[self.current_position : self.current_position + B * T + 1]
        x = buf[:-1].view(B, T)
        y = buf[1:].view(B, T)
        self.current_position += B * T * self.num_processes
        if self.current_position + (B * T * self.num_processes + 1) > len(self.tokens):
            self.current_shard = (self.current_shard + 1) % len(self.shards)
            self.tokens = self.shards[self.current_shard]
            self.current_position = B * T * self.process_rank
        return x, y


init_process_group(backend="gloo")
ddp_rank = int(os.environ["RANK"])
ddp_world_size = int(os.environ["WORLD_SIZE"])
master_process = ddp_rank == 0
torch.manual_seed(1337)
B, T = 4, 8
grad_accum_steps = 2
train_loader = DataLoaderLite(B, T, ddp_rank, ddp_world_size, "train")
val_loader = DataLoaderLite(B, T, ddp_rank, ddp_world_size, "val")
model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 50))
model = DDP(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), eps=1e-8)
log_file = os.devnull
max_steps = 14
for step in range(max_steps):
    t0 = time.time()
    last_step = step == max_steps - 1
    if step % 5 == 0 or last_step:
        model.eval()
        val_loader.reset()
        with torch.no_grad():
            val_loss_accum = 0.0
            for _ in range(2):
                x, y = val_loader.next_batch()
                val_loss_accum += F.cross_entropy(model(x).view(-1, 50), y.view(-1)).detach() / 2
        dist.all_reduce(val_loss_accum, op=dist.ReduceOp.AVG)
        if master_process:
            print(f"validation loss: {val_loss_accum.item():.4f}")
            with open(log_file, "a") as f:
                f.write(f"{step} val {val_loss_accum.item():.4f}\n")
    model.train()
    optimizer.zero_grad()
    loss_accum = 0.0
    for micro_step in range(grad_accum_steps):
        x, y = train_loader.next_batch()
        model.require_backward_grad_sync = micro_step == grad_accum_steps - 1
        loss = F.cross_entropy(model(x).view(-1, 50), y.view(-1)) / grad_accum_steps
        loss_accum += loss.detach()
        loss.backward()
    dist.all_reduce(loss_accum, op=dist.ReduceOp.AVG)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    lr = 6e-4 * (step + 1) / max_steps
    for pg in optimizer.param_groups:
        pg["lr"] = lr
    optimizer.step()
    if master_process:
        print(f"step {step} loss {loss_accum.item():.6f} | lr {lr:.4e} | norm: {norm:.4f}")
destroy_process_group()
