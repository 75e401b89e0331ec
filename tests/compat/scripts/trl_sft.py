"""trl: a small GPT-2 from scratch under `SFTTrainer`; sentences have different lengths."""

import os
import random
import tempfile

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, set_seed
from trl import SFTConfig, SFTTrainer

WORDS = ["<pad>", "<eos>", "<unk>", *(f"w{number}" for number in range(60))]


def main() -> None:
    set_seed(4)
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    chance = random.Random(3)
    texts = [" ".join(chance.choices(WORDS[3:], k=chance.randint(3, 16))) for _ in range(168)]
    # Batches of different lengths draw differently often for dropout: with it, `equal-count`.
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2, **dropout)
    with tempfile.TemporaryDirectory() as directory:
        arguments = SFTConfig(
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
            bf16=False,
            gradient_checkpointing=False,
        )
        trainer = SFTTrainer(
            model=GPT2LMHeadModel(config),
            args=arguments,
            train_dataset=Dataset.from_dict({"text": texts}),
            processing_class=tokenizer,
        )
        trainer.train()


if __name__ == "__main__":
    main()
