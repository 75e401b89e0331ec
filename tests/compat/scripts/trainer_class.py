"""A trainer class with callbacks, stopwatches, averaged weights and evaluation (minGPT's way)."""

import copy
import os
import time
from collections import defaultdict
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

torch.set_default_dtype(torch.float64)


class Data(Dataset):
    def __init__(self, n=128):
        g = torch.Generator().manual_seed(5)
        self.x = torch.randn(n, 8, generator=g)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"x": self.x[i], "y": self.x[i].prod()}


@dataclass
class Config:
    max_iters: int = 14
    batch_size: int = 4
    lr: float = 1e-2
    eval_every: int = 5


class EMA:
    def __init__(self, model, decay=0.9):
        self.shadow = copy.deepcopy(model).eval()
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for s, p in zip(self.shadow.parameters(), model.parameters(), strict=True):
            s.lerp_(p, 1 - self.decay)


class Trainer:
    def __init__(self, config, model, ds, val):
        self.config, self.ds, self.val = config, ds, val
        self.callbacks = defaultdict(list)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr)  # before wrapping
        self.model = DDP(model)
        self.ema = EMA(model)
        self.iter_num = 0
        self.iter_time = 0.0
        self.loss = None

    def add_callback(self, on, cb):
        self.callbacks[on].append(cb)

    def trigger(self, on):
        for cb in self.callbacks[on]:
            cb(self)

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        tot = torch.zeros(2)
        for b in DataLoader(self.val, 16, sampler=DistributedSampler(self.val, shuffle=False)):
            tot += torch.tensor([F.mse_loss(self.model(b["x"]).squeeze(1), b["y"]).item(), 1.0])
        dist.all_reduce(tot)
        self.model.train()
        return (tot[0] / tot[1]).item()

    def run(self):
        self.model.train()
        self.iter_time = time.time()
        sampler = DistributedSampler(self.ds)
        loader = DataLoader(self.ds, self.config.batch_size, sampler=sampler, num_workers=0)
        data_iter = iter(loader)
        while True:
            try:
                batch = next(data_iter)
            except StopIteration:
                data_iter = iter(loader)
                batch = next(data_iter)
            pred = self.model(batch["x"]).squeeze(1)
            self.loss = F.mse_loss(pred, batch["y"])
            self.model.zero_grad(set_to_none=True)
            self.loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.ema.update(self.model.module)
            self.trigger("on_batch_end")
            self.iter_num += 1
            t = time.time()
            self.dt = t - self.iter_time
            self.iter_time = t
            if self.iter_num >= self.config.max_iters:
                break


def on_batch_end(tr):
    if tr.iter_num % tr.config.eval_every == 0:
        v = tr.evaluate()
        if dist.get_rank() == 0:
            print(f"step {tr.iter_num} loss {tr.loss.item():.4f} val {v:.4f}")
            torch.save(
                {"m": tr.model.module.state_dict(), "o": tr.optimizer.state_dict()}, os.devnull
            )
        dist.barrier()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(1337)
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 1))
    tr = Trainer(Config(), model, Data(), Data(40))
    tr.add_callback("on_batch_end", on_batch_end)
    tr.run()
    dist.destroy_process_group()
