"""The tensors that a process holds: what is trained, what is not, and what stays as it is."""

from typing import Any

import torch

from recoverrun.worker.arrival import sharded_tensors
from recoverrun.worker.arrival.sharded_tensors import local
from recoverrun.worker.context.made_objects import MadeObjects
from recoverrun.worker.context.object_graph import Holdings
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.step.strategy import Strategy
from recoverrun.worker.strategies.fsdp2_shards import named_parameters


def model(strategy: Strategy) -> dict[str, torch.Tensor]:
    """Local parameters and buffers of what is trained."""
    buffers = [one.detach() for root in strategy.roots() for one in root.buffers()]
    return {
        **{name: local(one) for name, one in strategy.parameters().items()},
        **{f"buffer {number}": one for number, one in enumerate(buffers)},
    }


def with_gradients(strategy: Strategy) -> list[list[Any]]:
    """For each root of the model: name of each parameter, and True if it gets a gradient, as a
    script may unfreeze others.
    """
    return [
        [[name, one.requires_grad] for name, one in root.named_parameters()]
        for root in strategy.roots()
    ]


def unfreeze(strategy: Strategy, told: list[list[Any]]) -> None:
    """Let the parameters of the model get gradients, or none, as `told` by `with_gradients`. With
    DDP beside tensor parallelism torch keeps some as plain attributes between forward passes: one
    that was told of need not be a parameter here.

    Raises NotReachable.
    """
    roots = strategy.roots()
    if len(roots) != len(told):
        raise NotReachable(f"this process trains {len(roots)} models, others {len(told)}")
    for root, named in zip(roots, told, strict=True):
        own = dict(root.named_parameters())
        for name, wanted in named:
            one = own.get(name)
            if one is None and not _has_tensor(root, name):
                raise NotReachable(f"{name}, a parameter of others' model, is not in this process")
            if one is not None and one.requires_grad != wanted and one.is_leaf:
                one.requires_grad_(wanted)


def _has_tensor(root: torch.nn.Module, name: str) -> bool:
    path, _, last = name.rpartition(".")
    try:
        return isinstance(getattr(root.get_submodule(path), last, None), torch.Tensor)
    except AttributeError:  # of `get_submodule`: there is no such module
        return False


def others(strategy: Strategy, made: MadeObjects, there: Holdings) -> dict[str, torch.Tensor]:
    """Parameters and buffers of modules that are not trained: averages of weights, say."""
    found: dict[str, torch.Tensor] = {}
    known = {id(one) for one in trained(made)}
    known |= {id(one) for root in strategy.roots() for one in root.parameters()}
    # FSDP1 shows parts of its flat parameters.
    held = {one.untyped_storage().data_ptr() for one in model(strategy).values() if one.numel()}
    for path, module in there.modules:
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if not path or tensor is None or id(tensor) in known:
                continue
            part = local(tensor)
            if part.numel() and part.untyped_storage().data_ptr() not in held:
                known.add(id(tensor))
                found[f"{path}.{name}"] = part
    return found


def path_of(name: str) -> str:
    """The path of the module that has the tensor of this name in `others`."""
    return name.rpartition(".")[0]


def outermost(name: str) -> str:
    """The path of the outermost module around it: modules hold others in `_modules`."""
    return path_of(name).partition("._modules")[0].removesuffix(".vars")


def trained(made: MadeObjects) -> list[torch.Tensor]:
    """All parameters of all optimizers, in the order in which these were made."""
    return [
        param
        for optimizer in made.of("optimizers")
        for group in optimizer.param_groups
        for param in group["params"]
    ]


def beside(strategy: Strategy, made: MadeObjects) -> dict[str, torch.Tensor]:
    """Trained tensors that are not of the model: wider master copies, weights of losses."""
    found: dict[str, torch.Tensor] = {}
    held = {one.untyped_storage().data_ptr() for one in model(strategy).values() if one.numel()}
    for number, one in enumerate({id(param): param for param in trained(made)}.values()):
        part = local(one)
        if part.numel() and part.untyped_storage().data_ptr() not in held:
            found[f"parameter {number}"] = part
    return found


def in_every_process(made: MadeObjects, strategy: Strategy | None = None) -> list[torch.Tensor]:
    """The tensors that each process has made by itself, in the same order, and that the script may
    hold as well, as groups of an optimizer do: a copy of one would be trained by nobody.
    """
    found = {id(one): one for one in trained(made)}
    if strategy is not None:
        for root in strategy.roots():
            params = [param for _, param in named_parameters(root)]
            found |= {id(one): one for one in [*params, *root.buffers()]}
    return list(found.values())


def gradients(made: MadeObjects) -> list[torch.Tensor | None]:
    """The gradients of the trained parameters, where the script goes on adding to them."""
    if made.stepped:
        return []
    return [None if one.grad is None else local(one.grad) for one in trained(made)]


def frozen(made: MadeObjects) -> list[torch.Tensor]:
    """The tensors that no code changes before the step is committed."""
    found = [local(one) for one in trained(made)]
    for optimizer in made.of("optimizers"):
        for state in optimizer.state.values():
            found += [local(one) for one in state.values() if isinstance(one, torch.Tensor)]
    return found


def like(param: Any, part: torch.Tensor) -> Any:
    """`part` as the local part of a DTensor that is laid out as `param` is."""
    return sharded_tensors.like(param, part, param.shape, param.stride())
