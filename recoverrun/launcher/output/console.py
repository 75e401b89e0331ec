"""Lines of many workers on one console: who said it, once where all say the same, nothing harmful.

Workers write to files of their own and never wait for us; what they append is read here and shown.
The files keep every byte as it was. On the console a line begins with its author; what many ranks
say at the same moment is shown once; and characters that would steer a terminal are taken out,
colours excepted.
"""

import os
import re
import unicodedata
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from recoverrun.launcher.output.console_line import ConsoleLine
from recoverrun.launcher.output.repeated_tracebacks import RepeatedTracebacks

LOOK_S = 0.1
"""How often files are looked at while their workers run."""

CHUNK_BYTES = 1 << 20
LINE_BYTES = 64 << 10
"""A longer line is shown in parts."""

FOLD_FROM = 4
"""As many ranks have to say the same before it is shown once."""

_HARMFUL = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_STEERING = re.compile(
    r"\x1b\[(?![0-9;]*m)[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)?|\x1b[@-Z\\^_]"
)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def printable(text: str) -> str:
    """`text` without what would move the cursor or hide something; colours and tabs stay."""
    text = _STEERING.sub("", text.rstrip("\r").rpartition("\r")[2])
    if text.isprintable():
        return text
    parts = _COLOURS.split(text)
    colours = [*_COLOURS.findall(text), ""]
    safe = "".join(f"{_safe(part)}{colour}" for part, colour in zip(parts, colours, strict=True))
    return f"{safe}\x1b[0m" if len(colours) > 1 else safe


def _safe(text: str) -> str:
    return "".join(
        "\ufffd" if unicodedata.category(char) in _HARMFUL and char != "\t" else char
        for char in text
    )


def folded(lines: Sequence[ConsoleLine], many: int = FOLD_FROM) -> list[str]:
    """The lines for the console; what `many` ranks say is shown once, where the first said it."""
    speakers: dict[str, set[int]] = {}
    for line in lines:
        if line.text.strip():
            speakers.setdefault(line.text, set()).add(line.rank)
    shown: list[str] = []
    said: set[str] = set()
    for line in lines:
        ranks = speakers.get(line.text, set())
        if len(ranks) < many:
            shown.append(f"{line.prefix}{printable(line.text)}")
        elif line.text not in said:
            said.add(line.text)
            first = line.prefix.rstrip("│ ")
            shown.append(f"[{len(ranks)} ranks]│ {printable(line.text)}  (folded, first {first})")
    return shown


class OutputTail:
    """Reads what is appended to one worker's file."""

    def __init__(
        self, *, path: Path, rank: int, prefix: str, label: str, words: tuple[str, ...]
    ) -> None:
        """`prefix` is for the console, `label` for copies."""
        self.rank = rank
        self.prefix = prefix
        self.label = label
        self.words = words  # lines with one of them are copied
        self._path = path
        self._file: BinaryIO | None = None
        self._rest = b""

    def lines(self, *, last: bool) -> list[ConsoleLine]:
        """Whole lines that are new; with `last` also one that has no end."""
        if self._file is None:
            try:
                self._file = self._path.open("rb")
            except OSError:
                return []
        data = self._rest + self._file.read(CHUNK_BYTES)
        *whole, self._rest = data.split(b"\n")
        if len(self._rest) > LINE_BYTES or (last and self._rest):
            whole.append(self._rest)
            self._rest = b""
        texts = (line.decode(errors="replace") for line in whole)
        return [ConsoleLine(self.rank, self.prefix, text) for text in texts]

    @property
    def behind(self) -> bool:
        """True if there is more than was read."""
        if self._file is None:
            return self._path.exists() and self._path.stat().st_size > 0
        return os.fstat(self._file.fileno()).st_size > self._file.tell()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class Console:
    """All tails of one stream of this launcher's workers; `write` takes whole lines."""

    def __init__(self, write: Callable[[bytes], None], copies: Path | None) -> None:
        self._write = write
        self._copies = copies  # where lines with the wanted words go
        self._tails: list[OutputTail] = []
        self._repeated_tracebacks = RepeatedTracebacks()

    @property
    def idle(self) -> bool:
        return not self._tails

    def watch(self, tail: OutputTail) -> None:
        self._tails.append(tail)

    def pump(self, *, last: bool = False) -> None:
        """Show what is new; `last`: all of it, and forget the files."""
        while self._show(last=last) and last:
            pass
        if last:
            for tail in self._tails:
                tail.close()
            self._tails.clear()

    def _show(self, *, last: bool) -> bool:
        """True if there may be more."""
        lines: list[ConsoleLine] = []
        copied: list[str] = []
        for tail in self._tails:
            behind = last and tail.behind
            new = tail.lines(last=last and not behind)
            lines += new
            copied += [
                f"{tail.label}{line.text}\n"
                for line in new
                if any(word in line.text for word in tail.words)
            ]
        more = any(tail.behind or tail._rest for tail in self._tails)
        for text in folded(self._repeated_tracebacks.sift(lines, last=last and not more)):
            self._write(text.encode(errors="replace") + b"\n")
        if copied and self._copies is not None:
            with suppress(OSError), self._copies.open("a") as file:
                file.writelines(copied)
        return more


def write_to(fd: int) -> Callable[[bytes], None]:
    """A writer of whole lines; that nobody reads any more must not end the job."""

    def write(data: bytes) -> None:
        with suppress(OSError):
            while data:
                data = data[os.write(fd, data) :]

    return write
