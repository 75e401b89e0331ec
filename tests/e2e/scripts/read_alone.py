"""Rank 0 looks at its gradients for a log, before others have anything to say to it."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(96, 8))
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
    for number, (x,) in enumerate(loader):
        model(x).square().mean().backward()
        if dist.get_rank() == 0:
            print("norm", sum(float(param.grad.norm()) for param in model.parameters()))
        if number % 2:
            dist.barrier()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
