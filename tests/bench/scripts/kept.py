"""Trains in one process, and times how long snapshots and torch's async_save hold it up.

The launcher takes a snapshot at every step that `--every` divides; in steps between, the script has
`torch.distributed.checkpoint` save the same state, with a stager that is kept: by a thread, and by
a process. A snapshot holds training up between two iterations, and as the optimizer steps; both are
timed here, from outside, also in steps without one. Every save is awaited before the next snapshot,
so that neither meets the other. At last the newest save is loaded. What was found is written as
JSON.
"""

import argparse
import json
import os
import shutil
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

WIDTH = 1024
LOADS = 3


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--every", type=int, required=True)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--into", type=Path, required=True)
    return parser.parse_args()


class Saver:
    """Saves in one way, again and again; all times are milliseconds."""

    def __init__(
        self, folder: Path, kind: AsyncCheckpointerType, model: nn.Module, optimizer: Optimizer
    ) -> None:
        self._folder, self._kind = folder, kind
        self._model, self._optimizer = model, optimizer
        self._stager = DefaultStager(StagingOptions(False, True, False, False))

    def save(self) -> list[float]:
        """For how long training was held up, CPU of its thread meanwhile, and until the save was on
        the disk.
        """
        shutil.rmtree(self._folder, ignore_errors=True)
        began, cpu = time.perf_counter(), time.thread_time()
        saving = dcp.async_save(
            self._state(),
            checkpoint_id=self._folder,
            async_checkpointer_type=self._kind,
            async_stager=self._stager,
        )
        held, cpu = time.perf_counter() - began, time.thread_time() - cpu
        assert isinstance(saving, Future), "this stager copies before it returns"
        saving.result()
        return [1000 * held, 1000 * cpu, 1000 * (time.perf_counter() - began)]

    def load(self) -> float:
        """Until all is in the model and the optimizer's state again."""
        began = time.perf_counter()
        dcp.load(self._state(), checkpoint_id=self._folder)
        return 1000 * (time.perf_counter() - began)

    def close(self) -> None:
        self._stager.close()

    def _state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self._model, self._optimizer)
        return {"model": model, "optimizer": optimizer}


def now() -> list[float]:
    """Wall time, and CPU time of this thread."""
    return [time.perf_counter(), time.thread_time()]


def keeper() -> dict[str, float]:
    """CPU seconds and private bytes of the process that keeps snapshots."""
    for process in psutil.Process(os.getppid()).children():
        if "recoverrun.keeper" in process.cmdline():
            spent = process.cpu_times()
            return {"cpu_s": spent.user + spent.system, "bytes": process.memory_full_info().uss}
    return {"cpu_s": 0.0, "bytes": 0.0}


def main() -> None:
    args = parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(args.layers)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    kinds = {"thread": AsyncCheckpointerType.THREAD, "process": AsyncCheckpointerType.PROCESS}
    savers = {name: Saver(args.into / name, kind, model, optimizer) for name, kind in kinds.items()}
    turns = {(number + 1) * args.every // 3: name for number, name in enumerate(savers)}
    found: dict[str, list[list[float]]] = {"snapshot": [], "thread": [], "process": [], "none": []}
    entered = [0.0, 0.0]
    register_optimizer_step_pre_hook(lambda *_: entered.__setitem__(slice(None), now()))
    ended = now()
    for step in range(args.steps):
        begins = now()
        loss = model(torch.randn(args.batch, WIDTH)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        called = now()
        optimizer.step()
        turn = step % args.every
        found["none" if turn else "snapshot"].append(
            [1000 * (begins[at] - ended[at] + entered[at] - called[at]) for at in range(2)]
        )
        if turn in turns:
            found[turns[turn]].append(savers[turns[turn]].save())
        ended = now()

    tensors = [one for each in optimizer.state.values() for one in each.values()]
    told = {
        "found": found,
        "loads": [savers["thread"].load() for _ in range(LOADS)],
        "bytes": sum(one.nbytes for one in [*model.parameters(), *tensors]),
        "keeper": keeper(),
    }
    (args.into / "found.json").write_text(json.dumps(told))
    for saver in savers.values():
        saver.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
