"""Forked processes: those of the script, data workers above all, and ours, for proofs."""

import os
import sys
from collections.abc import Callable
from typing import Any

from recoverrun.worker import own_files
from recoverrun.worker.patches.monkeypatch import replace
from recoverrun.worker.rewriting.project import is_installed
from recoverrun.worker.tracking.script_runtime import ScriptRuntime


def forget_in_children(runtime: ScriptRuntime) -> None:
    """Be inert in children of the script, which are no ranks. What another rank's code begins goes
    on under that rank's number.
    """
    os.register_at_fork(after_in_child=runtime.mode.forked)
    os.register_at_fork(after_in_child=runtime.progress.detach)


def call_handlers_for_the_scripts_forks() -> None:
    """Call what the script gives to `os.register_at_fork` for its own forks, and not for ours, of
    which it must notice nothing. Handlers of installed packages are called for all: they keep locks
    and pools whole in a child.
    """
    replace(os, "register_at_fork", _registering)


def _registering(original: Callable[..., None]) -> Callable[..., None]:
    def register_at_fork(**handlers: Any) -> None:
        if not is_installed(_file_of_caller(1)):
            handlers = {name: _heard_by_the_script(one) for name, one in handlers.items()}
        original(**handlers)

    return register_at_fork


def _heard_by_the_script(handler: Any) -> Any:
    if not callable(handler):
        return handler  # the original refuses it

    def handle() -> None:
        # A handler has the frame below it that called `os.fork`.
        if not own_files.has(_file_of_caller(1)):
            handler()

    return handle


def _file_of_caller(depth: int) -> str:
    """The file of the frame `depth` above the function that asks."""
    return sys._getframe(depth + 1).f_code.co_filename
