"""The very first line imports a module that imports torch before it is executed to its end."""

from transformers import TrainingArguments  # isort: skip

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    rate = TrainingArguments(output_dir="unused", use_cpu=True).learning_rate * 1e3
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    total = sum(parameter.detach().double().abs().sum() for parameter in model.parameters())
    print(f"rank {dist.get_rank()} weights {float(total):.12f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
