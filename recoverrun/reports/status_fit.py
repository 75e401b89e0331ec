"""A status screen that fits its terminal: the header stays, and what is in order folds first."""

from bisect import bisect_left
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment

from recoverrun.reports.status import Status
from recoverrun.reports.status_screen import EVENTS, ROWS, render
from recoverrun.text import Glyphs

LEAST_EVENTS = 4
"""So many stay while replicas fold; below that they make room, too."""

LEAST_ROWS = 3

SIZES = (
    *((ROWS, events) for events in range(EVENTS, LEAST_EVENTS, -1)),
    *((rows, LEAST_EVENTS) for rows in range(ROWS, LEAST_ROWS, -1)),
    *((LEAST_ROWS, events) for events in range(LEAST_EVENTS, 0, -1)),
    (0, 1),
    (0, 0),
)
"""Replicas and events that are shown one by one, from the tallest screen to the smallest."""


def fitted(
    status: Status, signs: Glyphs, console: Console, *, height: int, live: bool = False
) -> RenderableType:
    """The tallest screen of at most `height` lines; of the smallest, its first lines."""
    pages = [_Page(status, signs, live, rows, events) for rows, events in SIZES]
    at = bisect_left(pages, 0, key=lambda page: int(page.height(console) > height) * -1)
    return _Top(pages[min(at, len(pages) - 1)].render(), height)


@dataclass(frozen=True, slots=True)
class _Page:
    status: Status
    signs: Glyphs
    live: bool
    rows: int
    events: int

    def render(self) -> RenderableType:
        return render(self.status, self.signs, live=self.live, rows=self.rows, events=self.events)

    def height(self, console: Console) -> int:
        return len(console.render_lines(self.render(), pad=False))


@dataclass(frozen=True, slots=True)
class _Top:
    """The first lines of something."""

    page: RenderableType
    height: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self.page, options.update(height=None), pad=False)
        for number, line in enumerate(lines[: self.height]):
            if number:
                yield Segment.line()
            yield from line
