"""Shows the script's errors as if we were not in between."""

import io
import sys
from contextlib import nullcontext, redirect_stderr
from types import TracebackType

from ft_collectives.communicators.errors import ScriptFails
from recoverrun.worker import own_files
from recoverrun.worker.boot import shared_console


def hide_our_frames(error: BaseException) -> None:
    """Take our frames out of the traceback of an error and of those that led to it.

    An error of our own keeps them: it is a report about us, and would say nothing without.
    """
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        current = todo.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        if not _is_our_error(current):
            current.__traceback__ = _without_ours(current.__traceback__)
        todo += [current.__cause__, current.__context__]
        if isinstance(current, BaseExceptionGroup):
            todo += current.exceptions


def show(error: BaseException) -> SystemExit:
    """Print an uncaught error as the interpreter does: through `sys.excepthook`.

    What other ranks have printed already on the same console is not printed again. Return how the
    process is to end: with status 1, or as the hook asks for.
    """
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    before = shared_console.told_before(error)
    try:
        # The script's own hook may do more than print.
        with nullcontext() if before is None else redirect_stderr(io.StringIO()):
            sys.excepthook(type(error), error, error.__traceback__)
        shared_console.say(before or "")
    except SystemExit as request:
        return request
    except BaseException as second:
        # Protects the report of the first error from a hook of the script that fails.
        hide_our_frames(second)
        second.__context__ = None
        print("Error in sys.excepthook:", file=sys.stderr)
        sys.__excepthook__(type(second), second, second.__traceback__)
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(type(error), error, error.__traceback__)
    return SystemExit(1)


def _is_ours(tb: TracebackType) -> bool:
    return own_files.has(tb.tb_frame.f_code.co_filename)


def _is_our_error(error: BaseException) -> bool:
    if isinstance(error, ScriptFails):
        return False
    if type(error).__module__.split(".")[0] in {"recoverrun", "rendezvous", "ft_collectives"}:
        return True
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    mistake = isinstance(error, AssertionError | NameError)  # others may be the script's, by us
    return mistake and last is not None and _is_ours(last)


def _without_ours(tb: TracebackType | None) -> TracebackType | None:
    kept: list[TracebackType] = []
    while tb is not None:
        if not _is_ours(tb):
            kept.append(tb)
        tb = tb.tb_next
    following = None
    for entry in reversed(kept):
        entry.tb_next = following
        following = entry
    return following
