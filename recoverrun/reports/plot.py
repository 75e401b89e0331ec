"""Curves drawn in a terminal: braille dots (2 x 4 in a cell), or one character a cell in ASCII.

Two series share one picture, so that a run with losses can be laid over the run without: where the
second covers the first they are the same, and what stands out is the difference.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # [row][column] of U+2800
_MARKS = "*o+x"  # of the series in ASCII; a cell with several of them is "@"
_BOTH = "@"

Series = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Cell:
    """One character of the picture; `owners` are the series that have a dot in it."""

    text: str
    owners: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A picture as rows of cells, with the labels of its axes."""

    rows: tuple[tuple[Cell, ...], ...]
    low: float
    high: float
    first: float
    last: float

    def lines(self, *, label_columns: int = 9, ascii_only: bool = False) -> list[str]:
        """The picture as plain text with its axes, for any terminal."""
        corner, side, floor = ("+", "|", "-") if ascii_only else ("└", "│", "─")
        labels = {0: number(self.high), len(self.rows) - 1: number(self.low)}
        lines = []
        for place, row in enumerate(self.rows):
            label = labels.get(place, "").rjust(label_columns)
            lines.append(f"{label} {side}{''.join(cell.text for cell in row)}".rstrip())
        columns = len(self.rows[0]) if self.rows else 0
        left, right = number(self.first), number(self.last)
        lines.append(" " * label_columns + f" {corner}{floor * columns}")
        gap = " " * max(1, columns - len(left) - len(right))
        lines.append(" " * (label_columns + 2) + left + gap + right)
        return lines


def number(value: float) -> str:
    """A label of an axis: four significant digits, integers as such."""
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.4g}"


def plot(series: Sequence[Series], *, columns: int, rows: int, ascii_only: bool = False) -> Plot:
    """Draw series of (x, y); points that are not finite are left out.

    `columns` and `rows` are in characters. No points give an empty picture.
    """
    clean = [
        [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)] for points in series
    ]
    everything = [point for points in clean for point in points]
    if not everything:
        blank = tuple(Cell(" ", frozenset()) for _ in range(columns))
        return Plot(rows=(blank,) * rows, low=0.0, high=0.0, first=0.0, last=0.0)
    xs, ys = [x for x, _ in everything], [y for _, y in everything]
    wide, tall = (1, 1) if ascii_only else (2, 4)
    frame = _Frame(
        first=min(xs),
        last=max(xs),
        low=min(ys),
        high=max(ys),
        columns=columns * wide,
        rows=rows * tall,
    )
    dots = [_dots(points, frame) for points in clean]
    picture = tuple(
        tuple(_cell(dots, row, column, ascii_only) for column in range(columns))
        for row in range(rows)
    )
    return Plot(rows=picture, low=frame.low, high=frame.high, first=frame.first, last=frame.last)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """The map from values to dots: x to a column, y to a row from the top."""

    first: float
    last: float
    low: float
    high: float
    columns: int
    rows: int

    def place(self, x: float, y: float) -> tuple[int, int]:
        wide, tall = self.last - self.first, self.high - self.low
        column = (x - self.first) / wide * (self.columns - 1) if wide else 0.0
        row = (self.high - y) / tall * (self.rows - 1) if tall else (self.rows - 1) / 2
        return round(row), round(column)


def _dots(points: Series, frame: _Frame) -> frozenset[tuple[int, int]]:
    """The dots of one series, with its points joined by straight lines."""
    found: set[tuple[int, int]] = set()
    places = [frame.place(x, y) for x, y in sorted(points)]
    found.update(places[:1])
    for (row, column), (end_row, end_column) in zip(places, places[1:], strict=False):
        length = max(abs(end_row - row), abs(end_column - column), 1)
        for at in range(length + 1):
            share = at / length
            found.add(
                (
                    round(row + share * (end_row - row)),
                    round(column + share * (end_column - column)),
                )
            )
    return frozenset(found)


def _cell(
    dots: Sequence[frozenset[tuple[int, int]]], row: int, column: int, ascii_only: bool
) -> Cell:
    if ascii_only:
        here = [place for place, one in enumerate(dots) if (row, column) in one]
        text = " " if not here else _MARKS[here[0] % len(_MARKS)] if len(here) == 1 else _BOTH
        return Cell(text, frozenset(here))
    bits = 0
    owners: set[int] = set()
    for place, one in enumerate(dots):
        for down, across in ((d, a) for d in range(4) for a in range(2)):
            if (row * 4 + down, column * 2 + across) in one:
                bits |= _DOTS[down][across]
                owners.add(place)
    return Cell(chr(0x2800 + bits) if bits else " ", frozenset(owners))
