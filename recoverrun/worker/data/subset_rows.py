"""The rows of a data set that a rank goes through, if the script divides it by hand.

`Subset(data, range(rank, len(data), world))` is different data on each rank, though no sampler
carries the rank. So ranks tell each other the row numbers of the subsets and samplers below a
loader. Rows at equal steps are three numbers, in whatever form the script holds them; short lists
are sent as they are; of a longer list only a checksum is sent, which shows whether two are equal.
"""

import array
import sys
import zlib
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset

from recoverrun.worker.data.samplers import samplers_of
from recoverrun.worker.data.shallow_copy import shallow_copy
from recoverrun.worker.errors import NotReplayable

SubsetRows = range | bytes | str
"""Rows at equal steps, a short list of packed numbers, or only a description of a long one."""

MOST_ROWS = 2048
"""A longer list is not sent: it would be written to shared memory in every step."""

_NUMBERS = "q"


def subset_rows_of(loader: "DataLoader[Any]") -> tuple[SubsetRows, ...]:
    """Return the rows of all subsets and samplers below `loader`, in a fixed order."""
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


def apply_rows(clone: "DataLoader[Any]", rows: tuple[SubsetRows, ...]) -> None:
    """Let `clone`, whose samplers are copies, go through these rows. Raises NotReplayable."""
    holders = _holders(clone)
    if len(rows) != len(holders):
        raise NotReplayable("another rank cuts its data set in another way than this one")
    subsets = _subsets(clone)
    data = clone.dataset
    made = _with_rows(data, rows[: len(subsets)])
    vars(clone)["dataset"] = made
    for sampler in samplers_of(clone):
        if vars(sampler).get("data_source") is data:
            vars(sampler)["data_source"] = made
        elif vars(sampler).get("dataset") is data and len(made) != len(data):
            raise NotReplayable("another rank goes through a data set of another length")
    for sampler, indices in zip(holders[len(subsets) :], rows[len(subsets) :], strict=True):
        vars(sampler)["indices"] = _in_form_of(vars(sampler)["indices"], indices)


def pack_rows(rows: tuple[SubsetRows, ...]) -> list[Any]:
    """Plain values for msgpack."""
    return [
        [part.start, part.stop, part.step] if isinstance(part, range) else part for part in rows
    ]


def unpack_rows(packed: Any) -> tuple[SubsetRows, ...]:
    """Raises ValueError if `packed` is not what `pack_rows` makes."""
    if not isinstance(packed, list):
        raise ValueError("rows of subsets: no list")
    return tuple(_unpacked(part) for part in packed)


def _unpacked(packed: Any) -> SubsetRows:
    if isinstance(packed, str):
        return packed
    if isinstance(packed, bytes) and len(packed) % 8 == 0:
        return packed
    numbers = isinstance(packed, list) and all(type(number) is int for number in packed)
    if numbers and len(packed) == 3:
        return range(*packed)
    raise ValueError(f"not rows of a subset: {packed!r}")


def _subsets(loader: "DataLoader[Any]") -> list[Any]:
    """Return the data set and those below it, as long as they are subsets."""
    subsets: list[Any] = []
    data: Any = loader.dataset
    while isinstance(data, Subset):
        subsets.append(data)
        data = data.dataset
    return subsets


def _holders(loader: "DataLoader[Any]") -> list[Any]:
    samplers = samplers_of(loader)
    return [*_subsets(loader), *(owner for owner in samplers if "indices" in vars(owner))]


def _with_rows(data: Any, rows: tuple[SubsetRows, ...]) -> Any:
    """Return a data set like `data` with these rows of each subset; `data` if it has them."""
    if not rows:
        return data
    below, indices = _with_rows(data.dataset, rows[1:]), _in_form_of(data.indices, rows[0])
    if below is data.dataset and indices is data.indices:
        return data
    subset = shallow_copy(data)
    vars(subset).update(dataset=below, indices=indices)
    return subset


def _in_form_of(indices: Any, rows: SubsetRows) -> Any:
    """Return `rows` as a list, range or tensor as `indices` is; `indices` if it has these rows."""
    if rows_of(indices) == rows:
        return indices
    if isinstance(rows, str):
        raise NotReplayable(
            f"another rank goes through other rows of its data set, a list of more than {MOST_ROWS}"
        )
    numbers = rows if isinstance(rows, range) else array.array(_NUMBERS, rows).tolist()
    if isinstance(indices, torch.Tensor):
        return torch.tensor(list(numbers), dtype=indices.dtype)
    if hasattr(indices, "dtype"):
        return sys.modules["numpy"].array(numbers, dtype=indices.dtype)
    return numbers if isinstance(indices, range) else list(numbers)


def _steady(rows: "array.array[int]") -> range | None:
    if len(rows) < 2:
        return range(rows[0], rows[0] + 1) if rows else range(0)
    first, width = rows[0], rows[1] - rows[0]
    if not width:
        return None
    steady = range(first, first + width * len(rows), width)
    return steady if array.array(_NUMBERS, steady) == rows else None
