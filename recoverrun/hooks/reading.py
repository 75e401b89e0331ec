"""Code that reads or scales gradients by itself, before anything that the hooks know reads them.

    for param in model.parameters():
        param.grad *= factor

Until the commit point a gradient is this rank's own. So in the first step `Tensor.grad` is watched:
if all ranks read gradients after the step's last backward, from the next step on such a read is the
commit point. The first step is set right afterwards: the hooks keep what was read, see by which
factor it was multiplied, and multiply the reduced gradients by it. What is no single factor, the
same on all ranks, cannot be set right, and is told. Both are needed only where the script shall not
see reduced gradients in its first step already (`preview`).
"""

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from recoverrun.hooks import slices
from recoverrun.hooks.preview import Preview

if TYPE_CHECKING:
    from recoverrun.hooks.session import Session

OTHERS = ("torch", "recoverrun", "ft_collectives")
"""Packages whose reads of gradients mean nothing: the hooks know what torch does with them."""

EVEN = 1e-4
"""How far, relative to their norm, gradients may be from a multiple of what they were."""

CHANGED = (
    "the script changes its gradients by itself, by more than one factor for all ranks, before "
    "anything reads them that is known to; its first update is made of what each rank did to its "
    "own gradients"
)

UNEVEN = (
    "the script reduces its gradients by hand, but before that it multiplies them by other factors "
    "on other ranks, or in other steps"
)


EACH = (
    "the script reads gradients after every backward, and changes them: which one is the last of a "
    "step nobody knows before the update"
)

SHORT = (
    "recoverrun: the script reads gradients after each backward, and changed them in a step of "
    "fewer microbatches than the first one had; run it with --no-protect"
)


class Hand(Protocol):
    """Knows by itself how the script scales gradients: it sees what is reduced."""

    def factor(self) -> float:
        """On this rank, in every step; NaN if it is no single one."""

    def concluded(self) -> None: ...


class Reading:
    """Keeps what the script saw in the first step, and whether its reads are commit points."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self.preview = Preview(session)
        self._watching = False
        self._meddled = False  # gradients were changed before the step's last backward
        self._found: float | None = None  # a factor, once it was looked for
        self._at = 0  # microbatches of the step when gradients were read
        self._kept: list[torch.Tensor] = []
        self.heard = 0  # collectives of the script before that
        self.commits = False
        self._factor: float | None = None  # of the first step, once it is agreed
        self._expected = 0  # microbatches of a step, as the first one had them
        self._ends = False  # torch reduces after the first step
        self._between = False  # the first step's gradients were read before its last backward
        self._seen_at: tuple[int, list[int]] = (0, [])  # as they were read, not committed
        self.by_hand: Hand | None = None

    # --------------------------------------------------------------------------- watching

    def watch(self) -> None:
        """From now on `Tensor.grad` is a property."""
        if self._watching:
            return
        self._watching = True
        plain: Any = torch._C.TensorBase.grad

        def get(tensor: torch.Tensor) -> Any:
            if self._session.dirty:
                module = sys._getframe(1).f_globals.get("__name__", "")
                with torch.inference_mode(False):  # what a commit makes lasts longer than the read
                    self._asked(module)
            return plain.__get__(tensor)

        setattr(torch.Tensor, "grad", property(get, plain.__set__, plain.__delete__))  # noqa: B010

    def _leave(self) -> None:
        if self._watching:
            del torch.Tensor.grad
        self._watching = False

    def _asked(self, module: str) -> None:
        if module.partition(".")[0] in OTHERS:
            return
        session = self._session
        if session.acting:
            slices.committing(session)
        elif session.promise is None:
            self._note()
        elif self.commits and (self.whole or not self._between):
            session.settle()
        elif self.commits:
            self._seen_at = (session.microbatch, self._versions())

    def _note(self) -> None:
        session = self._session
        if session.strategy is None or self._at == session.microbatch:
            return
        self._at, self.heard = session.microbatch, session.runtime.heard
        lent = self.by_hand is None and self.preview.lend(session.strategy)
        if not lent and session.strategy.lender is not None:
            session.strategy.lender.lend()
        self._kept = [one.detach().clone() for one in self._seen()]

    def join(self, slices: int) -> str:
        """What was taken for microbatches is slices of one. Why that cannot be, or ""."""
        if self.by_hand is not None:
            return "gradients are reduced by hand"
        if self._between:
            return "gradients are read between them"
        self._at = 1 if self._at == slices else 0
        return ""

    def _seen(self) -> list[torch.Tensor]:
        strategy = self._session.strategy
        assert strategy is not None, "protected"
        return strategy.accumulators() if strategy.lender is None else strategy.lender.seen()

    def _take_back(self) -> None:
        strategy = self._session.strategy
        if strategy is not None and strategy.lender is not None:
            strategy.lender.take_back()

    def backward_begins(self) -> None:
        """What was lent goes back; a read after this backward is a new one."""
        session = self._session
        self.preview.goes_on()
        if not self._at or session.acting or session.promise is not None:
            return
        changed = self._factor_since() != 1
        if self.preview.lent and session.strategy is not None:
            self.preview.ends(session.strategy, changed=changed)
        else:
            self._meddled |= changed
            self._take_back()
        self._between = True
        self._at, self._kept = 0, []

    def settling(self) -> None:
        """A later step's commit point. Raises RuntimeError where it should have been a read."""
        (at, versions), self._seen_at = self._seen_at, (0, [])
        if at and at == self._session.microbatch and versions != self._versions():
            raise RuntimeError(SHORT)

    def _versions(self) -> list[int]:
        return [one._version for one in self._seen()]

    # --------------------------------------------------------------------------- the first step

    def found(self) -> float | None:
        """At the first commit point: None if gradients were not read after the last backward.

        Else the factor by which they were multiplied since, NaN if it was no factor.
        """
        if self.by_hand is not None:
            return self.by_hand.factor()
        if self._meddled:
            return float("nan")
        if not self._at or self._at != self._session.microbatch:
            return None
        if self._found is None:
            self._found = self._factor_since()
            if self.preview.lent and self._session.strategy is not None:
                self.preview.take_back(self._session.strategy, keep=True)
        return self._found

    def _factor_since(self) -> float:
        """By which gradients were multiplied since they were read; NaN if it was no factor."""
        now = [one.detach() for one in self._seen()]
        if [one.shape for one in now] != [one.shape for one in self._kept]:
            return float("nan")
        return common_factor(list(zip(now, self._kept, strict=True)))

    def judge(self, factors: Mapping[int, float | None]) -> str:
        """What all ranks found; returns why the script cannot be served, or ""."""
        given = [factor for _, factor in sorted(factors.items()) if factor is not None]
        if self.by_hand is not None:
            return "" if all(one == given[0] for one in given) else UNEVEN  # nor is NaN itself
        if len(given) < len(factors):
            changed = any(factor != 1 for factor in given)
            return CHANGED if changed else ""
        if self._between and any(one != 1 for one in given):
            self._ends = True
            return EACH
        self.commits = True
        if not all(abs(one - given[0]) <= EVEN * abs(given[0]) for one in given):
            return "" if self.preview.kept else CHANGED  # NaN is not near itself
        self._factor = given[0]
        return ""

    @property
    def whole(self) -> bool:
        """The last backward of a step is done, if it has no more than the first one."""
        return 0 < self._expected <= self._session.microbatch

    @property
    def scaled(self) -> bool:
        """Gradients of the first step were multiplied."""
        return self._factor not in (None, 1.0)

    def concluded(self) -> None:
        """The rehearsal is over: what the script did to its own gradients is undone for now."""
        self._expected = self._session.microbatch
        if self.by_hand is not None:
            self.by_hand.concluded()
        if not self.commits:
            self._leave()
        if self._at and self._at == self._session.microbatch and not self.preview.kept:
            if self._factor is not None:
                for now, kept in zip(self._seen(), self._kept, strict=True):
                    now.detach().copy_(kept)
            self._take_back()
        self._at, self._kept = 0, []

    def delivered(self) -> None:
        """The reduced gradients are there: of the first step, still to be multiplied. Or gone."""
        factor, self._factor = self._factor, None
        if self.preview.kept and self._session.strategy is not None:
            self.preview.deliver(self._session.strategy)
        elif factor is not None and self._session.strategy is not None:
            for gradient in self._seen():
                gradient.detach().mul_(factor)
        self.preview.drop()
        self._at, self._kept, self._found = 0, [], None
        if self._ends:
            self._session.runtime.active = False


def common_factor(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """By which the first of each pair is a multiple of the second, NaN if it is none."""
    square = sum(float(b.double().square().sum()) for _, b in pairs)
    if not square:
        return 1.0
    factor = sum(float((a.double() * b.double()).sum()) for a, b in pairs) / square
    rest = sum(float((a.double() - factor * b.double()).square().sum()) for a, b in pairs)
    if not rest <= (EVEN * factor) ** 2 * square:
        return float("nan")
    return 1.0 if abs(factor - 1) < 1e-7 and rest == 0 else factor
