"""The table of where a run's time went, for `postmortem`: it adds up to all of it."""

from rich.text import Text

from recoverrun.reports.goodput import Goodput, ratios_line, rows
from recoverrun.reports.screen_style import GOOD, QUIET, REDUCED, cut, words
from recoverrun.text import Glyphs, span

BAR, FROM = 20, 100
"""Columns of a bar that means all of the time, where the page has so many."""


def time_table(goodput: Goodput, signs: Glyphs, columns: int) -> Text:
    """A line for each kind of time, as wide as `columns`; the last one is their sum."""
    shown, bars = rows(goodput), BAR if columns >= FROM else 0
    wide = max(len(row.name) for row in shown)
    lines = []
    for row in shown:
        tone = GOOD if row.name == "useful" else REDUCED
        line = Text(f"  {row.name.ljust(wide)}  {span(row.us / 1e6):>7}  {row.share:>7}  ")
        if bars:
            bar = signs.bar * round(bars * row.us / goodput.wall_us)
            line.append(f"{bar.ljust(bars)}  ", style=tone)
        line.append_text(words(row.meaning, QUIET, signs))
        line.truncate(columns, overflow=cut(signs))
        line.rstrip()
        lines.append(line)
    whole = Text(f"  {'sum'.ljust(wide)}  {span(goodput.wall_us / 1e6):>7}  100.0 %", style=QUIET)
    ratios = Text("  useful: ").append_text(words(ratios_line(goodput), "", signs))
    return Text("\n").join([*lines, whole, ratios])
