"""Writes the script of a plan: what somebody could have written, and a log of its own.

The log is what the verdict rests on: a line for each microbatch with its samples and a checksum of
what the model saw of them, which has all random draws in it, by whoever executes it.
"""

from textwrap import indent

from tests.hunt.places import Place, place_of
from tests.hunt.plan import SHARDED, STEPS, Plan
from tests.hunt.streams import Stream, stream_of

HEAD = """\
import ctypes
import os
import random
{imports}import signal
import time
import zlib
from contextlib import nullcontext

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
{shards}from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

N, BATCH, STEPS = 48, 2, {steps}
FOLDER = os.environ["HUNT_FOLDER"]
LOG = os.path.join(FOLDER, f"lines.{{os.getpid()}}")
{books}

def note(rank, step, micro, ids, seen):
    seen = zlib.crc32(seen.detach().numpy().tobytes())
    say(f"batch {{os.getpid()}} {{rank}} {{step}} {{micro}} {{','.join(map(str, ids))}} {{seen}}")
{suicide}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout({chance})
        self.body = nn.Linear(6, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        seen = self.drop(x)
        return self.head(torch.tanh(self.body(seen))), seen

"""

BOOKS = {
    "kept open": """\
log = open(LOG, "a", buffering=1)


def say(line):
    log.write(line + "\\n")

""",
    "opened each time": """

def say(line):
    with open(LOG, "a") as log:
        log.write(line + "\\n")

""",
}

SUICIDE = """\
    if os.environ.get("HUNT_DIES") == f"{{rank}}:{{step}}:{{micro}}":
        try:
            os.close(os.open(os.path.join(FOLDER, "died"), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            {again}
        {kill}
"""

KILL = "os.kill(os.getpid(), signal.SIGKILL)"
CRASH = "ctypes.CDLL(None).kill(os.getpid(), signal.SIGKILL)"
"""As a library in C does, which nobody asks before."""

AGAIN = {"poison": "pass", "exits": "raise SystemExit(3)", "leaves": "os._exit(3)"}
"""What the microbatch in which a rank died does to whoever executes it again."""

REWRAPPED = """\
if step == 5 and micro == 0:
    net.body.requires_grad_(True)
    model = DistributedDataParallel(net)
"""

SHARDS = """\
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
"""

SHARDED_NET = """\
mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
for part in (net.body, net.head):
    fully_shard(part, mesh=mesh)
model = fully_shard(net, mesh=mesh)
"""

BEGIN = """\
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
say(f"began {os.getpid()} {rank} {time.monotonic_ns()}")
torch.manual_seed(1)
X = torch.randn(N, 6, dtype=torch.float64)
Y = X.sum(1, keepdim=True).sin()
net = Net().double()
"""

END = """\
flat = torch.cat([{weight}.detach().flatten() for p in net.parameters()])
say(f"weights {os.getpid()} {rank} {' '.join(float(v).hex() for v in flat)}")
dist.barrier()
dist.destroy_process_group()
"""

OPTIMIZERS = {
    "sgd": "torch.optim.SGD(net.parameters(), lr=0.05)",
    "momentum": "torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9)",
    "adamw": "torch.optim.AdamW(net.parameters(), lr=0.01)",
}

COUNTS = {
    "single": "1",
    "no-sync-2": "2",
    "no-sync-3": "3",
    "naked-2": "2",
    "uneven": "(2, 2, 1)[step % 3]",
    "ramp": "1 + (step >= 4)",
    "post-local": "1",
}

NORM = "norm = sum(p.grad.pow(2).sum() for p in net.parameters()).sqrt().item()\n"

READERS = {
    "nothing": "",
    "clip": "nn.utils.clip_grad_norm_(net.parameters(), 0.5)\n",
    "norm": NORM
    + 'if rank == 0:\n    print(f"step {step} norm {norm!r}\\n", end="", flush=True)\n',
    "adaptive": NORM
    + "history.append(norm)\nlimit = sum(history[-3:]) / len(history[-3:])\nif norm > limit:\n"
    "    for p in net.parameters():\n        p.grad.mul_(limit / norm)\n",
    "rate": NORM + 'for group in optimizer.param_groups:\n    group["lr"] = 0.05 / (1.0 + norm)\n',
    "zeroing": "for p in net.parameters():\n    p.grad[p.grad.abs() < 0.01] = 0.0\n",
}

EVALUATION = """\
net.eval()
with torch.no_grad():
    val = F.mse_loss(net({x})[0], {y})
net.train()
"""
TOLD = 'print(f"step {step} val {val.item()!r}\\n", end="", flush=True)\n'
RANK_0 = "if rank == 0:\n" + indent(TOLD, "    ")

JUDGES = {
    "nobody": "",
    "every rank": EVALUATION.format(x="X[:12]", y="Y[:12]") + RANK_0,
    "rank 0": "if rank == 0:\n" + indent(EVALUATION.format(x="X[:12]", y="Y[:12]") + TOLD, "    "),
    "noisy": EVALUATION.format(x="X[:12] + 0.1 * torch.randn_like(X[:12])", y="Y[:12]") + RANK_0,
    "unequal": "if ids[0] % 2:\n    torch.rand(1)\n",
    "logged": "val = loss.detach().clone()\ndist.all_reduce(val)\n" + RANK_0,
    "steering": EVALUATION.format(x="X[rank::world]", y="Y[rank::world]")
    + "dist.all_reduce(val)\nfor group in optimizer.param_groups:\n"
    '    group["lr"] = 0.02 * min(1.0, val.item() / world)\n' + RANK_0,
}

BY_HAND = "for p in net.parameters():\n    dist.all_reduce(p.grad)\n    p.grad /= world\n"

AVERAGED = """\
if step >= 6:
    with torch.no_grad():
        for p in net.parameters():
            dist.all_reduce(p)
            p /= world
"""


def written(plan: Plan) -> str:
    """The text of the script."""
    place, stream = place_of(plan), stream_of(plan)
    head = HEAD.format(
        imports=place.imports,
        shards=SHARDS if plan.wrapper == SHARDED else "",
        steps=STEPS,
        books=BOOKS[plan.books],
        suicide=_suicide(plan) if plan.suicide else "",
        chance="0.3" if plan.stream == "dropout" and plan.when == "at once" else "0.0",
    )
    top = "".join(f"{piece}\n" for piece in (place.top, stream.top) if piece)
    end = END.replace("{weight}", "p.full_tensor()" if plan.wrapper == SHARDED else "p")
    work = BEGIN + _setup(plan, place, stream) + "\n" + _loop(plan, place, stream) + end
    if plan.shape == "main":
        work = f"def main():\n{indent(work, '    ')}\n\nif __name__ == '__main__':\n    main()\n"
    return f"{head}{top}\n{work}"


def _suicide(plan: Plan) -> str:
    kill = CRASH if plan.odd == "poison" else KILL
    return SUICIDE.format(again=AGAIN.get(plan.odd, "return"), kill=kill)


def _setup(plan: Plan, place: Place, stream: Stream) -> str:
    wrapped = {"ddp": "model = DistributedDataParallel(net)\n", SHARDED: SHARDED_NET}
    frozen = "net.body.requires_grad_(False)\n" if plan.odd == "rewrapped" else ""
    lines = [
        frozen,
        wrapped.get(plan.wrapper, "model = net\n"),
        f"optimizer = {OPTIMIZERS[plan.optimizer]}\n",
    ]
    if plan.schedule:
        lines.append("schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7)\n")
    if plan.reader == "adaptive":
        lines.append("history = []\n")
    return "".join([*lines, stream.setup, place.setup])


def _loop(plan: Plan, place: Place, stream: Stream) -> str:
    single = _count(plan) == "1"
    count = f"k = {_count(plan)}\n"
    if plan.loop == "steps":
        body = place.fetch + _microbatch(plan, stream, "micro + 1 == k")
        inner = "micro, k = 0, 1\n" + body if single else f"{count}for micro in range(k):\n"
        inner += "" if single else indent(body, "    ")
        whole = "optimizer.zero_grad()\n" + inner + _after(plan)
        return f"for step in range(STEPS):\n{indent(whole, '    ')}"
    fetch = place.fetch
    short = plan.loop == "for" and plan.place == "loader" and plan.accumulation == "uneven"
    if short:
        count = "k = 5\n"
    last = "micro + 1 == k or number + 1 == len(loader)" if short else "micro + 1 == k"
    if plan.loop == "for":
        fetch = "ids = ids.tolist()\n" if plan.place == "loader" else ""
    body = f"{fetch}{count}last = {last}\n" + _microbatch(plan, stream, "last")
    update = _after(plan) + "optimizer.zero_grad()\nstep, micro = step + 1, 0\n"
    leave = "" if plan.loop == "while" else "if step == STEPS:\n    break\n"
    body += f"if not last:\n    micro += 1\n    continue\n{update}{leave}"
    return "step = micro = 0\n" + _around(plan, place, indent(body, "    "))


def _count(plan: Plan) -> str:
    """The number of microbatches of a step."""
    return {"unequal": "1 + (rank == 0)", "halves": "1 + (step == 4 and rank == world - 1)"}.get(
        plan.odd, COUNTS[plan.accumulation]
    )


def _around(plan: Plan, place: Place, body: str) -> str:
    """The loop that makes one microbatch after the other."""
    if plan.loop == "while":
        return f"while step < STEPS:\n{body}"
    if plan.loop == "flat":
        return f"for number in range(10 * STEPS):\n{body}"
    if plan.place != "loader":
        return f"for ids in {place.each}:\n{body}"
    whole = f"sampler.set_epoch(epoch)\nfor number, (ids,) in enumerate(loader):\n{body}"
    whole += "if step == STEPS:\n    break\n"
    return f"for epoch in range(10 * STEPS):\n{indent(whole, '    ')}"


def _microbatch(plan: Plan, stream: Stream, last: str) -> str:
    compute = (
        "out, seen = model(x)\nloss = F.mse_loss(out, Y[ids]) / k\n"
        "note(rank, step, micro, ids, seen)\nloss.backward()\n"
    )
    if plan.accumulation == "post-local":
        last = "step < 6"
    apart = plan.odd in ("unequal", "halves") or plan.accumulation in (
        "no-sync-2",
        "no-sync-3",
        "uneven",
        "ramp",
        "post-local",
    )
    if apart and plan.wrapper == "ddp":
        compute = f"with nullcontext() if {last} else model.no_sync():\n{indent(compute, '    ')}"
    if apart and plan.wrapper == SHARDED:
        compute = f"model.set_requires_gradient_sync({last})\n{compute}"
    before = REWRAPPED if plan.odd == "rewrapped" else ""
    return f"{before}x = X[ids]\n{stream.draw}{compute}"


def _after(plan: Plan) -> str:
    """The code behind a step's last backward."""
    reader, judge = READERS[plan.reader], JUDGES[plan.judge]
    if reader and plan.reads_from:
        reader = f"if step >= {plan.reads_from}:\n{indent(reader, '    ')}"
    judge = f"if step % 3 == 2:\n{indent(judge, '    ')}" if judge else ""
    return (
        (BY_HAND if plan.wrapper == "by-hand" else "")
        + reader
        + "optimizer.step()\n"
        + (AVERAGED if plan.accumulation == "post-local" else "")
        + ("schedule.step()\n" if plan.schedule else "")
        + 'say(f"step {os.getpid()} {rank} {step} {loss.item().hex()}")\n'
        + 'if rank == 0:\n    print(f"step {step} loss {loss.item()!r}\\n", end="", flush=True)\n'
        + judge
    )
