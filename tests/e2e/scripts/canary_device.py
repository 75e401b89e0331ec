"""`canary_ddp.py` whose gradients go the way of an accelerator, with a second gloo group as NCCL.

What only a GPU has is stood in for: operations end in gloo's threads instead of in a stream, and
what a dead peer left unfinished never passes, as with a kernel that outlives its abort.
"""

import json
import os
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import canary_ddp
import torch
from torch._C._distributed_c10d import AllreduceOptions, ProcessGroupGloo

from ft_collectives.communicators.nccl import NcclChannel
from recoverrun.worker.groups import device_support

KINDS = ("groups", "launches", "aborts")

# In a variable they would be the script's state, and lost ranks have others.
counts = tempfile.TemporaryFile()


def count(kind: str) -> None:
    os.write(counts.fileno(), bytes([KINDS.index(kind)]))


def told() -> dict[str, int]:
    counts.seek(0)
    written = counts.read()
    return {kind: written.count(at) for at, kind in enumerate(KINDS)}


class Group:
    def __init__(self, store: Any, rank: int, size: int) -> None:
        count("groups")
        self.gloo = ProcessGroupGloo(store, rank, size, timeout=timedelta(minutes=10))

    def allreduce(self, tensors: list[torch.Tensor], how: Any) -> Any:
        count("launches")
        return self.gloo.allreduce(tensors, how)

    def abort(self) -> None:
        count("aborts")


class Mark:
    def __init__(self, work: Any) -> None:
        self.work, self.future = work, work.get_future()

    def query(self) -> bool:
        return bool(self.future.done()) and self.failure() == ""

    def failure(self) -> str:
        if not self.future.done():
            return ""
        try:
            self.work.wait()
        except RuntimeError as failure:
            return str(failure)
        return ""


class StandIn:
    def __init__(self) -> None:
        self.marks: dict[int, list[Mark]] = {}

    def group(self, store: Any, rank: int, size: int) -> Group:
        return Group(store, rank, size)

    def warm_up(self, group: Group) -> Any:
        return group.allreduce([torch.zeros(1)], AllreduceOptions())

    def stamp(self, group: Group, work: Any) -> Mark:
        mark = Mark(work)
        self.marks.setdefault(id(group), []).append(mark)
        return mark

    def failure(self, group: Group) -> str:
        marks = self.marks[id(group)] = [
            mark for mark in self.marks.get(id(group), []) if not mark.query()
        ]
        return next((words for mark in marks if (words := mark.failure())), "")

    def refusal(self) -> str:
        return ""


if __name__ == "__main__":
    device_support.communicators = lambda device: NcclChannel(StandIn())
    canary_ddp.main()
    out = Path(next(word for word in sys.argv if word.startswith("--out=")).removeprefix("--out="))
    (out / f"device{os.environ['RANK']}.json").write_text(json.dumps(told()))
