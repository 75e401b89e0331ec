"""Trains in one process, and times how long snapshots and torch's async_save hold it up.

The launcher takes a snapshot at every step that `--every` divides; in steps between, the script has
`torch.distributed.checkpoint` save the same state, with a stager that is kept: by a thread, and by
a process. A snapshot holds training up between two iterations, and as the optimizer steps; both are
timed here, from outside, also in steps without one. Every save is awaited before the next snapshot,
so that neither meets the other. At last the newest save is loaded, from the system's cache and from
the disk. What was found is written as JSON. Beside it each process writes when it came to its loop,
into its first iteration, and through it.
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
LINE = 34  # bytes


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

    def load(self, *, cached: bool) -> list[float]:
        """Until all is in the model and the optimizer's state again: wall time, and CPU of the
        process. Without `cached` the system has none of the files in memory.
        """
        for path in () if cached else self._folder.iterdir():
            with open(path, "rb+") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        began, cpu = time.perf_counter(), time.process_time()
        dcp.load(self._state(), checkpoint_id=self._folder)
        return [1000 * (time.perf_counter() - began), 1000 * (time.process_time() - cpu)]

    def close(self) -> None:
        self._stager.close()

    def _state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self._model, self._optimizer)
        return {"model": model, "optimizer": optimizer}


def now() -> list[float]:
    """Wall time, and CPU time of this thread."""
    return [time.perf_counter(), time.thread_time()]


class Place:
    """A file of this process alone: a snapshot has what variables were in the process before."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)

    @property
    def _path(self) -> Path:
        return self._folder / f"places-{os.getpid()}"

    def note(self, lines: int) -> None:
        """Note the time, and the CPU of the process, as the line behind so many."""
        path = self._path
        if path.exists() == bool(lines) and (not lines or path.stat().st_size == lines * LINE):
            with open(path, "a") as file:
                file.write(f"{time.time():20.6f} {time.process_time():12.6f}\n")


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
    place = Place(args.into)
    place.note(0)
    ended = now()
    for step in range(args.steps):
        begins = now()
        place.note(1)
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
        place.note(2)
        ended = now()

    tensors = [one for each in optimizer.state.values() for one in each.values()]
    told = {
        "found": found,
        "loads": [
            [savers["thread"].load(cached=cached) for _ in range(LOADS)] for cached in (True, False)
        ],
        "bytes": sum(one.nbytes for one in [*model.parameters(), *tensors]),
        "keeper": keeper(),
    }
    (args.into / "found.json").write_text(json.dumps(told))
    for saver in savers.values():
        saver.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
