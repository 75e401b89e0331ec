"""Lightning Fabric: a loop of one's own, with accumulation."""

import os

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATION = 2


def main() -> None:
    devices = int(os.environ["LOCAL_WORLD_SIZE"])
    fabric = L.Fabric(accelerator="cpu", strategy="ddp", devices=devices)
    fabric.launch()
    fabric.seed_everything(5)
    x = torch.randn(96, 16, dtype=torch.float64)
    data = TensorDataset(x, x.roll(1, 1) * 0.5)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 16))
    model = model.double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(DataLoader(data, batch_size=4, shuffle=True))
    fabric.seed_everything(100 + fabric.global_rank)
    for _ in range(2):
        for number, (x, y) in enumerate(loader):
            last = (number + 1) % ACCUMULATION == 0
            with fabric.no_backward_sync(model, enabled=not last):
                fabric.backward(F.mse_loss(model(x), y) / ACCUMULATION)
            if last:
                fabric.clip_gradients(model, optimizer, max_norm=1.0)
                optimizer.step()
                optimizer.zero_grad()
    fabric.barrier()


if __name__ == "__main__":
    main()
