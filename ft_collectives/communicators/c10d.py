"""torch's C++ communication classes, which are not fully typed.

The stubs of torch 2.13 lack methods (`ProcessGroupGloo.allreduce`), constructors
(`ProcessGroup(rank, size)`) and classes (`AllgatherOptions`) that torch's own Python code uses
(torch/csrc/distributed/c10d/init.cpp). So they are `Any` here, and only here.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d

_library: Any = _distributed_c10d

ProcessGroup: Any = _library.ProcessGroup
ProcessGroupGloo: Any = _library.ProcessGroupGloo
Store: Any = _library.Store
PrefixStore: Any = _library.PrefixStore
ReduceOp: Any = _library.ReduceOp
DistStoreError: Any = dist.DistStoreError
GroupMember: Any = dist.GroupMember
CUSTOM: Any = _library.ProcessGroup.BackendType.CUSTOM
group_named: Any = _library._resolve_process_group

Gloo = Any
"""An instance of `ProcessGroupGloo`."""

Work = Any
"""An instance of c10d's `Work`: `wait`, `get_future`."""

WorkBase: Any = _library.Work


def connect(
    store: Store, rank: int, size: int, *, timeout: timedelta, devices: Sequence[Any]
) -> Gloo:
    """Return a gloo group over `devices`, those of another group; gloo's default without any.

    Blocks until all members connect. Each device has a thread that polls a hundred times a second,
    also while nothing happens: so all groups of a process share devices.
    """
    if not devices:
        return ProcessGroupGloo(store, rank, size, timeout=timeout)
    made = ProcessGroupGloo._Options()
    made._devices, made._timeout = list(devices), timeout
    made._threads = 2 * len(devices)  # as many as torch gives them
    return ProcessGroupGloo(store, rank, size, made)


def options(name: str, **values: Any) -> Any:
    """Return an options struct of c10d, such as `AllreduceOptions`, with `values` set."""
    made = getattr(_library, name)()
    for field, value in values.items():
        setattr(made, field, value)
    return made


def work_of(future: Any) -> Work:
    """Return a work that is complete when `future` is."""
    return _library._create_work_from_future(future)


def register_work(tensor: Any, work: Work) -> None:
    """Register the work that fills `tensor`, for `wait_tensor` of the functional collectives."""
    _library._register_work(tensor, work)


def take_over(outer: Any, native: Any) -> None:
    """Give `outer` the backends and names of `native`: C++ callers fall through to them."""
    kinds = {"gloo": ProcessGroup.BackendType.GLOO, "nccl": ProcessGroup.BackendType.NCCL}
    for number, device in enumerate(native._device_types):
        backend = native._get_backend(device)
        kind = kinds.get(backend.name(), ProcessGroup.BackendType.CUSTOM)
        if number == 0:
            outer._set_default_backend(kind)
        outer._register_backend(device, kind, backend)
    outer._set_group_name(native.group_name)
    outer._set_group_desc(native.group_desc)
