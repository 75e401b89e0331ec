"""A trainer of its own over accelerate: an endless loader, several backwards a step, an average."""

import copy
from pathlib import Path
from tempfile import mkdtemp

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def cycle(loader):
    while True:
        yield from loader


class Trainer:
    def __init__(self, model, data, steps, accumulate_every, save_every, folder):
        self.accelerator = Accelerator(cpu=True, split_batches=True)
        self.steps, self.accumulate_every, self.save_every = steps, accumulate_every, save_every
        loader = DataLoader(data, batch_size=12, shuffle=True)
        self.batches = cycle(self.accelerator.prepare(loader))
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, betas=(0.9, 0.99))
        if self.accelerator.is_main_process:
            self.average = copy.deepcopy(model)
            self.folder = Path(folder)
        self.step = 0
        self.model, self.optimizer = self.accelerator.prepare(model, self.optimizer)

    def save(self, milestone):
        if self.accelerator.is_local_main_process:
            state = {"step": self.step, "model": self.accelerator.get_state_dict(self.model)}
            torch.save(state, self.folder / f"model-{milestone}.pt")

    def train(self):
        accelerator = self.accelerator
        while self.step < self.steps:
            self.model.train()
            total = 0.0
            for _ in range(self.accumulate_every):
                x, y = next(self.batches)
                with accelerator.autocast():
                    loss = F.mse_loss(self.model(x), y) / self.accumulate_every
                    total += loss.item()
                accelerator.backward(loss)
            accelerator.wait_for_everyone()
            accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            accelerator.wait_for_everyone()
            self.step += 1
            if accelerator.is_main_process:
                for mean, param in zip(
                    self.average.parameters(), self.model.parameters(), strict=True
                ):
                    mean.data.lerp_(param.data, 0.1)
                print(f"step {self.step}: loss {total:.4f}", flush=True)
                if self.step % self.save_every == 0:
                    self.save(self.step // self.save_every)


def main() -> None:
    torch.manual_seed(5)
    x = torch.randn(72, 16, dtype=torch.float64)
    data = TensorDataset(x, x.roll(1, 1) * 0.5)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 16))
    Trainer(model.double(), data, 9, 2, 3, mkdtemp()).train()


if __name__ == "__main__":
    main()
