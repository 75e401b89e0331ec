"""Attributes that a script gives to tensors: to each parameter an average of its own, a count.

torch keeps books of its own there, under names that begin with `_`: these are not looked at.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from recoverrun.worker.context.member_views import MemberView, attributes

OF_TENSORS = ".attributes"
"""The end of the path of a tensor's attributes."""


class TensorAttributes(MemberView):
    """Those of one tensor."""

    def __init__(self, owner: torch.Tensor) -> None:
        self._held = attributes(owner)

    def __iter__(self) -> Iterator[str]:
        yield from (name for name in list(self._held) if _is_given(name))

    def __getitem__(self, name: str) -> Any:
        if not _is_given(name):
            raise KeyError(name)
        return self._held[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._held[name] = value

    def __delitem__(self, name: str) -> None:
        del self._held[name]


def given_to(tensor: torch.Tensor) -> TensorAttributes | None:
    """None of a tensor that has none. A parameter may be given some later, so it has a view of
    them in any case.
    """
    return TensorAttributes(tensor) if has_any(tensor) or isinstance(tensor, nn.Parameter) else None


def has_any(tensor: torch.Tensor) -> bool:
    """True of a tensor that was given some. Asked of each parameter."""
    held = attributes(tensor)
    return bool(held) and any(map(_is_given, held))


def _is_given(name: Any) -> bool:
    return type(name) is str and not name.startswith("_")
