"""A training script that profiles its last step, as users do, and prints what torch's trace has.

Computation is from the begin of backward to the end of autograd's last function: after that DDP
waits in backward for its reductions. A reduction is an operation of gloo's on a bucket, from when
a thread of gloo takes it up until it is complete.
"""

import argparse
import json

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FUNCTION = "autograd::engine::evaluate_function"
LEAST = 4096
"""Elements; gloo also carries votes and the like, which are smaller."""


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--bucket-mb", type=float, default=8.0)
    parser.add_argument("--steps", type=int, default=8)
    return parser.parse_args()


def told(events: list[torch.autograd.profiler_util.FunctionEvent]) -> dict[str, object]:
    """Milliseconds since backward began."""
    (backward,) = (one.time_range for one in events if one.name == "the backward")
    computed = max(one.time_range.end for one in events if one.name.startswith(FUNCTION))
    reductions = [
        (one.name, (one.time_range.start - backward.start) / 1000,
         (one.time_range.end - backward.start) / 1000)
        for one in events
        if one.name.startswith("gloo:") and elements(one) >= LEAST
    ]  # fmt: skip
    return {
        "rank": dist.get_rank(),
        "computed_ms": (computed - backward.start) / 1000,
        "reductions": sorted(reductions, key=lambda one: one[1:]),
    }


def elements(event: torch.autograd.profiler_util.FunctionEvent) -> int:
    shapes = [shape for shape in event.input_shapes or [] if shape]
    return sum(torch.Size(shape).numel() for shape in shapes)


def main() -> None:
    args = parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = (
        nn.Sequential(nn.Linear(args.width, args.width), nn.Tanh()) for _ in range(args.layers)
    )
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=args.bucket_mb)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    rows = dist.get_world_size() * args.batch * args.steps
    data = TensorDataset(torch.randn(rows, args.width))
    loader = DataLoader(data, args.batch, sampler=DistributedSampler(data))
    profiler = profile(activities=[ProfilerActivity.CPU], record_shapes=True)
    for step, (x,) in enumerate(loader):
        if step == args.steps - 1:
            profiler.start()
        loss = F.mse_loss(model(x), x)
        with record_function("the backward"):
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    profiler.stop()
    line = json.dumps(told(list(profiler.events() or [])))
    print(f"{line}\n", end="", flush=True)  # in one write, or lines of two ranks may run together
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
