"""One error of many ranks on the one console that they share: told in full once.

Which ranks had the same error is in the launcher's report, and each traceback as a whole is in the
file that its rank leaves. A rank whose errors go to a file of its own writes all of it there.
"""

import os
import re
import sys
import traceback
from hashlib import blake2b
from pathlib import Path

LINES_MOST = 3
"""Ranks that tell an error at the same place in a line: its numbers are others than the first's."""

_DIGITS = re.compile(r"\d+")


def told_before(error: BaseException) -> str | None:
    """Return what is left to be said where another rank has told this error already, else None.

    Ranks, ports and rows differ from rank to rank, and the error is the same.
    """
    context = os.environ.get("RECOVERRUN_CONTEXT", "")
    if not context or not _is_shared():
        return None
    whole = "".join(traceback.format_exception(error))
    last = traceback.format_exception_only(error)[-1].strip()
    digest = blake2b(_DIGITS.sub("#", whole).encode(errors="replace"), digest_size=8).hexdigest()
    attempt = os.environ.get("RECOVERRUN_INCARNATION", "")
    for place in range(LINES_MOST + 1):
        path = Path(context).with_name(f"told.{attempt}.{digest}.{place}")
        try:
            with path.open("x", encoding="utf-8", errors="replace") as file:
                file.write(last)
        except FileExistsError:
            if _read(path) == last:
                return ""
        except OSError:
            return None  # Better twice than never.
        else:
            return f"{last} (at the same place as another rank)" if place else None
    return ""


def say(words: str) -> None:
    """Print a line of this rank, if there are any words."""
    if words:
        # In one call: a worker has no buffer, and other ranks write to the same place.
        sys.stderr.write(f"[rank{os.environ.get('RANK', '?')}]: {words}\n")
        sys.stderr.flush()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _is_shared() -> bool:
    """True if what this process writes to stderr goes where the launcher's goes."""
    try:
        ours, theirs = os.fstat(2), os.stat(f"/proc/{os.getppid()}/fd/2")
    except OSError:
        return False
    return os.path.samestat(ours, theirs)
