"""Common parts of all screens: colours, the characters of a console, panels, text that is safe to
print.

Colour means state: green in order, yellow reduced, red lost. Everything else is the terminal's own
foreground or dim.
"""

import time
from typing import Literal

from rich import box
from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.text import Text

from recoverrun.text import ASCII, UNICODE, Glyphs, ascii_only, sanitize

GOOD, REDUCED, BAD, QUIET, STRONG = "green", "yellow", "red", "bright_black", "bold"


def glyphs(console: Console) -> Glyphs:
    """The characters that this console can carry."""
    return ASCII if console.options.ascii_only else UNICODE


def frame(body: RenderableType, title: str, signs: Glyphs) -> Panel:
    """Our panel: quiet border, title at the left."""
    shape = box.ROUNDED if signs is UNICODE else box.ASCII
    heading = Text(title, style=QUIET)
    return Panel(body, title=heading, title_align="left", border_style=QUIET, box=shape)


def words(text: str, style: str, signs: Glyphs) -> Text:
    """Text from a journal, safe to print: no escapes, no markup, ASCII where it must be."""
    clean = sanitize(text)
    return Text(clean if signs is UNICODE else ascii_only(clean), style=style)


def cut(signs: Glyphs) -> Literal["ellipsis", "crop"]:
    """The end of a line that is too long: rich has no ellipsis in ASCII."""
    return "ellipsis" if signs is UNICODE else "crop"


def time_of_day(ts: float, utc_offset_s: int) -> str:
    """hh:mm:ss of an instant in the zone of the reader."""
    return time.strftime("%H:%M:%S", time.gmtime(ts + utc_offset_s))
