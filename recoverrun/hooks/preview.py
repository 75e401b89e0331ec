"""Gradients that a script reads in its first step: reduced, as they would be under torchrun.

    loss.backward()
    for param in model.parameters():
        param.grad.clamp_(-1, 1)
    optimizer.step()

From the second step on such a read is the commit point (`reading`). In the first one nobody knows
that it is the step's last, or whether other ranks read as well: one may read alone, for its log.
So whoever reads says so in the store of its generation, and whoever does anything else after a
backward, before it may wait for others, says that; the first such word holds. Where all read, the
gradients are reduced for that moment, beside the machine, and lent: this rank's own sums are put
aside and back, and what the script made of the reduced ones replaces them once the step is applied.

A rank tells nothing about itself unless a source file of the project mentions `.grad`.
"""

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from ft_collectives.c10d import DistStoreError
from ft_collectives.faults import Superseded
from recoverrun.hooks.rehearsal import gather

if TYPE_CHECKING:
    from recoverrun.hooks.session import Session
    from recoverrun.hooks.strategy import Strategy

MOMENTS = 4
"""Places between a backward and what follows it, divided by what ranks say to each other."""

PATIENCE_S = 120.0
"""After that a rank that reads takes another for one that does not: it may wait for this one."""

ALL_READ, OTHERWISE = b"all read", b"otherwise"

BETWEEN = (
    "the script changes its gradients between the backward passes of a step, after torch has "
    "reduced them: a lost rank's microbatches cannot be made up among such gradients"
)

LOST = (
    "recoverrun: a rank was lost in the first step, while the script changed its gradients by "
    "itself; the step cannot be completed"
)


class Preview:
    """What this rank has said about its first step, and what was lent to the script."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._said: set[tuple[int, int, int]] = set()
        self._moment = 0  # calls of the script since its last backward that may wait for others
        self._own: object = None  # this rank's sums, while reduced ones are lent
        self._bare: list[Any] = []  # had no gradient before these were lent
        self._made: list[torch.Tensor | None] | None = None  # by the script, of what was lent

    # --------------------------------------------------------------------------- all or not

    @property
    def _awaited(self) -> bool:
        """May somebody else read gradients now, for the first time?"""
        session = self._session
        first = session.promise is None and session.machine is not None
        return first and session.dirty and not session.acting and session.runtime.reads_gradients

    def backward_done(self) -> None:
        self._moment = 0

    def goes_on(self) -> None:
        """This rank reads no gradients until its next backward, or its optimizer."""
        if self._awaited:
            for moment in range(self._moment, MOMENTS):
                self._say_otherwise(moment)

    def talks(self) -> None:
        """This rank is about to take part in a call of the script's that may wait for others."""
        if self._awaited:
            self._say_otherwise(self._moment)
            self._moment += 1

    def _say_otherwise(self, moment: int) -> None:
        place = self._place(moment)
        if moment >= MOMENTS or place in self._said:
            return
        self._said.add(place)
        try:
            self._session.store(place[0]).compare_set(_key(place), b"", OTHERWISE)
        except DistStoreError:
            pass  # Who waits for it is told that the generation is over.

    def _place(self, moment: int) -> tuple[int, int, int]:
        fabric = self._session.fabric
        assert fabric is not None, "protected"
        return (fabric.view.generation, self._session.microbatch, moment)

    def _all_read(self) -> bool:
        """Does every rank read gradients here? Waits until that is known."""
        session = self._session
        place = self._place(self._moment)
        if not self._awaited or place in self._said or place[2] >= MOMENTS:
            return False
        self._said.add(place)
        assert session.layout is not None, "protected"
        store, key = session.store(place[0]), _key(place)
        store.set_timeout(timedelta(seconds=PATIENCE_S))
        try:
            if store.add(f"{key} readers", 1) == session.layout.world_size:
                store.compare_set(key, b"", ALL_READ)
            with suppress(DistStoreError):
                store.get(key)
            return store.compare_set(key, b"", OTHERWISE) == ALL_READ
        except DistStoreError:
            return False  # A rank is lost, and the generation with it.

    # --------------------------------------------------------------------------- lending

    def lend(self, strategy: "Strategy") -> bool:
        """Let the script see reduced gradients, if every rank looks. False if some do not."""
        if not strategy.synced or not self._all_read():
            return False
        reducer, fabric = self._session.reducer, self._session.fabric
        assert reducer is not None and fabric is not None, "protected"
        try:
            reducer.finish(fabric.view.generation)
        except Superseded:
            raise RuntimeError(LOST) from None
        self._bare = [one for one in strategy.owners() if one.grad is None]
        self._own = strategy.set_aside()
        reducer.deliver()
        reducer.begin()
        return True

    @property
    def lent(self) -> bool:
        """Is what the script sees reduced?"""
        return self._own is not None

    def ends(self, strategy: "Strategy", *, changed: bool) -> None:
        """Another backward begins: what was lent was not of the whole step.

        Where any rank changed it, torch has to reduce by itself, and adds to what is there.
        """
        session = self._session
        assert session.fabric is not None, "protected"
        try:
            generation = session.fabric.view.generation
            said = gather(session.fabric, session.booth.channel, generation, {"changed": changed})
        except Superseded:
            raise RuntimeError(LOST) from None
        if any(one["changed"] for one in said.values()):
            session.refuse(BETWEEN)
            session.runtime.active = False
            self.drop()
        else:
            self.take_back(strategy, keep=False)

    def take_back(self, strategy: "Strategy", *, keep: bool) -> None:
        """This rank's own sums are back. `keep` what the script made of the reduced ones."""
        if keep:
            self._made = [_copy(one.grad) for one in strategy.owners()]
        for owner in self._bare:
            owner.grad = None
        strategy.put_back(self._own)
        self._own, self._bare = None, []

    @property
    def kept(self) -> bool:
        """Is there something that replaces the reduced gradients of the first step?"""
        return self._made is not None

    def deliver(self, strategy: "Strategy") -> None:
        """The first step is applied: its gradients are what the script made of them."""
        made, self._made = self._made, None
        for owner, gradient in zip(strategy.owners(), made or (), strict=True):
            if gradient is None or owner.grad is None:
                owner.grad = None
            else:
                local(owner.grad).copy_(gradient)

    def drop(self) -> None:
        """The step was dropped, or it is no matter of ours."""
        self._own, self._bare, self._made = None, [], None


def _key(place: tuple[int, int, int]) -> str:
    return f"gradients are read {place[1]} {place[2]}"


def local(gradient: Any) -> torch.Tensor:
    """This rank's part of it."""
    part: torch.Tensor = getattr(gradient, "_local_tensor", gradient)
    return part.detach()


def _copy(gradient: Any) -> torch.Tensor | None:
    return None if gradient is None else local(gradient).clone()
