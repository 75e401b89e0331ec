"""The cost of protected operations without a loss (see `worlds`)."""

import os
import threading
import time
from typing import Any

import torch
import torch.distributed as dist

from ft_collectives.communicators import fabric as fabric_module
from ft_collectives.communicators import gloo_threads, left_memory
from ft_collectives.process_group.elastic import ElasticGroup
from tests.numerics.elastic_scripts import operate
from tests.numerics.worlds import Member


def event_threads(member: Member) -> list[Any]:
    """The number of gloo's event threads before and after we connect, and their policies.

    All native groups were made by then; every one has a device of its own.
    """
    before = len(gloo_threads._threads())
    fabric = member.protect()
    for name in ("gradients", "vote"):
        fabric.ready(fabric.open(name, range(member.size)))
    threads = gloo_threads._threads()
    policies = sorted({os.sched_getscheduler(thread) for thread in threads})
    return [before, len(threads), policies]


def growth(member: Member) -> list[int]:
    """The memory kept after 20 and after 220 rounds of operations without a loss."""
    member.protect()
    counts = []
    for rounds in (20, 200):
        for number in range(rounds):
            for name in ("sum", "gather", "broadcast", "exchange"):
                operate(name, number, member.rank, member.size, 64)
        counts += [
            len(fabric_module._kept_groups),
            len(left_memory._held),
            len(ElasticGroup.instances),
            threading.active_count(),
        ]
    return counts


def cost(member: Member) -> tuple[float, float]:
    """Median microseconds of an all-reduce of 4 bytes: native, protected."""
    tensor = torch.ones(1)

    def median() -> float:
        passed = []
        for _ in range(300):
            started = time.perf_counter()
            dist.all_reduce(tensor)
            passed.append(time.perf_counter() - started)
            tensor.fill_(1)
        return 1e6 * sorted(passed)[len(passed) // 2]

    native = median()
    member.protect()
    return native, median()
