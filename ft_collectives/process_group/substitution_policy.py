"""The interface of a protected group to the worker, where ranks are lost or another rank's code is
executed.

Groups know who is lost. What a lost rank would have given, and whether this process executes the
code of another rank at the moment, is known to whoever protects them (`recoverrun.worker.step`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch


class LostInputs(NamedTuple):
    """Inputs of lost members, for which this rank answers."""

    inputs: Sequence[Sequence[torch.Tensor]] = ()
    """One list of tensors for each such member, of the shapes of this rank's own inputs."""

    certain: bool = True
    """False if they hold only where all members give the same."""

    flags: bool = False
    """True if zeros or ones are among them: so many variables hold these that one may equal this
    rank's input by chance.
    """


FindLostInputs = Callable[[tuple[int, ...]], LostInputs]
"""Returns the lost members' inputs, given the global ranks of the members that are left."""


def _never() -> bool:
    return False


def _unchanged(result: torch.Tensor) -> torch.Tensor:
    return result


def _nothing() -> None:
    return


def _unknown(ranks: Sequence[int], inputs: Sequence[torch.Tensor]) -> FindLostInputs | None:
    return None


def _untold(call: str, members: int, size: int) -> None:
    return


@dataclass(frozen=True, slots=True, kw_only=True)
class SubstitutionPolicy:
    """The substitutes of ranks that take no part in a collective. The default knows nothing.

    It is given to `ElasticGroup.protect` and holds for the life of the group.
    """

    replaying: Callable[[], bool] = _never
    """True if this process executes another rank's code: a collective then has only us."""

    result_alone: Callable[[torch.Tensor], torch.Tensor] = _unchanged
    """Marks a result of such a collective: other ranks' parts are not in it."""

    on_exchange: Callable[[], None] = _nothing
    """Called before the ranks tell each other something in which they may differ."""

    find_lost_inputs: Callable[[Sequence[int], Sequence[torch.Tensor]], FindLostInputs | None] = (
        _unknown
    )
    """Given the ranks of a group and this rank's inputs to a reduction: how to find what lost
    ranks would have given to it. None if that is not known.
    """

    on_partial: Callable[[str, int, int], None] = _untold
    """Called as (call, members, size) where a result is over fewer ranks than the group's size.
    Their inputs may have been equal: what a lost rank would have given is not known, or by chance.
    """


NO_POLICY = SubstitutionPolicy()
"""Of groups that are not protected, and of those whose user has nothing to add."""
