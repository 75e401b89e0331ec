"""The gradients of transactions earlier in an iteration, for code that goes on from there.

    loss(model(x)).backward()                        # one transaction
    for p in model.parameters():
        p.add_(0.05 * p.grad / norm)                 # sharpness-aware minimization
    loss(model(x)).backward()                        # another one

To execute the second microbatch again, a survivor passes over the first backward and runs the code
behind it, which reads the gradients of that backward. All ranks have the same ones, so each rank
keeps them until the iteration ends, unless the iteration is known to have one transaction alone.

That code also changes parameters which the script has changed already. All microbatches of a
transaction see the same parameters, so they are put back before each forward pass (`Weights`).
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from recoverrun.worker.tracking.microbatches import LEVELS, Microbatch, MicrobatchPlace, Top

MOST = 4
"""Of so many transactions of an iteration gradients are kept; a whole epoch's are not."""

SETTLED = 8
"""After so many transactions it is known which loops' bodies are executed again."""

LACKED = "; it may have needed gradients of earlier steps of that iteration, which are not kept"

Gradients = list[tuple[Tensor, Tensor]]
"""Pairs of a parameter and its gradient."""


@dataclass(slots=True)
class EarlierTransactions:
    """Transactions of the present iteration that are over."""

    regions: Collection[str] = ()
    """Loops whose bodies are executed again, once that is settled."""
    lacked: str = ""
    """The end of an error's sentence if a backward was passed over whose gradients are not kept."""
    _left: list[tuple[Microbatch, Gradients]] = field(default_factory=list)
    """By the last microbatch of each."""
    _several: dict[str, bool] = field(default_factory=dict)
    """By loop: True if an iteration has several transactions, and few enough to be kept."""
    _ended: int = 0
    _given: dict[int, tuple[Tensor, Tensor | None, Tensor]] = field(default_factory=dict)
    """Parameters, what they had, and what they were given last of an earlier transaction."""

    def begins(self, under_way: Collection[Top | None]) -> None:
        """An iteration begins within the iterations `under_way`: forget gradients of all others."""
        if self._left:
            known = {id(top) for top in under_way}
            self._left = [
                (one, kept)
                for one, kept in self._left
                if any(
                    id(top) in known and self._several.get(top.loop.id) is not False
                    for top in self._tops(one)
                )
            ]

    def ended(
        self, microbatches: Sequence[Microbatch], optimizers: Iterable[torch.optim.Optimizer]
    ) -> None:
        """A transaction is over, and its gradients are still there: keep them if they may be read
        when a later microbatch of the iteration is executed again.
        """
        if not microbatches:
            return
        first, self._ended = not self._ended, self._ended + 1
        last = microbatches[-1]
        for place in self._places(microbatches[0]):
            if place.skip:
                self._several.setdefault(place.top.loop.id, True)
        for top in self._tops(last):
            if sum(top in self._tops(one) for one, _ in self._left) >= MOST:
                self._several[top.loop.id] = False
        self._left = [one for one in self._left if self._wanted(one[0])]
        if not first and not self._wanted(last):
            return
        # Of the first one nobody knows yet whether it is wanted: the device may lack the memory.
        where = torch.device("cpu") if first else None
        kept = [
            (param, param.grad.detach().to(where, copy=True))
            for param in trained(optimizers)
            if param.grad is not None
        ]
        self._left.append((last, kept))

    def _places(self, microbatch: Microbatch) -> Sequence[MicrobatchPlace]:
        """The iterations from whose top the microbatch may be executed again."""
        places = microbatch.places[:LEVELS]
        if self._ended <= SETTLED:
            return places
        return [place for place in places if place.top.loop.id in self.regions]

    def _tops(self, microbatch: Microbatch) -> list[Top]:
        return [place.top for place in self._places(microbatch)]

    def _wanted(self, microbatch: Microbatch) -> bool:
        """True if one of the microbatch's iterations is known to have several transactions, but not
        too many; as the second transaction ends, also if nothing is known yet.
        """
        known = [self._several.get(top.loop.id) for top in self._tops(microbatch)]
        return True in known or (self._ended == 2 and False not in known)

    def give(self, top: Top, passed: int) -> None:
        """Put back the gradients of backward `passed` of the iteration, which was passed over."""
        lacked = LACKED
        for microbatch, kept in self._left:
            if any(place.top is top and place.skip == passed for place in microbatch.places):
                lacked = "" if kept else LACKED  # a script may train without an optimizer
                for param, gradient in kept:
                    _, before, _ = self._given.get(id(param), (param, param.grad, gradient))
                    param.grad = gradient.to(param.device, copy=True)
                    self._given[id(param)] = param, before, param.grad
        self.lacked = self.lacked or lacked

    def take_back(self) -> None:
        """The execution is over: take back what it was given. Gradients of its own stay."""
        for param, before, given in self._given.values():
            if param.grad is given:
                param.grad = before
        self._given.clear()
        self.lacked = ""


def trained(optimizers: Iterable[torch.optim.Optimizer]) -> list[Tensor]:
    """All parameters of `optimizers`."""
    return [param for one in optimizers for group in one.param_groups for param in group["params"]]


class Weights:
    """The values that parameters have in this transaction, to undo what re-executed code writes."""

    def __init__(self, params: Iterable[Tensor]) -> None:
        # Code may change them in place, or give them other memory by way of `data`.
        self._kept = [(one, one.detach(), one.detach().clone()) for one in params]

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within this, parameters may be changed; afterwards they are what they were."""
        with self._uncounted():
            try:
                yield
            finally:
                self.restore()

    def restore(self) -> None:
        """Put the values back into the same memory, which graphs of earlier forward passes hold."""
        with torch.no_grad(), self._uncounted():
            for param, memory, value in self._kept:
                if _at(param) != _at(memory):
                    param.data = memory
                memory.copy_(value)

    @contextmanager
    def _uncounted(self) -> Iterator[None]:
        """Leave version counters alone: else a backward would refuse parameters written to here."""
        with ExitStack() as counters:
            preserve = vars(torch.autograd)["_unsafe_preserve_version_counter"]
            for param, _, _ in self._kept:  # older versions of torch take them one by one
                counters.enter_context(preserve(param))
            yield


@contextmanager
def held_weights(
    optimizers: Iterable[torch.optim.Optimizer], *, rewritten: bool
) -> Iterator[Weights | None]:
    """Afterwards parameters are what they were, if code is known to change them (`rewritten`)."""
    if not rewritten:
        yield None
        return
    weights = Weights(trained(optimizers))
    with weights.held():
        yield weights


def _at(tensor: Tensor) -> int:
    """The address of the memory of this rank's part."""
    local: Tensor = getattr(tensor, "_local_tensor", tensor)
    return local.data_ptr()
