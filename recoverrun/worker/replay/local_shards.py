"""Each rank's share of the data, cut out before the loop: `mine = data[rank::world]`.

Such a share is too large for a context, and belongs to the rank alone. So where a proof finds
that ranks hold different data under one name, they tell each other once, and keep what they heard.
It holds as long as nobody's share changes: a new epoch that cuts out new ones ends it.
"""

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from recoverrun.worker.context.fingerprints import is_mark, mark_of
from recoverrun.worker.context.object_members import members, resolve
from recoverrun.worker.context.slot_context import Key, key_of, told, unmarked
from recoverrun.worker.data.numpy_arrays import is_plain_array
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.replay.known_state import differing_words, named
from recoverrun.worker.rng.streams import tensor_bytes

MOST_BYTES = 16 << 20
"""The size of all shares that one rank tells."""

MOST_HEARD_BYTES = 256 << 20
"""The size of all ranks' shares that one rank keeps."""


class LocalShards:
    """The values of other ranks under the names of `keys`, and this rank's own when they told."""

    def __init__(self) -> None:
        self._keys: tuple[Key, ...] = ()
        self._marks: dict[Key, str] = {}
        self._theirs: dict[int, dict[Key, Any]] = {}

    @property
    def empty(self) -> bool:
        """True if no rank has told of any."""
        return not self._theirs

    def own(self, keys: Iterable[Key], visible: Mapping[str, Any]) -> list[Any] | None:
        """This rank's shares, packed; None if they cannot be told, or are too much."""
        self._keys = tuple(sorted({unmarked(key) for key in keys}, key=str))
        values = [value_of(visible, key) for key in self._keys]
        if not all(map(travels, values)) or sum(map(size_of, values)) > MOST_BYTES:
            return None
        self._marks = dict(zip(self._keys, map(mark_of, values), strict=True))
        return [packed(value) for value in values]

    def hear(self, said: Mapping[int, list[Any] | None], own_rank: int) -> bool:
        """Keep what the others told; False if one of them could not, or it is too much in all."""
        self._theirs = {}
        others = {rank: one for rank, one in said.items() if one is not None and rank != own_rank}
        if len(others) < len(said) - 1:
            return False
        theirs = {
            rank: dict(zip(self._keys, map(unpacked, shares), strict=True))
            for rank, shares in others.items()
        }
        total = sum(size_of(value) for shares in theirs.values() for value in shares.values())
        if total <= MOST_HEARD_BYTES:
            self._theirs = theirs
        return total <= MOST_HEARD_BYTES

    def told(self, own_rank: int, visible: Mapping[str, Any]) -> list[Any]:
        """For a process that takes a lost rank's place (`learn`). Raises NotReplayable."""
        if self.empty:
            return []
        self.of(min(self._theirs), visible)  # ours are what they were
        every = {
            **self._theirs,
            own_rank: {key: value_of(visible, key) for key in self._keys},
        }
        held = [[rank, [shares[key] for key in self._keys]] for rank, shares in every.items()]
        return [[told(key) for key in self._keys], held]

    def learn(self, said: list[Any], own_rank: int, visible: Mapping[str, Any]) -> str:
        """Ranks have told each other before this process began. Which share is another one here
        than the one that was told of this rank; "" if none is.
        """
        if not said:
            return ""
        keys, held = said
        self._keys = tuple(map(key_of, keys))
        every = {rank: dict(zip(self._keys, shares, strict=True)) for rank, shares in held}
        for key, share in every.pop(own_rank).items():
            mine = value_of(visible, key)
            if not travels(mine) or mark_of(mine) != mark_of(share):
                return named(key)
            self._marks[key] = mark_of(mine)
        self._theirs = every
        return ""

    def of(self, rank: int, visible: Mapping[str, Any]) -> dict[Key, Any]:
        """The shares of `rank`. Raises NotReplayable if we hold something else since they told."""
        theirs = self._theirs.get(rank, {})
        for key in theirs:
            value = value_of(visible, key)
            if not travels(value) or mark_of(value) != self._marks[key]:
                raise NotReplayable(differing_words([key], "between steps"))
        return theirs


def value_of(visible: Mapping[str, Any], key: Key) -> Any:
    """The present value there, None if there is none."""
    if isinstance(key, str):
        return visible.get(key)
    owner = resolve(visible, key)
    return members(owner).get(key[-1])


def unlike(mine: Mapping[Any, Any], theirs: Mapping[Any, Any]) -> set[Any]:
    """Marks under the same name that differ."""
    return {
        key
        for key, mark in mine.items()
        if is_mark(key if isinstance(key, str) else key[-1]) and theirs.get(key, mark) != mark
    }


def travels(value: Any) -> bool:
    """True of a plain tensor or array, and of a list of plain values."""
    if type(value) is torch.Tensor:
        plain = value.layout is torch.strided and not value.is_quantized
        return plain and not value.requires_grad and value.device.type == "cpu"
    if is_plain_array(value):
        return not value.dtype.hasobject
    return type(value) is list and all(type(one) in (int, float, bool, str) for one in value)


def size_of(value: Any) -> int:
    """Bytes, of a list about."""
    if type(value) is torch.Tensor:
        return value.numel() * value.element_size()
    return int(value.nbytes) if is_plain_array(value) else 8 * len(value)


def packed(value: Any) -> list[Any]:
    """A share as its kind, type, shape, and content."""
    if type(value) is torch.Tensor:
        kind = str(value.dtype).removeprefix("torch.")
        return ["tensor", kind, list(value.shape), tensor_bytes(value)]
    if is_plain_array(value):
        return ["array", value.dtype.str, list(value.shape), value.tobytes()]
    return ["list", "", [], value]


def unpacked(given: list[Any]) -> Any:
    what, kind, shape, content = given
    if what == "list":
        return list(content)
    if what == "array":
        numpy = sys.modules["numpy"]
        return numpy.frombuffer(bytearray(content), dtype=kind).reshape(shape)
    raw = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0)
    dtype = getattr(torch, kind)
    return (raw.view(dtype) if content else raw.to(dtype)).reshape(shape)
