"""DDP's forward, in which DDP prepares for a backward that it may have no part in.

Re-executed microbatches run as under `no_sync`, and so do all whose gradients are reduced without
DDP. `replicate` of `torch.distributed._composable` calls what comes before and after a forward by
itself, and never `DDP.forward`.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.nn.parallel import DistributedDataParallel

from recoverrun.hooks.session import Session
from recoverrun.hooks.strategies.ddp_buckets import Resting


class Owner(Protocol):
    """Who says what a module's forward is to be."""

    def serves(self, module: DistributedDataParallel) -> bool:
        """Is this the module, and are its gradients ours to reduce?"""

    def reduces(self, module: DistributedDataParallel) -> bool:
        """Whether DDP has a part in the reduction of the gradients of a forward that begins."""


class Forwards:
    """Forwards of the one module that is served."""

    def __init__(self, session: Session, ddp: Owner) -> None:
        self._session = session
        self._ddp = ddp
        self.synced = True  # the script has not said `no_sync`
        self._stained = False  # re-executed microbatches left traces in DDP's books
        self._still = False  # DDP has no part in the reduction of the present forward's gradients
        self._called = False  # by the script, not by what `replicate` makes of a module

    def forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`DDP.forward`; a re-executed microbatch runs as under `no_sync`."""

        def wrapper(module: DistributedDataParallel, /, *args: Any, **kwargs: Any) -> Any:
            if not self._learns(module):
                return original(module, *args, **kwargs)
            self._begin(module)
            self._called = True
            try:
                return self._held(original, module, *args, ends=True, **kwargs)
            finally:
                self._called = False

        return wrapper

    def pre_forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`DDP._pre_forward`: there `replicate` begins, which has a forward of its own."""

        def wrapper(module: DistributedDataParallel, /, *args: Any, **kwargs: Any) -> Any:
            if self._called or not self._learns(module):
                return original(module, *args, **kwargs)
            self._begin(module)
            return self._held(original, module, *args, ends=False, **kwargs)

        return wrapper

    def post_forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`DDP._post_forward`: there it ends."""

        def wrapper(module: DistributedDataParallel, output: Any) -> Any:
            if self._called or not self._learns(module):
                return original(module, output)
            return self._held(original, module, output, ends=True)

        return wrapper

    def sync_buffers(self, original: Callable[..., None]) -> Callable[..., None]:
        """Buffers are broadcast in the script's own microbatches only."""

        def wrapper(module: DistributedDataParallel) -> None:
            if not (self._ddp.serves(module) and self._session.acting):
                original(module)

        return wrapper

    def _learns(self, module: DistributedDataParallel) -> bool:
        # Not `module.training`: Lightning evaluates, and leaves the wrapper in that mode.
        return self._ddp.serves(module) and torch.is_grad_enabled()

    def _begin(self, module: DistributedDataParallel) -> None:
        """A microbatch's forward, ours or another rank's."""
        session = self._session
        session.forward_begins()
        self.synced = module.require_backward_grad_sync
        if session.acting:
            self._stained = self._still = True
            return
        if self._stained:
            self._stained = False
            Resting.forget(module)
        self._still = not self._ddp.reduces(module)

    def _held(
        self,
        call: Callable[..., Any],
        module: DistributedDataParallel,
        /,
        *args: Any,
        ends: bool,
        **kwargs: Any,
    ) -> Any:
        """`call`, as under `no_sync` if DDP is to keep still; a forward `ends` with it or not."""
        if not self._still:
            return call(module, *args, **kwargs)
        acting = self._session.acting
        own = vars(module)  # what a module does when it is given an attribute takes its time
        copied, reducer = own["require_forward_param_sync"], own["reducer"]
        own["require_backward_grad_sync"] = False
        if acting:
            own["reducer"] = Resting(reducer)
        try:
            return call(module, *args, **kwargs)
        finally:
            own["reducer"] = reducer
            own["require_backward_grad_sync"] = self.synced
            own["require_forward_param_sync"] = self.synced if ends and not acting else copied
