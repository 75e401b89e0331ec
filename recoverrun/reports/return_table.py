"""The table of lost replicas that were started again, for `postmortem`: when, how far, how fast."""

from collections.abc import Sequence

from rich.text import Text

from recoverrun.reports.returns import ReturnWay
from recoverrun.reports.screen_style import QUIET, REDUCED, time_of_day, words
from recoverrun.text import Glyphs, ranges, ranks, span

HEADS = ("when", "replica", "ranks", "ready after", "at step", "back after", "others held")


def return_table(shown: Sequence[ReturnWay], signs: Glyphs, utc_offset_s: int) -> Text:
    """A line for each way back; below one that led nowhere, why."""
    rows = [way_cells(way, utc_offset_s, signs.dash) for way in shown]
    wide = [max(map(len, column)) for column in zip(HEADS, *rows, strict=True)]
    lines = [Text(_aligned(HEADS, wide), style=QUIET)]
    for way, row in zip(shown, rows, strict=True):
        lines.append(Text(_aligned(row, wide), style=REDUCED if way.state == "ended" else ""))
        if way.back:
            lines.append(words(told_parts(way), QUIET, signs))
        if way.why:
            lines.append(words(f"did not come back: {way.why}", QUIET, signs))
    return Text("\n").join(Text("  ").append_text(line) for line in lines)


def told_parts(way: ReturnWay) -> str:
    """The parts of a way back, in words, and who gave it what."""
    parts = [f"{name} {span(ms / 1000)}" for name, ms in way.parts_ms]
    if way.parts.sources:
        size = way.parts.size / 1_000_000
        parts.append(f"{size:.1f} MB from {ranks(way.parts.sources)}")
    return " · ".join(parts)


def way_cells(way: ReturnWay, utc_offset_s: int, none: str) -> tuple[str, ...]:
    """One way back, below `HEADS`; `none` stands for what is not known."""
    begun = way.started or way.ready or way.joined
    known = way.started and way.ready
    return (
        time_of_day(begun, utc_offset_s),
        str(way.slot),
        f"r{ranges(way.ranks)}",
        span(max(0.0, way.ready - way.started)) if known else none,
        str(way.step) if way.joined else none,
        span(way.lost_for_s) if way.lost_for_s >= 0 else none,
        span(way.hold_ms / 1000) if way.hold_ms >= 0 else none,
    )


def _aligned(row: Sequence[str], wide: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(row, wide, strict=True)).rstrip()
