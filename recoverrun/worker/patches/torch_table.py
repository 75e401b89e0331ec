"""The one table of what is replaced in torch, and when.

Nothing is replaced before the script imports torch, and nothing outside a worker of ours. Each row
names a module, an attribute, and what wraps the original; a module that is not there yet, or is not
executed to its end, is waited for (`post_import`). Names that torch copies into other modules are
replaced there as well.

| what | why |
|---|---|
| Tensor.backward, autograd.backward | a microbatch ends, and with some a transaction |
| register_post_accumulate_grad_hook | the script uses gradients before a transaction could commit |
| other hooks, Module.__setattr__ | state that no variable leads to (`attached_state`) |
| constructors of generators | all generators of random numbers are known (`registry`) |
| Optimizer.step (pre-hook) | steps of gradients that are reduced by hand |
| Optimizer.step (post-hook) | what the ranks told each other in the update |
| clip_grad_*, GradScaler | gradients are read before they are reduced by hand |
| Optimizer.add_param_group | all optimizers are known |
| DataLoader.__iter__, that of torchdata, itertools.cycle | positions of other slots |
| torch.manual_seed | a microbatch that seeds before it draws needs no stream |
| dist.get_rank, broadcast, scatter, gather, … | the acting rank; a lost root is no hang |
| _new_process_group_helper, env:// rendezvous | elastic groups; the store of the launcher |
| steps of a pipeline's schedule | a backward, which divides gradients, too |
| sharded checkpoints | no part of one may be a lost rank's |
| the compiler's rules | it compiles nothing of ours |
| DDP, FSDP, fully_shard, foreach_reduce, … | see `strategies` |
"""

import itertools
import sys
from collections.abc import Iterator
from datetime import timedelta
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from recoverrun.worker.context import attached_state
from recoverrun.worker.data.cycle_source import CycleSource
from recoverrun.worker.patches.monkeypatch import replace, replace_copies
from recoverrun.worker.patches.optimizer_hooks import knowing, unserved_backward, updates
from recoverrun.worker.rewriting.post_import import when_imported

if TYPE_CHECKING:  # it imports torch, which only the script does
    from recoverrun.worker.patches.distributed_checkpoint import Checkpoints
    from recoverrun.worker.patches.parts import Parts
    from recoverrun.worker.step.backward_hooks import BackwardHooks
    from recoverrun.worker.strategies.fsdp2 import Fsdp2
    from recoverrun.worker.strategies.manual_allreduce import ManualAllReduce
    from recoverrun.worker.strategies.pipelines import Pipelines

# --------------------------------------------------------------------------- the script's torch


def install(parts: "Parts") -> None:
    """Fill the table for a worker whose script has just imported torch."""
    import torch
    import torch.distributed.distributed_c10d as c10d
    from torch.distributed.algorithms.join import Join
    from torch.nn.parallel import DistributedDataParallel

    from recoverrun.worker.groups import process_groups
    from recoverrun.worker.patches import checkpoint_time, compiler, frameworks
    from recoverrun.worker.patches.distributed_checkpoint import Checkpoints
    from recoverrun.worker.rng.registry import REGISTRY
    from recoverrun.worker.step.backward_hooks import BackwardHooks
    from recoverrun.worker.strategies import pipelines
    from recoverrun.worker.strategies.ddp import Ddp
    from recoverrun.worker.strategies.fsdp2 import Fsdp2
    from recoverrun.worker.strategies.manual_allreduce import ManualAllReduce
    from recoverrun.worker.strategies.pipelines import Pipelines

    manual = ManualAllReduce(parts.driver)
    replace(torch.optim.Optimizer, "add_param_group", manual.add_param_group)
    replace(torch.optim.Optimizer, "add_param_group", lambda one: knowing(parts, one))
    backwards = BackwardHooks(parts.driver, lambda: unserved_backward(parts, manual))
    _gradients(parts, manual, backwards)
    REGISTRY.watch_torch(torch)
    when_imported("numpy.random", REGISTRY.watch_numpy)
    when_imported(compiler.MODULE, compiler.pass_over_ours)
    _data(parts)
    replace(c10d, "_new_process_group_helper", process_groups.wrapping)
    replace(c10d, "_store_based_barrier", process_groups.store_barrier)
    _store(parts)
    _ranks(parts, c10d)
    ddp = Ddp(parts.driver)
    replace(DistributedDataParallel, "__init__", ddp.init)
    replace(DistributedDataParallel, "forward", ddp.forwards.forward)
    replace(DistributedDataParallel, "_pre_forward", ddp.forwards.pre_forward)
    replace(DistributedDataParallel, "_post_forward", ddp.forwards.post_forward)
    replace(DistributedDataParallel, "register_comm_hook", ddp.register_comm_hook)
    replace(DistributedDataParallel, "_register_builtin_comm_hook", ddp.register_builtin)
    replace(DistributedDataParallel, "_sync_buffers", ddp.forwards.sync_buffers)
    replace(Join, "__init__", ddp.join)
    wrapping = sys.modules[DistributedDataParallel.__module__]
    replace(wrapping, "_verify_param_shape_across_processes", frameworks.agreed)
    assert torch.distributed.is_available(), "this torch was built without distributed"
    fsdp2 = Fsdp2(parts.driver)
    when_imported("torch.distributed.fsdp._fully_shard._fully_shard", lambda m: _fsdp2(fsdp2, m))
    composable = "torch.distributed._composable.replicate_with_fsdp"
    when_imported(composable, lambda m: replace(m, "replicate", fsdp2.replicate))
    fsdp1 = "torch.distributed.fsdp.fully_sharded_data_parallel"
    when_imported(fsdp1, lambda m: _fsdp1(parts, m))
    for part in ("saver", "loader"):
        name = f"torch.distributed.checkpoint.state_dict_{part}"
        when_imported(name, lambda m: _checkpoints(Checkpoints(parts.worker), m))
    when_imported("torch.distributed.checkpoint.utils", _places_in_checkpoints)
    schedules = f"{pipelines.MODULE}.schedules"
    when_imported(schedules, lambda m: _pipelines(Pipelines(parts.driver, backwards), m))
    for name, arrived in frameworks.adaptations(parts).items():
        when_imported(name, arrived)
    for name, arrived in checkpoint_time.watches(parts.worker.progress).items():
        when_imported(name, arrived)


def _fsdp2(fsdp2: "Fsdp2", fully_shard: ModuleType) -> None:
    import torch.distributed.fsdp._fully_shard._fsdp_param_group as param_group
    import torch.distributed.fsdp._fully_shard._fsdp_state as state

    replace(fully_shard, "fully_shard", fsdp2.fully_shard)
    replace(param_group, "foreach_reduce", fsdp2.foreach_reduce)
    replace(param_group.FSDPParamGroup, "post_backward", fsdp2.post_backward)
    replace(state.FSDPState, "_pre_forward", fsdp2.pre_forward)


def _fsdp1(parts: "Parts", wrapped: ModuleType) -> None:
    import torch.distributed.fsdp._runtime_utils as runtime_utils

    from recoverrun.worker.strategies.fsdp1 import Fsdp1

    fsdp1 = Fsdp1(parts.driver)
    module = wrapped.FullyShardedDataParallel
    replace(module, "__init__", fsdp1.init)
    replace(module, "forward", fsdp1.forward)
    replace(module, "no_sync", fsdp1.no_sync)
    replace(runtime_utils, "_reduce_grad", fsdp1.reduce_grad)


def _checkpoints(checkpoints: "Checkpoints", module: ModuleType) -> None:
    for name in ("_save_state_dict", "_load_state_dict"):
        if name in vars(module):
            replace(module, name, checkpoints.whole)


def _places_in_checkpoints(utils: ModuleType) -> None:
    from recoverrun.worker.patches.distributed_checkpoint import among_survivors

    original = vars(utils).get("_DistWrapper")
    if original is not None:  # a class, which needs none of what a function takes over
        stand_in = among_survivors(original)
        utils._DistWrapper = stand_in  # type: ignore[attr-defined]
        replace_copies(utils, "_DistWrapper", original, stand_in)


def _pipelines(pipelines: "Pipelines", schedules: ModuleType) -> None:
    for kind in (schedules.PipelineScheduleSingle, schedules.PipelineScheduleMulti):
        replace(kind, "step", pipelines.step)
    from torch.distributed.pipelining.stage import PipelineStage

    for kind, name, wrap in (
        (schedules._PipelineStageBase, "scale_grads", pipelines.scale_grads),
        (PipelineStage, "_forward_metadata_inference", pipelines.infers),
        (PipelineStage, "_post_metadata_inference_cleanup", pipelines.inferred),
    ):
        if hasattr(kind, name):  # not of every torch
            replace(kind, name, wrap)


def _gradients(parts: "Parts", manual: "ManualAllReduce", backwards: "BackwardHooks") -> None:
    import torch
    import torch.distributed.distributed_c10d as c10d

    from ft_collectives.communicators.script_modes import outermost

    def reading(original: Any) -> Any:
        """Tell that gradients are read by something else than an all-reduce of the script."""

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            manual.read()
            return original(*args, **kwargs)

        return wrapper

    replace(c10d, "all_reduce", outermost(manual.all_reduce))
    replace(torch.Tensor, "backward", backwards.around)
    replace(torch.autograd, "backward", backwards.around)
    hook = "register_post_accumulate_grad_hook"
    replace(torch.Tensor, hook, outermost(backwards.hooking))
    _attached(torch)
    clip = sys.modules["torch.nn.utils.clip_grad"]
    for name in ("clip_grad_norm_", "clip_grad_value_", "get_total_norm", "clip_grads_with_norm_"):
        if name in vars(clip):
            replace(clip, name, reading)
    replace(torch.amp.GradScaler, "unscale_", reading)
    updates(parts, manual)
    parts.made.watch()


def _attached(torch: ModuleType) -> None:
    """Hooks and attributes of torch's own objects (`attached_state`)."""
    replace(torch.Tensor, "register_hook", attached_state.hooking)
    replace(torch.nn.Module, "__setattr__", attached_state.writing)
    for when in ("forward", "forward_pre", "full_backward", "full_backward_pre"):
        replace(torch.nn.Module, f"register_{when}_hook", attached_state.hooking)


def _data(parts: "Parts") -> None:
    import torch
    from torch.utils.data import DataLoader

    from recoverrun.worker.rng import private_draws

    def iterating(original: Any) -> Any:
        def wrapper(loader: Any) -> Iterator[Any]:
            return parts.sources.iterate(loader, original)

        return wrapper

    def seeding(original: Any) -> Any:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            private_draws.seeding(parts.worker.runtime)
            return original(*args, **kwargs)

        return wrapper

    replace(DataLoader, "__iter__", iterating)
    when_imported(
        "torchdata.stateful_dataloader.stateful_dataloader",
        lambda module: replace(module.StatefulDataLoader, "__iter__", iterating),
    )
    replace(torch.random, "manual_seed", seeding)
    original = itertools.cycle
    setattr(itertools, "cycle", _cycle(parts, original))  # noqa: B010  # a type, to mypy
    for name in sorted(parts.worker.runtime.own_modules & sys.modules.keys()):
        module = sys.modules[name]  # `from itertools import cycle` may stand before torch's import
        for key in [key for key, value in vars(module).items() if value is original]:
            setattr(module, key, itertools.cycle)


def _cycle(parts: "Parts", original: Any) -> Any:
    """A class like `itertools.cycle`, whose instances may be a `CycleSource`."""

    class Kind(type):
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, original | CycleSource)

    class cycle(metaclass=Kind):
        __doc__ = original.__doc__

        def __new__(cls, iterable: Any, /) -> Any:
            return parts.sources.cycle(original, iterable)

    cycle.__module__, cycle.__qualname__ = "itertools", "cycle"
    return cycle


def _store(parts: "Parts") -> None:
    """env:// meets in the launcher's store; other ways of meeting are the script's own."""
    rendezvous = sys.modules["torch.distributed.rendezvous"]  # the name is a function, too

    def env_handler(
        url: str, timeout: timedelta = timedelta(minutes=30), **kwargs: Any
    ) -> Iterator[tuple[Any, int, int]]:
        store = parts.prologue.store(parts.worker.store(0))
        store.set_timeout(timeout)
        yield store, parts.worker.env.rank, parts.worker.env.world_size

    rendezvous._rendezvous_handlers["env"] = env_handler


def _writes_on_rank_0(caller: FrameType) -> bool:
    """True of code that gives whole state dicts to rank 0 alone, which writes them."""
    return caller.f_globals.get("__name__") in (
        "torch.distributed._state_dict_utils",
        "transformers.distributed.utils",
    )


def _ranks(parts: "Parts", c10d: ModuleType) -> None:
    from ft_collectives.communicators.script_modes import outermost
    from ft_collectives.process_group.elastic import as_one
    from recoverrun.worker.rank0 import broadcasts, failover, gathers, scatters

    def get_rank(original: Any) -> Any:
        def wrapper(group: Any = None) -> int:
            acting = parts.worker.runtime.speaker
            world = group is None or group is c10d.GroupMember.WORLD
            if _writes_on_rank_0(sys._getframe(1)) and failover.is_deputy(parts.worker):
                return 0
            if acting is None or not world or broadcasts.is_torch_itself(sys._getframe(1)):
                return int(original(group))
            return acting

        return wrapper

    replace(c10d, "get_rank", get_rank)
    rooted = broadcasts.Broadcasts(parts.worker)
    replace(c10d, "broadcast_object_list", parts.prologue.objects)
    replace(c10d, "broadcast", outermost(rooted.broadcast))
    replace(c10d, "broadcast_object_list", rooted.objects)
    dealing = scatters.Scatters(parts.worker, rooted)
    replace(c10d, "scatter", outermost(dealing.tensors))
    replace(c10d, "scatter_object_list", dealing.objects)
    collecting = gathers.Gathers(parts.worker)
    replace(c10d, "gather", outermost(collecting.tensors))
    replace(c10d, "gather_object", collecting.objects)
    for name in ("all_gather_object", "gather_object"):
        replace(c10d, name, as_one)
