"""The pictures of what something consists of: the time of a run, of a recovery, of a return."""

from collections.abc import Sequence

from recoverrun.reports.drawing import WIDTH, Drawing, tick, ticks
from recoverrun.reports.goodput import Goodput, rows
from recoverrun.reports.postmortem import LossReport
from recoverrun.reports.returns import ReturnWay
from recoverrun.text import span

BARS = 24
"""Losses and returns that have a bar, the longest."""

LEFT, RIGHT, PITCH, HIGH = 150.0, 84.0, 24.0, 14.0

LETTER = 7.5
"""As wide as the letters on a bar are at most, on the average."""

Parts = Sequence[tuple[str, float]]
"""(class of the style sheet, length) of each part."""


def waterfall(goodput: Goodput) -> str:
    """All of the time in one bar."""
    drawing, x = Drawing(34, "where the time went"), 0.0
    for row in rows(goodput):
        wide = WIDTH * row.us / goodput.wall_us
        title = f"{row.name}: {span(row.us / 1e6)}, {row.share}"
        drawing.box(x, 2, wide, 30, f"b-{row.name}", title=title)
        said = f"{row.name} {row.share}"
        if wide > LETTER * len(said) + 20:
            drawing.text(x + 10, 22, said, "on")
        x += wide
    return drawing.markup()


def recovery_bars(losses: Sequence[LossReport]) -> str:
    """The parts of each recovery, one bar each; "" without any."""
    first = {id(loss.cause.recovery): loss for loss in reversed(losses) if loss.total_ms >= 0}
    known = sorted(first.values(), key=lambda loss: -loss.total_ms)[:BARS]
    shown = sorted(known, key=lambda loss: loss.number)
    bars = []
    for loss in shown:
        parts = [(f"r-{part}", ms) for part, ms in loss.parts_ms]
        parts.append(("r-between", max(0.0, loss.total_ms - sum(ms for _, ms in loss.parts_ms))))
        bars.append((f"#{loss.number} step {loss.step}", parts))
    return _bars(bars, "parts of recoveries")


def return_bars(ways: Sequence[ReturnWay]) -> str:
    """Bars from each loss to the return: processes start, wait, and others are held; "" without
    any.
    """
    back = [way for way in ways if way.lost_for_s >= 0 and way.started and way.ready]
    known = sorted(back, key=lambda way: -way.lost_for_s)[:BARS]
    bars = []
    for way in sorted(known, key=lambda way: way.back):
        waited = 1000 * max(0.0, way.joined - way.ready)
        held = min(waited, max(0.0, way.hold_ms))
        parts = [
            ("a-down", 1000 * max(0.0, way.started - way.lost)),
            ("a-start", 1000 * max(0.0, way.ready - way.started)),
            ("a-wait", waited - held),
            ("a-held", held),
            ("a-first", 1000 * max(0.0, way.back - way.joined)),
        ]
        bars.append((f"replica {way.slot} step {way.step}", parts))
    return _bars(bars, "parts of returns")


def _bars(bars: Sequence[tuple[str, Parts]], label: str) -> str:
    """Bars below each other, of one scale in milliseconds."""
    longest = max((sum(length for _, length in parts) for _, parts in bars), default=0.0)
    if not longest:
        return ""
    room = WIDTH - LEFT - RIGHT
    drawing = Drawing(PITCH * len(bars) + 24, label)
    foot = PITCH * len(bars) + 4
    for value in ticks(0, longest, 6):
        x = LEFT + room * value / longest
        drawing.line(x, 0, x, foot, "grid")
        drawing.text(x, foot + 15, tick(value / 1000), anchor="middle")
    for row, (name, parts) in enumerate(bars):
        y, x = PITCH * row + (PITCH - HIGH) / 2, LEFT
        drawing.text(LEFT - 8, y + HIGH - 3, name, anchor="end")
        for kind, length in parts:
            wide = room * length / longest
            said = f"{kind.partition('-')[2]} {span(length / 1000)}"
            drawing.box(x, y, wide, HIGH, kind, title=said)
            x += wide
        whole = sum(length for _, length in parts)
        drawing.text(x + 6, y + HIGH - 3, span(whole / 1000), "t strong")
    return drawing.markup()
