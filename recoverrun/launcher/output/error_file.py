"""The traces of a worker for people: its streams and its last words.

The streams are inherited and never touched: what the script prints arrives as it printed it, in its
order, also when it draws on a terminal. So there is no copy to quote from; the last words of a
worker that failed come from the error file that its hooks (or torch's @record) write, in torchrun's
form. Such a file was written by somebody else: it is bounded, and shown without control characters.
"""

import json
import math
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from recoverrun.text import sanitize

LIMIT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LastWords:
    """The exception that ended a worker: one line, and the lines of its traceback.

    `written_at`: on the monotonic clock that all processes of this machine share, -1 if not said.
    `changed_at`: when the file was changed, by the wall clock; 0 where there is nothing in it.
    """

    error: str
    traceback: tuple[str, ...]
    written_at: float = -1.0
    changed_at: float = field(default=0.0, compare=False)


NONE = LastWords("", ())


def last_words(error_file: str) -> LastWords:
    """The content of the error file; empty if there is none, or none that can be read."""
    try:
        with Path(error_file).open("rb") as file:
            changed_at = os.fstat(file.fileno()).st_mtime
            content = json.loads(file.read(LIMIT_BYTES))
    except (OSError, ValueError, RecursionError):
        return NONE
    message = content.get("message") if isinstance(content, dict) else None
    if isinstance(message, str):
        return LastWords(_line(message), (), changed_at=changed_at)
    if not isinstance(message, dict):
        return NONE
    extra = message.get("extraInfo")
    stack = extra.get("py_callstack") if isinstance(extra, dict) else None
    lines = stack.splitlines() if isinstance(stack, str) else []
    text = message.get("message")
    at = extra.get("monotonic") if isinstance(extra, dict) else None
    return LastWords(
        _line(text if isinstance(text, str) else ""),
        tuple(map(_indented, lines)),
        float(at) if isinstance(at, float) and math.isfinite(at) else -1.0,
        changed_at,
    )


def hand_on(error_file: Path | None, target: str, exit_code: int, reason: str) -> None:
    """Leave the cause of a job's end in `target`, for whoever started this launcher and waits.

    It is the root rank's own file with the job's exit code in it, as torchrun has it; where that
    rank left none, or is on another node, `reason` stands in.
    """
    content: dict[str, object] = {}
    if error_file is not None:
        with suppress(OSError, ValueError, RecursionError):
            found = json.loads(error_file.read_bytes()[:LIMIT_BYTES])
            content = found if isinstance(found, dict) else {}
    message = content.setdefault("message", {"message": reason})
    if isinstance(message, dict):
        message["errorCode"] = exit_code
    with suppress(OSError), open(target, "w", encoding="utf-8") as file:
        json.dump(content, file)


def _line(text: str) -> str:
    """The first line that says anything."""
    lines = [line for line in text.splitlines() if line.strip()]
    return sanitize(lines[0]) if lines else ""


def _indented(line: str) -> str:
    line = line.expandtabs(4)
    return " " * min(40, len(line) - len(line.lstrip(" "))) + sanitize(line)
