"""Written at module level, with a loader of its own that keeps its rank and wraps around."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group(backend="gloo")
rank = int(os.environ["RANK"])
world_size = int(os.environ["WORLD_SIZE"])


class StridedLoader:
    def __init__(self, batch: int, length: int) -> None:
        self.batch, self.length = batch, length
        self.tokens = torch.randint(0, 64, (6000,), generator=torch.Generator().manual_seed(1))
        self.position = batch * length * rank

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        count = self.batch * self.length
        piece = self.tokens[self.position : self.position + count + 1]
        self.position += count * world_size
        if self.position + count * world_size + 1 > len(self.tokens):
            self.position = count * rank
        return piece[:-1].view(self.batch, -1), piece[1:].view(self.batch, -1)


torch.manual_seed(1337)
loader = StridedLoader(4, 16)
model = torch.nn.Sequential(
    torch.nn.Embedding(64, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 64)
).double()
ddp = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
accumulation = 4
for _step in range(24):
    optimizer.zero_grad()
    loss_accum = 0.0
    for micro_step in range(accumulation):
        x, y = loader.next_batch()
        ddp.require_backward_grad_sync = micro_step == accumulation - 1
        logits = ddp(x)
        loss = torch.nn.functional.cross_entropy(logits.view(-1, 64), y.reshape(-1))
        loss = loss / accumulation
        loss_accum += loss.detach()
        loss.backward()
    dist.all_reduce(loss_accum, op=dist.ReduceOp.AVG)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
total = sum(float(p.detach().abs().sum()) for p in model.parameters())
print(f"rank {rank} weights {total:.9f}", flush=True)
dist.destroy_process_group()
