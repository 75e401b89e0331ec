"""Saves and logs on rank 0 alone, as people write it, and at its end reads what was saved."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def save(model: nn.Module, path: str) -> None:
    state = model.state_dict()
    if dist.get_rank() != 0:
        return
    torch.save(state, f"{path}.new")
    os.replace(f"{path}.new", path)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    master_process = rank == 0
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 8)).double()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(2 + rank)
    if rank == 0:
        log = open("log", "w", encoding="utf-8")  # closed by nobody, as ever
    for step in range(12):
        x = torch.randn(4, 8, dtype=torch.float64)
        (model(x) - x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 4 == 3 and master_process:
            log.write(f"{step}\n")
            torch.save({"step": step}, "progress.pt")
    save(net, "final.pt")
    dist.barrier()
    saved = torch.load("final.pt")
    same = all(torch.equal(saved[name], one) for name, one in net.state_dict().items())
    total = sum(float(param.detach().abs().sum()) for param in net.parameters())
    progress = torch.load("progress.pt")["step"]
    words = f"rank {rank} books {same} {progress}\nrank {rank} weights {total:.12f}\n"
    print(words, end="", flush=True)  # at once: others print, too
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
