"""What losses and other modules without parameters were made with, where ranks differ in it.

    criterion = nn.SmoothL1Loss(beta=0.2 + rank)

Such a number may be read only later, when no proof would notice whose it is. So ranks compare once,
before the first proof, what these modules hold, and each that differs is looked at as if the script
had just written it (`attached`): it belongs to a slot from then on.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from recoverrun.hooks.attached import ATTACHED, KINDS
from recoverrun.hooks.values import bits

SMALL_BYTES = 1 << 12

Where = tuple[str, str, str]
"""A variable, a module inside of what it holds, and a name there."""


def words(namespaces: Iterable[Mapping[str, Any]]) -> list[list[Any]]:
    """What this rank tells the others of them."""
    return [[*where, zlib.crc32(bits(value))] for where, _, value in _found(namespaces)]


def hear(namespaces: Iterable[Mapping[str, Any]], said: Iterable[list[list[Any]]]) -> None:
    """What all ranks have told, this one among them."""
    heard = [{(one[0], one[1], one[2]): one[3] for one in words} for words in said]
    modules = {where: module for where, module, _ in _found(namespaces)}
    for where in sorted(set(modules).intersection(*heard)):  # in one order on all ranks
        if len({one[where] for one in heard}) > 1:
            ATTACHED.write(modules[where], where[2])


def _found(namespaces: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Where, nn.Module, Any]]:
    usual = vars(nn.Module())
    for names in namespaces:
        for variable, value in sorted(names.items()):
            if not isinstance(value, nn.Module) or next(value.parameters(), None) is not None:
                continue
            for inner, module in value.named_modules():
                own = {n: one for n, one in vars(module).items() if n not in usual}
                for name, one in {**own, **module._buffers}.items():
                    if _is_small(one):
                        yield (variable, inner, name), module, one


def _is_small(value: Any) -> bool:
    if type(value) is torch.Tensor:
        return value.numel() * value.element_size() <= SMALL_BYTES and not value.is_meta
    return type(value) in KINDS - {list, tuple}
