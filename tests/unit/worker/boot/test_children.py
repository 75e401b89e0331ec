"""Handlers of forks are called for the script's forks, and not for ours."""

import os
from collections.abc import Callable
from typing import Any

from recoverrun.worker.boot import children

Handlers = dict[str, Callable[[], None]]


def registered(by: str, heard: list[str]) -> Handlers:
    """The handlers that Python gets of a file `by` which registers one."""
    given: Handlers = {}
    register = children._registering(lambda **handlers: given.update(handlers))
    code = compile("register(before=lambda: heard.append('before'))", by, "exec")
    exec(code, {"register": register, "heard": heard})
    return given


def fork_of(file: str, handlers: Handlers) -> None:
    exec(compile("before()", file, "exec"), dict(handlers))


def test_a_scripts_handler_is_called_for_forks_of_all_but_us() -> None:
    heard: list[str] = []
    handlers = registered("/project/train.py", heard)

    fork_of(children.__file__, handlers)
    assert heard == []

    fork_of("/project/train.py", handlers)
    fork_of(os.__file__, handlers)
    assert heard == ["before", "before"]


def test_a_handler_of_a_package_is_called_for_ours_too() -> None:
    heard: list[str] = []
    handlers = registered("/venv/lib/python3.11/site-packages/grpc/forks.py", heard)

    fork_of(children.__file__, handlers)

    assert heard == ["before"]


def test_what_cannot_be_called_is_left_to_python() -> None:
    given: dict[str, Any] = {}
    register = children._registering(lambda **handlers: given.update(handlers))

    register(before=3)

    assert given == {"before": 3}
