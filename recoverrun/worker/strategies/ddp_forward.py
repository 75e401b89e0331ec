"""DDP's forward, in which DDP prepares for a backward that it may have no part in.

Re-executed microbatches run as under `no_sync`, and so do all whose gradients are reduced without
DDP. `replicate` of `torch.distributed._composable` calls what comes before and after a forward by
itself, and never `DDP.forward`.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from torch.nn.parallel import DistributedDataParallel

from recoverrun.worker.step.interfaces import StrategyHost
from recoverrun.worker.step.strategy import Switched
from recoverrun.worker.strategies.ddp_buckets import Resting
from recoverrun.worker.strategies.leading_buffers import LeadingBuffers

SYNC = "require_backward_grad_sync"
"""DDP's own switch; False within `no_sync`."""


class Wrapped(Protocol):
    """One DDP module: its forward's side."""

    stained: bool  # re-executed microbatches left traces in DDP's books
    still: bool  # DDP has no part in the reduction of the present forward's gradients
    asked_acting: bool | None  # see `Strategy.asked_to_reduce`
    buffers: LeadingBuffers

    def arm(self, synced: bool) -> None:
        """A forward of the script's own begins; in its backward torch would reduce if `synced`."""


class Forwards:
    """Forwards of the modules that are served; `find` tells which those are."""

    def __init__(
        self, host: StrategyHost, find: Callable[[DistributedDataParallel], Wrapped | None]
    ) -> None:
        self._host = host
        self._find = find
        self._called = False  # by the script, not by what `replicate` makes of a module

    def forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`DDP.forward`; a re-executed microbatch runs as under `no_sync`."""

        def wrapper(module: DistributedDataParallel, /, *args: Any, **kwargs: Any) -> Any:
            wrapped = self._learning(module)
            if wrapped is None:
                return original(module, *args, **kwargs)
            self._begin(wrapped, module, args, kwargs)
            self._called = True
            try:
                return self._held(original, wrapped, module, *args, ends=True, **kwargs)
            finally:
                self._called = False

        return wrapper

    def pre_forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`DDP._pre_forward`: there `replicate` begins, which has a forward of its own."""

        def wrapper(module: DistributedDataParallel, /, *args: Any, **kwargs: Any) -> Any:
            wrapped = None if self._called else self._learning(module)
            if wrapped is None:
                return original(module, *args, **kwargs)
            self._begin(wrapped, module, args, kwargs)
            return self._held(original, wrapped, module, *args, ends=False, **kwargs)

        return wrapper

    def post_forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`DDP._post_forward`: there it ends."""

        def wrapper(module: DistributedDataParallel, output: Any) -> Any:
            wrapped = None if self._called else self._learning(module)
            if wrapped is None:
                return original(module, output)
            return self._held(original, wrapped, module, output, ends=True)

        return wrapper

    def sync_buffers(self, original: Callable[..., None]) -> Callable[..., None]:
        """Buffers are broadcast in the script's own microbatches only."""
        worker = self._host.worker

        def wrapper(module: DistributedDataParallel) -> None:
            wrapped = self._find(module)
            if wrapped is None:
                original(module)
            elif worker.acting:
                wrapped.buffers.enter(module)
            else:
                with wrapped.buffers.led(module):
                    original(module)

        return wrapper

    def _learning(self, module: DistributedDataParallel) -> Wrapped | None:
        # Not `module.training`: Lightning evaluates, and leaves the wrapper in that mode.
        return self._find(module) if torch.is_grad_enabled() else None

    def _begin(
        self, wrapped: Wrapped, module: DistributedDataParallel, args: Any, kwargs: Any
    ) -> None:
        """A microbatch's forward, ours or another rank's."""
        host = self._host
        host.forward_begins((*args, kwargs))
        reduces = bool(module.require_backward_grad_sync)
        if host.worker.acting:
            asked = bool(wrapped.asked_acting) or reduces
            wrapped.asked_acting = None if host.in_schedule else asked
            wrapped.stained = wrapped.still = True
            wrapped.buffers.begin(module)
            return
        if wrapped.stained:
            wrapped.stained = False
            Resting.forget(module)
        wrapped.arm(reduces)

    def _held(
        self,
        call: Callable[..., Any],
        wrapped: Wrapped,
        module: DistributedDataParallel,
        /,
        *args: Any,
        ends: bool,
        **kwargs: Any,
    ) -> Any:
        """`call`, as under `no_sync` if DDP is to keep still; a forward `ends` with it or not."""
        if not wrapped.still:
            return call(module, *args, **kwargs)
        acting = self._host.worker.acting
        own = vars(module)  # what a module does when it is given an attribute takes its time
        copied, synced = own["require_forward_param_sync"], own["require_backward_grad_sync"]
        reducer = own["reducer"]
        own["require_backward_grad_sync"] = False
        if acting:
            own["reducer"] = Resting(reducer)
        try:
            return call(module, *args, **kwargs)
        finally:
            own["reducer"] = reducer
            own["require_backward_grad_sync"] = synced
            own["require_forward_param_sync"] = synced if ends and not acting else copied


def switches_of(roots: Callable[[], Iterable[torch.nn.Module]]) -> Switched:
    """See `Strategy.switches`: which modules are outside of `no_sync`."""
    return partial(_switched, [(vars(module), vars(module)[SYNC]) for module in roots()])


@contextmanager
def _switched(held: list[tuple[dict[str, Any], bool]]) -> Iterator[None]:
    kept = [(own, own[SYNC]) for own, _ in held]
    _set(held)
    try:
        yield
    finally:
        _set(kept)


def _set(held: list[tuple[dict[str, Any], bool]]) -> None:
    for own, synced in held:
        own[SYNC] = synced
