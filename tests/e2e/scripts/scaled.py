"""Gradients that torch itself changes between the backward and the update, in ways of its own."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe


def pipeline(x: torch.Tensor) -> list[nn.Parameter]:
    """The schedule divides by the number of its parts."""
    mesh = init_device_mesh("cpu", (2, 2, 1), mesh_dim_names=("pp", "dp", "shard"))
    stage = mesh["pp"].get_local_rank()
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    fully_shard(net, mesh=mesh["dp", "shard"])
    group = mesh["pp"].get_group()
    made = PipelineStage(net, stage, 2, torch.device("cpu"), group=group)
    schedule = ScheduleGPipe(made, 4, loss_fn=F.mse_loss)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for batch in x.chunk(2)[mesh["dp"].get_local_rank()].split(8):
        schedule.step(*(() if stage else (batch,)), **({"target": batch} if stage else {}))
        optimizer.step()
        optimizer.zero_grad()
    return list(net.parameters())


def scaler(x: torch.Tensor) -> list[nn.Parameter]:
    """FSDP's own scaler, and clipping that hardly ever bites."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "shard"))
    net = nn.Linear(8, 8)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    scaler = ShardedGradScaler(device="cpu", init_scale=1024.0)
    for batch in x.chunk(4)[dist.get_rank()].split(4):
        scaler.scale(F.mse_loss(net(batch), batch)).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 100.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return list(net.parameters())


def in_backward(x: torch.Tensor) -> list[nn.Parameter]:
    """Each parameter is updated as soon as its gradient is there."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "shard"))
    net = nn.Linear(8, 8)
    fully_shard(net, mesh=mesh)
    optimizers = {param: torch.optim.SGD([param], lr=0.5) for param in net.parameters()}

    def step(param: torch.Tensor) -> None:
        optimizers[param].step()
        optimizers[param].zero_grad()

    for param in optimizers:
        param.register_post_accumulate_grad_hook(step)
    for batch in x.chunk(4)[dist.get_rank()].split(4):
        F.mse_loss(net(batch), batch).backward()
    return list(net.parameters())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=("pipeline", "scaler", "in-backward"))
    way = parser.parse_args().way
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    x = torch.randn(64, 8)
    params = {"pipeline": pipeline, "scaler": scaler, "in-backward": in_backward}[way](x)
    local = [one.to_local() if hasattr(one, "to_local") else one for one in params]
    total = sum(float(one.detach().abs().sum()) for one in local)
    print(f"rank {dist.get_rank()} weights {total:.14f}\n", end="", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
