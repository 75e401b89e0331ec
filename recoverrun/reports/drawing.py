"""Pictures as inline SVG. All text is escaped here, and nothing refers to another file."""

import math
from collections.abc import Iterable, Sequence
from html import escape

from recoverrun.text import sanitize, span

WIDTH = 1000.0
"""Units from the left to the right edge of every picture."""


class Drawing:
    """One picture, `WIDTH` wide. `kind` is a class of the page's style sheet."""

    def __init__(self, height: float, label: str) -> None:
        self.height = height
        self._label = label
        self._parts: list[str] = []

    def box(
        self, x: float, y: float, wide: float, high: float, kind: str, *, title: str = ""
    ) -> None:
        """A filled rectangle; without any width it is left out."""
        if wide > 0 and high > 0:
            where = f'x="{_n(x)}" y="{_n(y)}" width="{_n(wide)}" height="{_n(high)}"'
            self._put("rect", where, kind, title)

    def path(self, steps: str, kind: str, title: str = "") -> None:
        self._put("path", f'd="{escape(steps)}"', kind, title)

    def line(self, x: float, y: float, to_x: float, to_y: float, kind: str) -> None:
        self._put("line", f'x1="{_n(x)}" y1="{_n(y)}" x2="{_n(to_x)}" y2="{_n(to_y)}"', kind)

    def dot(self, x: float, y: float, radius: float, kind: str, title: str = "") -> None:
        self._put("circle", f'cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}"', kind, title)

    def cross(self, x: float, y: float, size: float, kind: str, title: str = "") -> None:
        a, b, c, d = (_n(value) for value in (x - size, x + size, y - size, y + size))
        self.path(f"M{a} {c}L{b} {d}M{a} {d}L{b} {c}", kind, title)

    def text(self, x: float, y: float, words: str, kind: str = "t", anchor: str = "start") -> None:
        clean = escape(sanitize(words, 120))
        where = f'x="{_n(x)}" y="{_n(y)}" class="{kind}" text-anchor="{anchor}"'
        self._parts.append(f"<text {where}>{clean}</text>")

    def markup(self) -> str:
        """The element, to be put into a page as it is."""
        box = f'viewBox="0 0 {_n(WIDTH)} {_n(self.height)}"'
        label = escape(self._label)
        return f'<svg {box} role="img" aria-label="{label}">{"".join(self._parts)}</svg>'

    def _put(self, name: str, where: str, kind: str, title: str = "") -> None:
        said = f"<title>{escape(sanitize(title, 300))}</title>" if title else ""
        self._parts.append(f'<{name} {where} class="{kind}">{said}</{name}>')


def polyline(points: Iterable[tuple[float, float]]) -> str:
    """The steps of a path along points."""
    return "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in points)


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round values between two others, at most so many."""
    if not high > low:
        return [low]
    rough = (high - low) / max(1, most)
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


_TIMES = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400,
    172800, 604800,
)  # fmt: skip


def time_ticks(seconds: float, most: int) -> Sequence[float]:
    """Round spans from 0 up to `seconds`, at most so many and one."""
    rough = seconds / max(1, most)
    if rough < 1:
        return ticks(0.0, seconds, most)
    step = next((one for one in _TIMES if one >= rough), rough)
    return [n * float(step) for n in range(int(seconds // step) + 1)]


def _n(value: float) -> str:
    text = f"{value:.1f}"
    return text.removesuffix(".0")


def tick(seconds: float) -> str:
    """The label of an axis of time; at its beginning no unit would be that of the others."""
    return span(seconds) if seconds else "0"
