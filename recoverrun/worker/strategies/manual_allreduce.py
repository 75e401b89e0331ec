"""Gradients that the script all-reduces by hand, one by one or in flat tensors.

    for param in model.parameters():
        dist.all_reduce(param.grad)
        param.grad /= dist.get_world_size()

The first optimizer step is watched, and runs as it is (`manual_first_step`): what is reduced, over
all ranks, must be the gradients as the backward left them, once each, maybe multiplied by one
factor. From the next step on the first such `all_reduce` ends the transaction. Then each of the
script's own calls is answered with the sums over all replicas: what it had put into its tensor
before is overwritten. What does not fit is refused with
a sentence, and runs as under torchrun.

Later steps must be as the first one was, and are compared with it (`manual_totals`). A rank that
finds otherwise there gives its part as the script changed it, which is right as long
as nobody is lost, and says that nothing is protected any more; after that it can only end the run.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ft_collectives.step.reducer import Reducer
from recoverrun.worker.context.evidence import crc_of_gradient
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.step.interfaces import StrategyHost
from recoverrun.worker.step.strategy import DividesOnce, nothing_switched
from recoverrun.worker.strategies import grad_accumulators
from recoverrun.worker.strategies.manual_first_step import EARLY, TWICE, ObservedStep
from recoverrun.worker.strategies.manual_matching import Factor, Reduction
from recoverrun.worker.strategies.manual_modules import every_module, holders_of
from recoverrun.worker.strategies.manual_totals import LATER, UNLIKE, Sums
from rendezvous.protocol.layout import Layout

OTHERS = "this process has given {here} parameters to optimizers, others {there}"


class ManualAllReduce(DividesOnce):
    """Serves the parameters of the script's one optimizer."""

    name = "by-hand"
    early, synced, alone = False, False, True
    switches = staticmethod(nothing_switched)
    unlike = (
        "the script reduces its gradients by hand, but before that it multiplies them by other "
        "factors on other ranks"
    )

    def __init__(self, host: StrategyHost) -> None:
        self._host = host
        self._optimizers: list[Any] = []
        self._watch: ObservedStep | None = None
        self._sums = Sums([], [], factor=Factor(), world_size=1)
        self._reducer: Reducer | None = None
        self._open = False  # a backward is over, and its gradients are not reduced yet
        self._modules: list[torch.nn.Module] = []
        self._places: dict[int, torch.Tensor] | None = None  # parameters, by their gradient's place
        host.watched_by(self)

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
            if self._watch is not None and self._may_serve() and _is_plain(tensor):
                self._watch.saw(tensor, self._param_of(tensor), op, group)
            reduction = self._asked(tensor, op)
            if reduction is None:
                return original(tensor, op, group, async_op)
            committing = self._open
            if committing:
                self._commit(reduction, tensor)
            if not self._serves():
                return original(tensor, op, group, async_op)
            self._sums.answer(reduction, tensor, committing)
            return _done(tensor) if async_op else None

        return wrapper

    def backward_done(self) -> None:
        """Gradients have changed."""
        self._places = None
        if self._protects:
            if not self._host.worker.acting:
                self._open = True
                self._sums.begin()
        elif self._may_serve() and self._optimizers:
            plain_ones = [param for param in self._all() if _is_plain(param.grad)]
            self._watch = ObservedStep(plain_ones, dist.get_world_size(), self._watch)

    def read(self) -> None:
        """Something but an all-reduce reads gradients: a clipping, a scaler."""
        if self._protects and self._open and not self._host.worker.acting:
            self._give_up("they are clipped or scaled before they are reduced")
        if self._watch is not None and not self._watch.reductions:
            self._watch.blame(EARLY)

    def stepping(self) -> None:
        """The optimizer steps: what came before it is all that there is of this step."""
        if self._host.worker.acting:
            return
        if self._protects:
            if self._open:
                self._give_up("an optimizer steps with gradients that were not reduced")
            elif self._sums.unasked:
                raise RuntimeError(
                    LATER.format("an optimizer steps before all gradients were reduced")
                )
        watch, self._watch, self._places = self._watch, None, None
        if watch is not None and self._may_serve() and (watch.reductions or watch.why == TWICE):
            self._conclude(watch)
        elif self._host.worker.strategy is None:
            self._host.worker.runtime.begin_step()

    def _give_up(self, why: str) -> None:
        """The script does what it did not do in its first step: from here on it runs by itself."""
        self._host.worker.refuse(f"the script reduces its gradients by hand, but {why}")
        self._host.worker.runtime.mode.retire()

    # --------------------------------------------------------------------------- the first step

    def _serves(self) -> bool:
        return self._host.worker.strategy is self and self._host.worker.runtime.active

    @property
    def _protects(self) -> bool:
        return self._serves() and self._host.worker.machine is not None

    def _may_serve(self) -> bool:
        host = self._host
        undecided = host.worker.strategy is None and not host.worker.refusal
        return undecided and dist.is_initialized() and dist.get_world_size() > 1

    def _all(self) -> list[Any]:
        return [
            p for one in self._optimizers for group in one.param_groups for p in group["params"]
        ]

    def _param_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The parameter whose whole gradient lies where `tensor` lies."""
        if self._places is None:
            self._places = {p.grad.data_ptr(): p for p in self._all() if _is_plain(p.grad)}
        param = self._places.get(tensor.data_ptr())
        return param if param is not None and param.numel() == tensor.numel() > 0 else None

    def _conclude(self, watch: ObservedStep) -> None:
        """All of a step's reductions were seen: serve the next one, or refuse."""
        host = self._host
        params = self._all()
        if len(self._optimizers) > 1:
            watch.blame("several optimizers take turns")
        if why := watch.conclude(params):
            host.worker.refuse(f"the script reduces its gradients by hand, but {why}")
            return
        reduced = {id(param) for one in watch.reductions for param in one.params}
        self._sums = Sums(
            [param for param in params if id(param) in reduced],
            watch.reductions,
            factor=watch.factor,
            world_size=dist.get_world_size(),
        )
        layout = Layout(tuple((r,) for r in range(dist.get_world_size())))
        if host.serve(self, layout, None):
            if len(host.worker.runtime.microbatches) == 1:
                host.worker.runtime.microbatches[0].gradient = watch.digest()
            self._await_forward()
            host.begin()

    def _await_forward(self) -> None:
        """Find the modules, and hear of forwards of those that hold what is trained."""

        def begins(_: Any, args: Any, kwargs: Any) -> None:
            if torch.is_grad_enabled() and self._serves():
                self._host.forward_begins((*args, kwargs))

        self._modules = every_module()
        for module in self.roots():
            module.register_forward_pre_hook(begins, with_kwargs=True)

    # --------------------------------------------------------------------------- reduction

    def _asked(self, tensor: torch.Tensor, op: Any) -> Reduction | None:
        if self._host.worker.acting or not self._protects or not _is_plain(tensor):
            return None
        found = self._sums.asked(tensor, self._param_of(tensor))
        averages = op == dist.ReduceOp.AVG
        fits = found is not None and found.averages == averages
        return found if fits and (averages or op == dist.ReduceOp.SUM) else None

    def _commit(self, reduction: Reduction, tensor: torch.Tensor) -> None:
        """The first reduction of a step: make all gradients sums over all replicas."""
        host, sums, reducer = self._host, self._sums, self._reducer
        assert reducer is not None, "protected"
        if sums.uneven(reduction, tensor, self._all()):
            host.worker.refuse(f"the script reduces its gradients by hand, but {UNLIKE}")
            sums.adopt(reduction, tensor)
        sums.register(reducer)
        reducer.include(reducer.buckets)
        self._open = False
        host.settle()

    # --------------------------------------------------------------------------- Strategy

    @property
    def terms(self) -> str:
        return self._sums.terms

    def protect(self) -> None:
        self._reducer = self._host.new_reducer()
        self._sums.register(self._reducer)

    def plan(self) -> list[Any] | str:
        """The reductions seen in the first step."""
        every = self._all()
        return [len(every), self._sums.told(every)]

    def adopt(self, plan: list[Any]) -> None:
        every, (count, told) = self._all(), plan
        if len(every) != count:
            raise NotReachable(OTHERS.format(here=len(every), there=count))
        self._sums = Sums.as_told(told, every, dist.get_world_size())
        self._await_forward()
        self.protect()

    def backward_begins(self) -> None:
        """`BackwardHooks` tells by itself."""

    def reducers(self) -> list[Reducer]:
        return [self._reducer] if self._reducer is not None else []

    def standing(self) -> list[tuple[int, int]]:
        return grad_accumulators.standing(self._sums.params) if self._open else []

    def empty(self) -> bool:
        return grad_accumulators.empty(self._sums.params)

    def digest(self) -> int:
        own = 0
        for place, param in enumerate(self._sums.params):
            own ^= crc_of_gradient(place, param.grad, param)
        return own

    def whole(self) -> list[torch.Tensor]:
        return list(self._sums.params)

    def accumulators(self) -> list[torch.Tensor]:
        return grad_accumulators.accumulators(self._sums.params)

    def set_aside(self) -> object:
        scaled, self._sums.scaled = self._sums.scaled, []
        return scaled, grad_accumulators.set_aside(self._all())

    def clear(self) -> None:
        grad_accumulators.clear(self._all())

    def put_back(self, kept: object) -> None:
        assert isinstance(kept, tuple), "what set_aside returned"
        self._sums.scaled, gradients = kept
        grad_accumulators.put_back(self._all(), gradients)

    def buffers(self) -> list[torch.Tensor]:
        found = {id(one): one for module in self._modules for one in module.buffers()}
        return list(found.values())

    def roots(self) -> list[torch.nn.Module]:
        return holders_of(self._sums.params, self._modules)

    def parameters(self) -> dict[str, torch.Tensor]:
        return {str(number): param.detach() for number, param in enumerate(self._sums.params)}


def _is_plain(tensor: Any) -> bool:
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
        return False
    return tensor.is_floating_point()


def _done(tensor: torch.Tensor) -> Any:
    """The work of an asynchronous call that has nothing left to do."""
    from ft_collectives.process_group.results import completed

    return completed([tensor])
