"""A training script that tells the CPU time of its steps; the same file runs under any launcher.

With BENCH_TURNS, the path of a socket, every rank waits there before a step until it is the turn of
its job, and then says how many CPU seconds it has spent, and how many of them in the script's own
thread. With BENCH_PROFILE rank 0 prints where its time goes; its steps are slower then.
"""

import argparse
import json
import os
import socket
import struct
import time

import network
import torch
import torch.distributed as dist
import torch.nn.functional as F
import ways


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", choices=ways.WAYS, default="hsdp")
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--accumulation", type=int, default=4)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--warm-up", type=int, default=5, help="steps that are not measured")
    return parser.parse_args()


def turns() -> socket.socket | None:
    path = os.environ.get("BENCH_TURNS")
    if not path:
        return None
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    return connection


def train(args: argparse.Namespace) -> None:
    profile = None
    if os.environ.get("BENCH_PROFILE") and dist.get_rank() == 0:
        from tests.bench.profiling import Profile

        profile = Profile()
    width = network.width_of(args.parameters, args.layers)
    way, shared = args.strategy, ways.shared(args.strategy)
    model = ways.build(way, width, args.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loader = network.batches(width, args.batch, args.steps * args.accumulation, shared)
    torch.manual_seed(dist.get_rank() // shared)

    spent: list[float] = []
    turn = turns()
    data = iter(loader)
    for step in range(args.steps):
        if turn is not None:
            turn.recv(1)
        if profile is not None and step == args.warm_up:
            profile.begin()
        began, thread_began = time.process_time(), time.thread_time()
        for micro in range(args.accumulation):
            (x,) = next(data)
            with ways.microbatch(way, model, last=micro == args.accumulation - 1):
                loss = F.mse_loss(model(x), x) / args.accumulation
                loss.backward()
        ways.reduce(way, model)
        ways.clip(way, model)
        optimizer.step()
        optimizer.zero_grad()
        spent.append(time.process_time() - began)
        if turn is not None:
            turn.send(struct.pack("dd", spent[-1], time.thread_time() - thread_began))
    if profile is not None:
        profile.end(args.steps - args.warm_up)
        told = {"profile": profile.rows(), "threads": profile.threads, "cpu_s": spent}
        print(json.dumps(told), flush=True)


def main() -> None:
    dist.init_process_group("gloo")
    train(parse_args())  # a DDP module that outlives its group can hang in gloo's destructor
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
