"""A script may put another program in the place of its process (`os.exec*`): itself once more, with
other variables, or a command. Python started for a script, before torch is imported, is started as
our worker again. Any other program runs without protection, and the log says so.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from recoverrun.worker.patches.monkeypatch import replace
from rendezvous.protocol.worker_env import ENDPOINT

WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")
ALONE = frozenset("bBdEiIOPqRsSuvx")
"""Options of Python that leave it to run a script."""

OURS = ("-m", "recoverrun.worker")

Tell = Callable[[str], None]


def watch(is_begun: Callable[[], bool], tell: Tell) -> None:
    """See each program that takes the place of this process. `is_begun` is true once recovery has
    spoken for it; `tell` gives a sentence to the log.
    """
    own = os.getpid()

    def instead(program: Any, arguments: Sequence[Any], env: Mapping[Any, Any]) -> Sequence[Any]:
        if os.getpid() != own or not os.access(program, os.X_OK):
            return (
                arguments  # a child of the script's, or a folder of PATH that has no such program
            )
        followed = None
        if not is_begun() and env.get(ENDPOINT) == os.environ.get(ENDPOINT):
            followed = as_worker(program, arguments)
        if followed is None:
            name = os.path.basename(os.fsdecode(program))
            tell(f"the script put {name} in the place of its process")
        return arguments if followed is None else followed

    def execv(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda path, argv: original(path, instead(path, argv, os.environ))

    def execve(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda path, argv, env: original(path, instead(path, argv, env), env)

    replace(os, "execv", execv)
    replace(os, "execve", execve)


def as_worker(program: Any, arguments: Sequence[Any]) -> list[str] | None:
    """The command line with which the same Python runs the same script as our worker; None if it
    runs none.
    """
    if not isinstance(program, str | bytes | os.PathLike) or not _is_this_python(program):
        return None
    if not all(isinstance(one, str | bytes | os.PathLike) for one in arguments):
        return None
    words = [os.fsdecode(one) for one in arguments]
    at = 1
    while at < len(words) and (words[at] in WITH_VALUE or _is_alone(words[at])):
        at += 2 if words[at] in WITH_VALUE else 1
    target = words[at : at + 1]
    if not target or (target[0].startswith("-") and target != ["-m"]):
        return None
    return [*words[:at], *OURS, *words[at:]]


def _is_alone(word: str) -> bool:
    return len(word) > 1 and word[0] == "-" and ALONE.issuperset(word[1:])


def _is_this_python(program: Any) -> bool:
    """True of the interpreter of this environment, by whichever of its names."""
    path, ours = os.fsdecode(program), sys.executable
    same = os.path.realpath(path) == os.path.realpath(ours)
    return same and os.path.dirname(os.path.abspath(path)) == os.path.dirname(ours)
