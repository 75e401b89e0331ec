"""Support for models on CUDA: switched on by RECOVERRUN_CUDA, off without it.

It has run on one GPU so far, in small runs (docs/gpu.md), so nobody gets it unasked.

| RECOVERRUN_CUDA | gradients | the script's own collectives |
|---|---|---|
| host | over gloo, through the memory of the host | the same |
| nccl | over NCCL communicators of ours (`communicators.nccl`) | over gloo, through the host |
"""

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from ft_collectives.communicators.c10d import ProcessGroupGloo
from ft_collectives.communicators.channel import Accelerator
from ft_collectives.communicators.nccl import Nccl, NcclChannel
from ft_collectives.process_group.elastic import ElasticGroup
from rendezvous.protocol.worker_env import CUDA

dist_: Any = dist  # not all of what it has is in its stubs

HOST, NCCL = "host", "nccl"

NOT_SERVED = "DDP on an accelerator is not served yet, only on the CPU"

NOT_ASKED = f"DDP on CUDA is protected only if it is asked for, by {CUDA}=nccl"

COMMUNICATOR_WITHIN = timedelta(minutes=10)
"""The time-out of ours, as torch's own default for NCCL: after it, an operation has failed."""


def way() -> str:
    """HOST, NCCL, or "" where it is not switched on."""
    asked = os.environ.get(CUDA, "")
    return asked if asked in (HOST, NCCL) else ""


def may_be_replaced(group: Any) -> bool:
    """True if this is a group over NCCL, with gloo for the CPU or without, that an elastic one may
    wrap.
    """
    if not way():
        return False
    nccl = getattr(c10d, "ProcessGroupNCCL", ProcessGroupGloo)  # the CPU's torch has none
    backends = [group._get_backend(device) for device in group._device_types]
    return bool(backends) and all(isinstance(one, (ProcessGroupGloo, nccl)) for one in backends)


def makes_replaceable(backend: str) -> bool:
    """True if a group of this backend, as torch's `init_process_group` has it, may be replaced."""
    return bool(way()) and backend.lower() in ("nccl", "cpu:gloo,cuda:nccl", "undefined")


def refusal(module: torch.nn.parallel.DistributedDataParallel, *, exact: bool, alone: bool) -> str:
    """The reason why this model is not served, or "". `alone`: each rank is a replica by itself."""
    devices = {param.device for param in module.parameters()}
    kinds = {device.type for device in devices}
    if kinds <= {"cpu"}:
        return ""
    if kinds != {"cuda"}:
        return NOT_SERVED
    if not way():
        return NOT_ASKED
    if exact:
        return "--exact is not served on an accelerator yet, only on the CPU"
    if not alone:
        return "DDP beside tensor parallelism is not served on an accelerator, only on the CPU"
    if len(devices) > 1:
        return "DDP over several accelerators in one process is not served"
    if not isinstance(module.process_group, ElasticGroup):
        return "the process group of DDP is of a kind that cannot be replaced after a loss"
    if torch.get_default_device().type != "cpu":
        return "torch.set_default_device is not served, only tensors that are moved"
    if dist_.get_debug_level() == dist_.DebugLevel.DETAIL:
        return "TORCH_DISTRIBUTED_DEBUG=DETAIL lets torch's watchdog end survivors"
    return ""


def settle_autograd() -> None:
    """Let autograd look now how many devices there are: it does so once, in its first backward.

    It starts a thread for each, and from then on no forked process can compute gradients. A torch
    that is built for CUDA (seen with 2.11 and 2.14) finds eight after `fully_shard`, where there is
    none, and none before. It is called past what we have replaced in torch.
    """
    with torch.enable_grad():
        leaf = torch.zeros(1, device="cpu", requires_grad=True)
        engine: Any = torch.autograd.Variable._execution_engine
        engine.run_backward(
            ((leaf * 1),), (torch.zeros(1, device="cpu"),), False, False, (),
            allow_unreachable=True, accumulate_grad=True,
        )  # fmt: skip


def staging(device: torch.device) -> torch.device:
    """The device on which gradients of a model on `device` are reduced."""
    return device if device.type == "cuda" and way() == NCCL else torch.device("cpu")


def communicators(device: torch.device) -> Accelerator | None:
    """The communicators that reduce gradients on `device`; None if that is gloo's to do."""
    if staging(device).type == "cpu":
        return None
    return NcclChannel(Nccl(device, COMMUNICATOR_WITHIN))
