"""The stacks of ranks that stood still, as a screen of `status`."""

import re
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from recoverrun.reports.hang_stacks import HangStack
from recoverrun.reports.screen_style import QUIET, STRONG, cut, frame, words
from recoverrun.text import Glyphs

NONE = "no stacks are kept: launchers leave them where a rank keeps others waiting (docs/hangs.md)"

_PLACE = re.compile(r'(?<=File ")/.*/(?=[^/"]+/[^/"]+/[^/"]+")')
"""The beginning of a long path: lines and functions have to fit beside the rest of it."""


def stack_page(stacks: Sequence[HangStack], signs: Glyphs, *, height: int) -> RenderableType:
    """The newest stacks in `height` lines; what does not fit is told with its path."""
    room = max(1, height - 4)
    lines: list[Text] = []
    left = list(stacks)
    while left:
        stack = left[0]
        body = [line for line in stack.text.splitlines() if line.strip()]
        if lines and len(lines) + len(body) + 2 > room:
            break
        lines.append(Text(f"hang {stack.hang}, rank {stack.rank}", style=STRONG))
        lines += [_line(line, signs) for line in body[: max(1, room - len(lines) - 1)]]
        left.pop(0)
    if not stacks:
        lines.append(words(NONE, QUIET, signs))
    if left:
        lines.append(words(f"and {len(left)} more, from {left[0].path}", QUIET, signs))
    keys = Text(" s  back    q  leave", style=QUIET)
    for line in lines:
        line.no_wrap, line.overflow = True, cut(signs)
    return Group(frame(Group(*lines[:room]), "stacks of ranks that stood still", signs), keys)


def _line(line: str, signs: Glyphs) -> Text:
    """One line of a stack, with its indent and the end of its path."""
    indent = len(line) - len(line.lstrip())
    short = _PLACE.sub(f"{signs.ellipsis}/", line)
    return Text(" " * min(8, indent)).append_text(words(short, "", signs))
