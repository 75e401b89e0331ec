"""Which rows of a data set a rank goes through, where the script cuts it by hand.

`Subset(data, range(rank, len(data), world))` is other data on each rank, though no sampler carries
the rank. So ranks tell each other the row numbers of the subsets and samplers below a loader: steps
of equal width are three numbers, however they are written down, and other lists travel while they
are short. Of longer ones only a checksum is told, which shows whether they are the same.
"""

import array
import sys
import zlib
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset

from recoverrun.worker.data.object_copy import shallow_copy
from recoverrun.worker.data.samplers import samplers_of
from recoverrun.worker.errors import NotReplayable

SubsetRows = range | bytes | str
"""Rows in steps of equal width, a short list of others, or no more than a mark of them."""

MOST_ROWS = 2048
"""A longer list does not travel: it would be left in shared memory with every step."""

_NUMBERS = "q"


def subset_rows_of(loader: "DataLoader[Any]") -> tuple[SubsetRows, ...]:
    """Of all subsets and samplers below `loader` that hold row numbers, in a fixed order."""
    return tuple(rows_of(vars(owner)["indices"]) for owner in _holders(loader))


def rows_of(rows: Any) -> SubsetRows:
    if isinstance(rows, range):
        return rows
    try:
        listed = array.array(_NUMBERS, rows.tolist() if hasattr(rows, "tolist") else rows)
    except (TypeError, ValueError, OverflowError):
        return type(rows).__name__  # no row numbers: nothing that a rank could compare
    if (steady := _steady(listed)) is not None:
        return steady
    packed = listed.tobytes()
    return packed if len(listed) <= MOST_ROWS else f"{len(listed)} rows, {zlib.crc32(packed):x}"


def apply_rows(clone: "DataLoader[Any]", cuts: tuple[SubsetRows, ...]) -> None:
    """Let `clone`, whose samplers are copies, go through these rows. Raises NotReplayable."""
    holders = _holders(clone)
    if len(cuts) != len(holders):
        raise NotReplayable("another rank cuts its data set in another way than this one")
    subsets = _subsets(clone)
    data = clone.dataset
    given = _given(data, cuts[: len(subsets)])
    vars(clone)["dataset"] = given
    for sampler in samplers_of(clone):
        if vars(sampler).get("data_source") is data:
            vars(sampler)["data_source"] = given
        elif vars(sampler).get("dataset") is data and len(given) != len(data):
            raise NotReplayable("another rank goes through a data set of another length")
    for sampler, cut in zip(holders[len(subsets) :], cuts[len(subsets) :], strict=True):
        vars(sampler)["indices"] = _rows(vars(sampler)["indices"], cut)


def pack_rows(cuts: tuple[SubsetRows, ...]) -> list[Any]:
    """Plain values for msgpack."""
    return [[one.start, one.stop, one.step] if isinstance(one, range) else one for one in cuts]


def unpack_rows(packed: Any) -> tuple[SubsetRows, ...]:
    """Raises ValueError if `packed` is not what `pack_rows` makes."""
    if not isinstance(packed, list):
        raise ValueError("cuts: no list")
    return tuple(_unpacked(one) for one in packed)


def _unpacked(one: Any) -> SubsetRows:
    if isinstance(one, str):
        return one
    if isinstance(one, bytes) and len(one) % 8 == 0:
        return one
    if isinstance(one, list) and len(one) == 3 and all(type(part) is int for part in one):
        return range(*one)
    raise ValueError(f"not a cut: {one!r}")


def _subsets(loader: "DataLoader[Any]") -> list[Any]:
    """The data set and those below it, as long as they are subsets."""
    found: list[Any] = []
    data: Any = loader.dataset
    while isinstance(data, Subset):
        found.append(data)
        data = data.dataset
    return found


def _holders(loader: "DataLoader[Any]") -> list[Any]:
    return [*_subsets(loader), *(one for one in samplers_of(loader) if "indices" in vars(one))]


def _given(data: Any, cuts: tuple[SubsetRows, ...]) -> Any:
    """A data set like `data` with these rows of each subset; `data` itself if it has no others."""
    if not cuts:
        return data
    below, rows = _given(data.dataset, cuts[1:]), _rows(data.indices, cuts[0])
    if below is data.dataset and rows is data.indices:
        return data
    twin = shallow_copy(data)
    vars(twin).update(dataset=below, indices=rows)
    return twin


def _rows(own: Any, cut: SubsetRows) -> Any:
    """The rows of `cut` in the way that `own` are written down; `own` itself if it has them."""
    if rows_of(own) == cut:
        return own
    if isinstance(cut, str):
        raise NotReplayable(
            f"another rank goes through other rows of its data set, a list of more than {MOST_ROWS}"
        )
    rows = cut if isinstance(cut, range) else array.array(_NUMBERS, cut).tolist()
    if isinstance(own, torch.Tensor):
        return torch.tensor(list(rows), dtype=own.dtype)
    if hasattr(own, "dtype"):
        return sys.modules["numpy"].array(rows, dtype=own.dtype)
    return rows if isinstance(own, range) else list(rows)


def _steady(rows: "array.array[int]") -> range | None:
    if len(rows) < 2:
        return range(rows[0], rows[0] + 1) if rows else range(0)
    first, width = rows[0], rows[1] - rows[0]
    if not width:
        return None
    steady = range(first, first + width * len(rows), width)
    return steady if array.array(_NUMBERS, steady) == rows else None
