"""Lets nothing that a forked child writes arrive: files it opens are its own only for reading.

Descriptors that it inherits are the business of `forked_child`. What is opened by name to be
written leads nowhere instead, and what would change a folder does nothing: code that logs each of
its microbatches runs as it does in its parent, and nobody sees a second one. Who kept one of these
functions under a name of his own is refused.
"""

import builtins
import errno
import io
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any

import torch

WRITES = frozenset("wax+")
"""Letters of a mode that mean more than to read."""

FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

CHANGES = {
    os: (
        "chmod", "chown", "link", "makedirs", "mkdir", "mkfifo", "remove", "removedirs", "rename",
        "renames", "replace", "rmdir", "symlink", "truncate", "unlink", "utime",
    ),
    shutil: ("copy", "copy2", "copyfile", "copymode", "copystat", "copytree", "move", "rmtree"),
    torch: ("save",),
}  # fmt: skip
"""What changes files or folders by their names."""


EVENTS = frozenset(
    f"os.{name}"
    for name in (
        "chmod", "chown", "link", "mkdir", "remove", "rename", "rmdir", "symlink", "truncate",
        "utime",
    )
)  # fmt: skip
"""Of `sys.addaudithook`."""

OWN = "/pymp-"
"""Folders of Python's multiprocessing, where a loader's worker process waits to be asked."""


def lead_nowhere() -> None:
    """Discard writes from now on, in this process and its children."""
    builtins.open = io.open = _reading(io.open)
    os.open = _reading_only(os.open)
    for module, names in CHANGES.items():
        for name in names:
            setattr(module, name, _doing_nothing(getattr(module, name)))
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        path, _, flags = arguments
        harmless = isinstance(path, int) or path == os.devnull or not flags & FLAGS
    else:
        harmless = event not in EVENTS
    if not harmless and OWN not in str(arguments[0]):
        raise OSError(errno.EROFS, "a copy of a process may not change files", str(arguments[0]))


def _doing_nothing(original: Callable[..., Any]) -> Any:
    def do_nothing(*args: Any, **kwargs: Any) -> Any:
        if args and OWN in str(args[0]):
            return original(*args, **kwargs)
        return None

    return do_nothing


def _reading(original: Callable[..., Any]) -> Any:
    def open_for_reading(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        named = not isinstance(file, int)  # a descriptor leads somewhere already
        inside = named and WRITES & set(mode)
        return original(os.devnull if inside else file, mode.replace("x", "w"), *args, **kwargs)

    return open_for_reading


def _reading_only(original: Callable[..., Any]) -> Any:
    def open_for_reading(path: Any, flags: int, *args: Any, **kwargs: Any) -> Any:
        if flags & FLAGS:
            return original(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        return original(path, flags, *args, **kwargs)

    return open_for_reading
