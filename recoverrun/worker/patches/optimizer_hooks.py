"""The steps of optimizers, and the refusal of a run whose updates cannot survive a loss.

An update needs gradients that were reduced. Before it the ones that a script reduces by hand are
(`manual_allreduce`), and a run whose model nobody wraps is refused; after it so is one whose
optimizer exchanges what ranks computed.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # it imports torch, which only the script does
    from recoverrun.worker.patches.parts import Parts
    from recoverrun.worker.strategies.manual_allreduce import ManualAllReduce

UNWRAPPED = (
    "the script wraps no model in DDP, or in FSDP with replicas, and all-reduces no gradients as "
    "the backward left them"
)
DIVIDED = (
    "ZeroRedundancyOptimizer keeps a part of its state on each rank, and a loss takes one along"
)
SHARED_UPDATE = (
    "{} exchanges what ranks computed while it updates the parameters: its work is divided among "
    "them, and a loss takes a part of its state along"
)
WRAPPED_WITHIN = 10
"""Optimizer steps: a script may warm something up before it wraps its model."""


def knowing(parts: "Parts", original: Any) -> Any:
    """`Optimizer.add_param_group`, by which every optimizer comes to know its parameters."""
    from recoverrun.worker.context.made_objects import is_divided

    def wrapper(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        parts.executor.optimizers.add(optimizer)
        parts.made.note_optimizer(optimizer)
        if is_divided(optimizer):
            parts.worker.refuse(DIVIDED)

    return wrapper


def updates(parts: "Parts", manual: "ManualAllReduce") -> None:
    """All that happens around `Optimizer.step`."""
    from torch._compile import _disable_dynamo
    from torch.optim.optimizer import (
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    heard: dict[int, int] = {}  # collectives of the script before the update, by optimizer

    def stepping(optimizer: Any, args: Any, kwargs: Any) -> None:
        _stepping(parts, manual)
        heard[id(optimizer)] = parts.worker.runtime.heard

    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        parts.made.stepped = True
        evaluates = len(args) > 1 or kwargs.get("closure") is not None
        shared = parts.worker.runtime.heard > heard.get(id(optimizer), parts.worker.runtime.heard)
        if shared and not evaluates and not parts.worker.refusal:
            parts.worker.refuse(SHARED_UPDATE.format(type(optimizer).__name__))

    # An optimizer may be compiled, but not these: what they count would be compiled in.
    register_optimizer_step_pre_hook(_disable_dynamo(stepping))
    register_optimizer_step_post_hook(_disable_dynamo(stepped))


def _stepping(parts: "Parts", manual: "ManualAllReduce") -> None:
    """An optimizer is about to step."""
    if parts.worker.machine is None:
        parts.worker.failpoints.update(refused=bool(parts.worker.refusal))
    manual.stepping()
    if parts.worker.strategy is None and not parts.worker.refusal and _trains_together():
        _unwrapped_step(parts)


def unserved_backward(parts: "Parts", manual: "ManualAllReduce") -> None:
    """A backward has ended, and no model is served yet."""
    manual.backward_done()
    runtime = parts.worker.runtime
    runtime.unwrapped_backwards += 1
    if runtime.unwrapped_backwards != WRAPPED_WITHIN or runtime.unwrapped_steps:
        return
    if parts.worker.strategy is None and not parts.worker.refusal and _trains_together():
        _tell_unwrapped(parts)  # updates are the script's own, of which nobody hears


def _tell_unwrapped(parts: "Parts") -> None:
    if parts.worker.env.rank == 0:
        parts.worker.reporter.notice(f"unprotected so far: {UNWRAPPED}")


def _unwrapped_step(parts: "Parts") -> None:
    """An optimizer steps in a world of several ranks, and no model is served yet."""
    runtime = parts.worker.runtime
    runtime.unwrapped_steps += 1
    if runtime.unwrapped_steps == 1 and runtime.unwrapped_backwards < WRAPPED_WITHIN:
        _tell_unwrapped(parts)
    elif runtime.unwrapped_steps > WRAPPED_WITHIN:
        parts.worker.refuse(UNWRAPPED)


def _trains_together() -> bool:
    import torch.distributed as dist

    return dist.is_initialized() and dist.get_world_size() > 1
