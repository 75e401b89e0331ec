"""Tracebacks that several ranks print, told in full once on the console.

Ranks that fail alike do not fail at one moment, so what `console` folds is not enough. A traceback
is held back until its last line has come; where another rank has told the same one before (but for
numbers), its last line stands for it.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from recoverrun.launcher.output.console_line import ConsoleLine

LINES_MOST = 3
"""Ranks that are shown with a line of their own for a traceback that was told before."""

BLOCK_LINES = 500
"""A longer traceback is shown as it comes."""

_AUTHOR = re.compile(r"^\[rank\d+\]: ?")  # by torch, before each line
_HEAD = "Traceback (most recent call last):"
_BETWEEN = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_DIGITS = re.compile(r"\d+")


class RepeatedTracebacks:
    """The tracebacks of workers that share one stream of the console."""

    def __init__(self) -> None:
        self._open: dict[int, list[ConsoleLine]] = {}  # by rank
        self._told: dict[str, ConsoleLine] = {}  # the first line of each, as the first rank told it
        self._again: dict[str, int] = {}
        self._left_out: set[int] = set()  # ranks whose last traceback was

    def sift(self, lines: Sequence[ConsoleLine], *, last: bool) -> list[ConsoleLine]:
        """The lines to be shown now; `last`: there will be no more."""
        shown: list[ConsoleLine] = []
        for line in lines:
            text = _AUTHOR.sub("", line.text)
            block = self._open.get(line.rank)
            if block is not None:
                block.append(line)
                if (text.strip() and not text[0].isspace()) or len(block) >= BLOCK_LINES:
                    shown += self._close(line.rank)
            elif text == _HEAD:
                self._open[line.rank] = [line]
            elif line.rank not in self._left_out or (text.strip() and text not in _BETWEEN):
                self._left_out.discard(line.rank)
                shown.append(line)
        for rank in list(self._open) if last else ():
            shown += self._close(rank)
        return shown

    def _close(self, rank: int) -> list[ConsoleLine]:
        """A traceback has come to its end."""
        block = self._open.pop(rank)
        key = "\n".join(_DIGITS.sub("#", line.text) for line in block)
        first = self._told.setdefault(key, block[0])
        self._left_out.discard(rank)
        if first.rank == rank:
            return block  # A rank that repeats itself is repeated.
        self._left_out.add(rank)
        self._again[key] = self._again.get(key, 0) + 1
        if self._again[key] > LINES_MOST:
            return []
        words = f"{block[-1].text} (traceback as of rank {first.rank})"
        return [replace(block[-1], text=words)]
