"""A framework trains one replica, and the process ends where it is told to, each time once."""

import argparse
import os
import signal
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--shape", required=True, help="the framework")
parser.add_argument("--layout", default="single")
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--dies", default="", help="0@STEP, with commas")
args = parser.parse_args()
OUT, STEPS = Path(args.out), args.steps
torch.manual_seed(17)
xs = torch.randn(64, 16)
data = TensorDataset(xs, xs.roll(1, 1) * 0.5)
model = nn.Sequential(nn.Linear(16, 200), nn.ReLU(), nn.Dropout(0.1), nn.Linear(200, 16))


def end_here(step: int) -> None:
    for number, plan in enumerate(args.dies.split(",")):
        mark = OUT / f"died{number}"
        if plan.endswith(f"@{step}") and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def by_accelerate() -> None:
    from accelerate import Accelerator

    accelerator, step = Accelerator(cpu=True, gradient_accumulation_steps=2), 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(data, batch_size=4, shuffle=True)
    trained, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    while step < STEPS:
        for x, y in loader:
            with accelerator.accumulate(trained):
                accelerator.backward(F.mse_loss(trained(x), y))
                end_here(step)
                optimizer.step()
                optimizer.zero_grad()
                step += accelerator.sync_gradients


def by_transformers() -> None:
    from transformers import Trainer, TrainingArguments

    class Rows(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(xs)

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            return {"x": xs[index], "labels": xs[index].roll(1) * 0.5}

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": F.mse_loss(self.inner(x), labels)}

    class Ending(Trainer):
        def training_step(self, *given, **named):
            loss = super().training_step(*given, **named)
            end_here(self.state.global_step)
            return loss

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, use_cpu=True, max_steps=STEPS, per_device_train_batch_size=4,
            gradient_accumulation_steps=2, learning_rate=1e-2, save_strategy="no",
            report_to="none", disable_tqdm=True,
        )  # fmt: skip
        Ending(model=Model(), args=arguments, train_dataset=Rows()).train()


def by_lightning() -> None:
    import lightning

    class Regression(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = model

        def training_step(self, batch, index):
            x, y = batch
            loss = F.mse_loss(self.layers(x), y)
            self.log("loss", loss, on_step=True, on_epoch=True)
            end_here(self.trainer.global_step)
            return loss

        def validation_step(self, batch, index):
            x, y = batch
            self.log("validation", F.mse_loss(self.layers(x), y))

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, max_steps=STEPS, accumulate_grad_batches=2, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    loader = DataLoader(data, batch_size=4, shuffle=True)
    trainer.fit(Regression(), loader, DataLoader(data, batch_size=4))


{"accelerate": by_accelerate, "transformers": by_transformers, "lightning": by_lightning}[
    args.shape
]()
torch.save(model.state_dict(), OUT / "weights0.pt")
