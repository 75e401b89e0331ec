"""Hugging Face transformers: a small GPT-2 from scratch under `Trainer`."""

import os
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed


class Tokens(Dataset):
    def __init__(self) -> None:
        chance = torch.Generator().manual_seed(3)
        self.rows = torch.randint(64, (168, 17), generator=chance)
        self.kept = torch.randint(3, 18, (168,), generator=chance).tolist()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        labels = self.rows[index].clone()
        labels[self.kept[index] :] = -100  # ranks have different numbers of tokens
        return {"input_ids": self.rows[index], "labels": labels}


def main() -> None:
    set_seed(4)
    config = GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2)
    model = GPT2LMHeadModel(config)
    with tempfile.TemporaryDirectory() as directory:
        arguments = TrainingArguments(
            output_dir=directory,
            use_cpu=True,
            ddp_backend="gloo",
            max_steps=int(os.environ.get("STEPS", "10")),
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            learning_rate=1e-3,
            logging_steps=2,
            save_strategy="no",
            report_to="none",
        )
        Trainer(model=model, args=arguments, train_dataset=Tokens()).train()


if __name__ == "__main__":
    main()
