"""Gradients that a script limits by itself, in ways that torch has no function for.

`loosely`: the last microbatches of an epoch are added to the first step of the next one.
"""

import argparse
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RECORDING = {"no-grad": torch.no_grad, "inference": torch.inference_mode}
WAYS = ("values", "norms", "loosely", "each", "between", *RECORDING)


def limit(model: nn.Module, way: str) -> None:
    """Each parameter by itself."""
    for param in model.parameters():
        if param.grad is None:
            continue
        grad = getattr(param.grad, "_local_tensor", param.grad)
        if way == "norms":
            norm = grad.norm(2)
            if norm > 0.05:
                grad.mul_(0.05 / (norm + 1e-6))
        else:
            grad.clamp_(-0.005, 0.005)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("ddp", "hsdp"))
    parser.add_argument("way", choices=WAYS)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo")
    torch.manual_seed(4)
    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 8))
    model: nn.Module = net
    if args.kind == "hsdp":
        mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("r", "s"))
        fully_shard(net, mesh=mesh)
    else:
        model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    data = TensorDataset(torch.randn(40 * dist.get_world_size(), 8))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    every = 4 if args.way == "loosely" else 2
    torch.manual_seed(5 + dist.get_rank())
    for epoch in range(4 if args.way == "loosely" else 2):
        sampler.set_epoch(epoch)
        for number, (x,) in enumerate(loader):
            loss = F.mse_loss(model(x), x) / every
            loss.backward()
            if args.way == "each":
                nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            elif args.way == "between":
                limit(model, "values")
            if (number + 1) % every:
                continue
            if args.way not in ("each", "between"):
                with RECORDING.get(args.way, nullcontext)():
                    limit(model, args.way)
            optimizer.step()
            optimizer.zero_grad()
    local = [getattr(one, "_local_tensor", one) for one in model.parameters()]
    total = sum(float(one.detach().abs().sum()) for one in local)
    print(f"rank {dist.get_rank()} weights {total:.14f}\n", end="", flush=True)
    dist.barrier()  # torch may wait for itself where the last thing before this was a reduction
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
