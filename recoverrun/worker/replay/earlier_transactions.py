"""The gradients of transactions earlier in an iteration, for code that goes on from there.

    loss(model(x)).backward()                        # one transaction
    for p in model.parameters():
        p.add_(0.05 * p.grad / norm)                 # sharpness-aware minimization
    loss(model(x)).backward()                        # another one

Who executes the second microbatch again passes over the first backward, which is over; its code
goes on to read the gradients that this one left. All ranks have the same, so they are kept until
the iteration ends, if it is known to have more than one transaction, or not known yet. And it
changes parameters that have been changed already: in a microbatch of a transaction they are, at
every forward pass, what they are now (`Weights`).
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from recoverrun.worker.tracking.microbatches import LEVELS, Microbatch, MicrobatchPlace, Top

MOST = 4
"""Transactions of an iteration that leave gradients here; a whole epoch's are not kept."""

SETTLED = 8
"""Transactions until it is known of which loop's body microbatches are executed again."""

LACKED = "; it may have needed gradients of earlier steps of that iteration, which are not kept"

Gradients = list[tuple[Tensor, Tensor]]
"""Parameters, and what their `grad` was."""


@dataclass(slots=True)
class EarlierTransactions:
    """Transactions of the present iteration that are over."""

    regions: Collection[str] = ()
    """Loops whose bodies are executed again, once that is settled."""
    lacked: str = ""
    """Words for the end of an error's sentence, if the code that is executed has passed over a
    backward of which no gradients are kept.
    """
    _left: list[tuple[Microbatch, Gradients]] = field(default_factory=list)
    """By the last microbatch of each."""
    _several: dict[str, bool] = field(default_factory=dict)
    """By loop: True if an iteration has several transactions, and few enough to be kept."""
    _ended: int = 0
    _given: dict[int, tuple[Tensor, Tensor | None, Tensor]] = field(default_factory=dict)
    """Parameters, what they had, and what they were given last of an earlier transaction."""

    def begins(self, under_way: Collection[Top | None]) -> None:
        """Another iteration, within these."""
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
        """A transaction is over; gradients are what it left."""
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
        """The places of which iteration it may be executed again."""
        places = microbatch.places[:LEVELS]
        if self._ended <= SETTLED:
            return places
        return [place for place in places if place.top.loop.id in self.regions]

    def _tops(self, microbatch: Microbatch) -> list[Top]:
        return [place.top for place in self._places(microbatch)]

    def _wanted(self, microbatch: Microbatch) -> bool:
        """True if one of its iterations is known to have further transactions, and not too many;
        and if nothing is known yet, as after the first transaction.
        """
        known = [self._several.get(top.loop.id) for top in self._tops(microbatch)]
        return True in known or (self._ended == 2 and False not in known)

    def give(self, top: Top, passed: int) -> None:
        """The backward that is number `passed` of the iteration has been passed over."""
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
        """The execution is over that was given any; what its backward has left stays."""
        for param, before, given in self._given.values():
            if param.grad is given:
                param.grad = before
        self._given.clear()
        self.lacked = ""


def trained(optimizers: Iterable[torch.optim.Optimizer]) -> list[Tensor]:
    """All parameters of `optimizers`."""
    return [param for one in optimizers for group in one.param_groups for param in group["params"]]


class Weights:
    """Parameters that re-executed code may change, and what they are in this transaction."""

    def __init__(self, params: Iterable[Tensor]) -> None:
        # Code may change them in place, or give them other memory by way of `data`.
        self._kept = [(one, one.detach(), one.detach().clone()) for one in params]

    @contextmanager
    def held(self) -> Iterator[None]:
        """Afterwards they are what they were."""
        with self._uncounted():
            try:
                yield
            finally:
                self.restore()

    def restore(self) -> None:
        """They are what they were, also to graphs: those of earlier forward passes hold them."""
        with torch.no_grad(), self._uncounted():
            for param, memory, value in self._kept:
                if _at(param) != _at(memory):
                    param.data = memory
                memory.copy_(value)

    @contextmanager
    def _uncounted(self) -> Iterator[None]:
        """Write without counting: a backward does not complain of these changes."""
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
    """The address of this rank's part."""
    local: Tensor = getattr(tensor, "_local_tensor", tensor)
    return local.data_ptr()
