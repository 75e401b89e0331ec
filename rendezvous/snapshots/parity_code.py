"""Parity of equal parts, and what is missing from what is left: exclusive or, nothing else.

One loss is made good by the sum of all other columns. For two there is row-diagonal parity (Corbett
et al., FAST 2004) over the prime 7: a part is six rows, a diagonal goes through the rows of all
columns and of the row parity, and one of the seven diagonals has no parity. Missing columns are
those that hold zeros everywhere.

numpy does it where it is installed, at the speed of memory; else Python's integers, at about 1 GB/s
for eight columns, as only the result is written back as bytes.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cache, reduce

PRIME = 7
ROWS = PRIME - 1

ROW_BYTES = 682 << 10
PART_BYTES = ROWS * ROW_BYTES
"""What is summed up at once: a little below 4 MiB, so that it fits into a frame."""

Part = bytes | memoryview

Xor = Callable[[Sequence[Part]], Part]
"""The exclusive or of strings of equal length, at least one."""

Equation = frozenset[tuple[int, int]]
"""Cells (column, row) whose sum is zero."""


def xor_of_integers(parts: Sequence[Part]) -> bytes:
    first, *others = parts
    total = int.from_bytes(first, "little")
    for part in others:
        total ^= int.from_bytes(part, "little")
    return total.to_bytes(len(first), "little")


@cache
def fastest() -> Xor:
    """The fastest implementation on this machine."""
    try:
        import numpy as np
    except ImportError:
        return xor_of_integers

    def xor_of_arrays(parts: Sequence[Part]) -> Part:
        if len(parts) == 1:
            return parts[0]
        first, second, *others = (np.frombuffer(part, np.uint8) for part in parts)
        total = first ^ second
        for other in others:
            total ^= other
        return total.data

    return xor_of_arrays


def padded(part: Part, size: int) -> Part:
    """The part with zeros at its end: a part beyond the end of a stream is not sent."""
    return part if len(part) == size else bytes(part).ljust(size, b"\0")


def row_parity(columns: Sequence[Part], xor: Xor) -> Part:
    """The parity of columns of equal length."""
    return xor(columns) if len(columns) > 1 else columns[0]


def row_check(checks: Sequence[int], zeros: int) -> int:
    """The CRC of the parity of columns of equal length, from theirs and that of as many zeros.

    A CRC is a linear function and a constant, which is the CRC of zeros: it is left over where the
    columns are even in number.
    """
    return reduce(operator.xor, checks, 0 if len(checks) % 2 else zeros)


def diagonal_parity(columns: Sequence[Part], xor: Xor) -> bytes:
    """The parity of columns of ROWS rows of equal length, at most ROWS of them."""
    whole = [*columns, row_parity(columns, xor)]
    places = [*range(len(columns)), PRIME - 1]
    cells = {
        (place, row): value
        for place, column in zip(places, whole, strict=True)
        for row, value in enumerate(_rows(column))
    }
    diagonals = [
        xor([value for (place, row), value in cells.items() if (place + row) % PRIME == diagonal])
        for diagonal in range(ROWS)
    ]
    return b"".join(diagonals)


def rebuilt(
    data: Mapping[int, Part],
    parity: Mapping[int, Part],
    *,
    wanted: int,
    columns: int,
    xor: Xor,
) -> Part:
    """Column `wanted` of `columns`, of those that are there: `data` by column, `parity` by kind: 0
    rows, 1 diagonals. As many must be missing at most as there are kinds of parity.
    """
    others = [data[column] for column in range(columns) if column != wanted and column in data]
    if len(others) == columns - 1 and 0 in parity:
        return row_parity([*others, parity[0]], xor)
    there = {column: _rows(part) for column, part in data.items()}
    if 0 in parity:
        there[PRIME - 1] = _rows(parity[0])
    if 1 in parity:
        there[PRIME] = _rows(parity[1])
    size = len(next(iter(there.values()))[0])
    for column in range(columns, ROWS):
        there[column] = [bytes(size)] * ROWS
    cells: dict[tuple[int, int], Part]
    cells = {(column, row): v for column, rows in there.items() for row, v in enumerate(rows)}
    _solve(cells, xor)
    return b"".join(cells[wanted, row] for row in range(ROWS))


def _solve(cells: dict[tuple[int, int], Part], xor: Xor) -> None:
    """Fill in what is missing: an equation with one cell unknown says what that is."""
    open_ones = [one for one in _equations() if one - cells.keys()]
    while open_ones:
        solvable = [one for one in open_ones if len(one - cells.keys()) == 1]
        if not solvable:
            return  # Of the rest nothing is known, and nothing is asked: KeyError if it is.
        for one in solvable:
            unknown = one - cells.keys()
            if len(unknown) == 1:
                (cell,) = unknown
                cells[cell] = xor([cells[other] for other in sorted(one - unknown)])
        open_ones = [one for one in open_ones if one - cells.keys()]


@cache
def _equations() -> tuple[Equation, ...]:
    """Rows with their parity in column PRIME - 1, diagonals with theirs in column PRIME."""
    rows = [frozenset((column, row) for column in range(PRIME)) for row in range(ROWS)]
    diagonals = [
        frozenset({
            (PRIME, diagonal),
            *((c, r) for c in range(PRIME) for r in range(ROWS) if (c + r) % PRIME == diagonal),
        })
        for diagonal in range(ROWS)
    ]  # fmt: skip
    return (*rows, *diagonals)


def _rows(part: Part) -> list[Part]:
    size, rest = divmod(len(part), ROWS)
    assert rest == 0, f"a part of {len(part)} bytes has no {ROWS} rows"
    whole = memoryview(part)
    return [whole[row * size : (row + 1) * size] for row in range(ROWS)]
