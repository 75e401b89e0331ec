"""Gradients that the script all-reduces by hand, one parameter after the other.

    for param in model.parameters():
        dist.all_reduce(param.grad)
        param.grad /= dist.get_world_size()

The first optimizer step is watched, and runs as it is: which gradients are reduced, once each, over
all ranks, untouched since the backward? From the next step on the first such `all_reduce` is the
commit point. Then every gradient is its sum over all replicas, and the script's own calls find
nothing left to do. What does not fit is refused with a sentence, and runs as under torchrun.
"""

import functools
import gc
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

from ft_collectives.reduce import Bucket
from recoverrun.hooks.session import Session
from recoverrun.hooks.strategies import plain
from rendezvous.layout import Layout


class ByHand:
    """Serves the parameters of the script's one optimizer."""

    name = "by-hand"
    lender = None

    def __init__(self, session: Session) -> None:
        self._session = session
        self._optimizers: list[Any] = []
        self._params: list[torch.Tensor] = []  # served
        self._modules: list[torch.nn.Module] = []
        self._sums: dict[int, float] = {}  # of the gradients, by parameter, after a backward
        self._reduced: dict[int, torch.Tensor] = {}  # parameters, since the last optimizer step
        self._averages = False
        self._why = ""  # it cannot be served
        self._places: dict[int, torch.Tensor] | None = None  # parameters, by their gradient's place
        self._delivered: set[int] = set()  # parameters whose gradient is the sum, still to be asked

    # --------------------------------------------------------------------------- hooks

    def add_param_group(self, original: Callable[..., None]) -> Callable[..., None]:
        """`Optimizer.add_param_group`, through which all parameters come."""

        def wrapper(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            if not any(known is optimizer for known in self._optimizers):
                self._optimizers.append(optimizer)

        return wrapper

    def all_reduce(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`dist.all_reduce` that knows the gradients."""

        def wrapper(
            tensor: torch.Tensor,
            op: Any = dist.ReduceOp.SUM,
            group: Any = None,
            async_op: Any = False,
        ) -> Any:
            param = self._param_of(tensor)
            if param is None:
                return original(tensor, op, group, async_op)
            if not self._serves():
                self._watch(param, op, group)
                return original(tensor, op, group, async_op)
            self._session.settle()
            if id(param) not in self._delivered:
                return original(tensor, op, group, async_op)
            self._delivered.remove(id(param))
            if self._averages:
                tensor.div_(dist.get_world_size())  # INV-8: of the original world
            return _done(tensor) if async_op else None

        return wrapper

    def backward_done(self) -> None:
        """Gradients have changed."""
        self._places = None
        if not self._may_serve() or not self._optimizers:
            return
        if self._reduced:
            self._why = "gradients are reduced more than once in an optimizer step"
        self._sums = {id(p): float(p.grad.sum()) for p in self._all() if p.grad is not None}

    def read(self) -> None:
        """Something but an all-reduce reads gradients: a clipping, a scaler."""
        if self._serves() and self._session.dirty and not self._session.acting:
            self._give_up("they are clipped or scaled before they are reduced")
        if self._may_serve() and self._sums and not self._reduced:
            self._why = "gradients are clipped or scaled before they are reduced"

    def stepping(self) -> None:
        """The optimizer steps: what came before it is all that there is of this step."""
        if self._serves():
            if self._session.dirty and not self._session.acting:
                self._give_up("an optimizer steps with gradients that were not reduced")
            if self._delivered:
                raise RuntimeError(
                    "recoverrun: an optimizer steps before all gradients were reduced, unlike in "
                    "the first step; run it with RECOVERRUN_PROTECT=0"
                )
            return
        if self._may_serve() and self._reduced:
            self._conclude()
        self._reduced, self._sums, self._places = {}, {}, None

    def _give_up(self, why: str) -> None:
        """The script does what it did not do in its first step: from here on it runs by itself."""
        self._session.refuse(f"the script reduces its gradients by hand, but {why}")
        self._session.runtime.active = False

    # --------------------------------------------------------------------------- the first step

    def _serves(self) -> bool:
        return self._session.machine is not None and self._session.strategy is self

    def _may_serve(self) -> bool:
        session = self._session
        undecided = session.strategy is None and not session.refusal
        return undecided and dist.is_initialized() and dist.get_world_size() > 1

    def _all(self) -> list[Any]:
        return [
            p for one in self._optimizers for group in one.param_groups for p in group["params"]
        ]

    def _param_of(self, tensor: Any) -> torch.Tensor | None:
        """The parameter whose whole gradient lies where `tensor` lies."""
        if not (self._serves() or self._may_serve()) or type(tensor) is not torch.Tensor:
            return None
        if self._places is None:
            self._places = {p.grad.data_ptr(): p for p in self._all() if p.grad is not None}
        param = self._places.get(tensor.data_ptr())
        return param if param is not None and param.numel() == tensor.numel() > 0 else None

    def _watch(self, param: torch.Tensor, op: Any, group: Any) -> None:
        assert param.grad is not None, "found by its gradient"
        if id(param) in self._reduced:
            self._why = "gradients are reduced more than once in an optimizer step"
        elif group not in (None, dist.group.WORLD):
            self._why = "gradients are reduced over a part of the world"
        elif op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            self._why = f"gradients are reduced by {op}"
        elif self._reduced and self._averages != (op == dist.ReduceOp.AVG):
            self._why = "some gradients are averaged, and some are summed"
        elif float(param.grad.sum()) != self._sums.get(id(param)):
            self._why = "gradients are changed before they are reduced"
        self._averages = op == dist.ReduceOp.AVG
        self._reduced[id(param)] = param

    def _conclude(self) -> None:
        """All of a step's reductions were seen: serve the next one?"""
        session = self._session
        params = self._all()
        if len(self._optimizers) > 1:
            self._why = "several optimizers take turns"
        elif any(p.grad is not None and id(p) not in self._reduced for p in params):
            self._why = "some gradients are not reduced"
        elif any(p.device.type != "cpu" for p in params):
            self._why = "an accelerator is not served yet, only the CPU"
        if self._why:
            session.refuse(f"the script reduces its gradients by hand, but {self._why}")
            return
        self._params = list(self._reduced.values())
        # By its type: what looks like an object of another class may do so with a warning.
        self._modules = [one for one in gc.get_objects() if issubclass(type(one), torch.nn.Module)]
        if session.protect(self, Layout(tuple((r,) for r in range(dist.get_world_size())))):
            self._register()
            if session.faults.armed:
                root = max(self._modules, key=lambda one: len(list(one.parameters())))
                root.register_forward_pre_hook(lambda *_: session.forward_begins())

    # --------------------------------------------------------------------------- reduction

    def _register(self) -> None:
        reducer = self._session.reducer
        assert reducer is not None, "protected"
        for dtype in dict.fromkeys(param.dtype for param in self._params):
            params = [param for param in self._params if param.dtype == dtype]
            reducer.register(
                Bucket(
                    key=str(dtype),
                    size=sum(param.numel() for param in params),
                    dtype=dtype,
                    fill=functools.partial(_fill, params),
                    deliver=functools.partial(self._deliver, params),
                )
            )

    def _deliver(self, params: list[torch.Tensor], total: torch.Tensor) -> None:
        for param, part in zip(params, _parts(params, total), strict=True):
            if param.grad is not None:
                param.grad.copy_(part)
                self._delivered.add(id(param))

    # --------------------------------------------------------------------------- Strategy

    def accumulators(self) -> list[torch.Tensor]:
        return plain.accumulators(self._params)

    def set_aside(self) -> object:
        return plain.set_aside(self._params)

    def put_back(self, kept: object) -> None:
        plain.put_back(self._params, kept)

    def drop(self, params: Iterable[torch.Tensor]) -> bool:
        return {id(param) for param in self._params} <= {id(param) for param in params}

    def buffers(self) -> list[torch.Tensor]:
        found = {id(one): one for module in self._modules for one in module.buffers()}
        return list(found.values())

    def parameters(self) -> dict[str, torch.Tensor]:
        return {str(number): param.detach() for number, param in enumerate(self._params)}


def _parts(params: list[torch.Tensor], flat: torch.Tensor) -> list[torch.Tensor]:
    parts = flat.split([param.numel() for param in params])
    return [part.view_as(param) for part, param in zip(parts, params, strict=True)]


def _fill(params: list[torch.Tensor], staging: torch.Tensor) -> None:
    for param, part in zip(params, _parts(params, staging), strict=True):
        if param.grad is None:
            part.zero_()
        else:
            part.copy_(param.grad)


def _done(tensor: torch.Tensor) -> Any:
    """The work of an asynchronous call that has nothing left to do."""
    from ft_collectives.elastic import completed

    return completed([tensor])
