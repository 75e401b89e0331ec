"""A script may give up the rights of the user that started it (`os.setuid`). From then on the
launcher cannot be reached anew, as its folder is that user's alone. What is connected and open by
then stays so: all that may be needed later is connected and opened before.
"""

import functools
import os
from collections.abc import Callable
from typing import Any

from recoverrun.worker.patches.monkeypatch import replace

NAMES = "setuid", "seteuid", "setreuid", "setresuid"


def watch(before: Callable[[], None]) -> None:
    """Have `before` called as the script is about to become another user."""
    for name in NAMES:
        replace(os, name, functools.partial(_preceded, before))


def _preceded(before: Callable[[], None], original: Callable[..., Any]) -> Callable[..., Any]:
    own, user = os.getpid(), os.geteuid()

    def wrapper(*ids: int) -> Any:
        # A child of the script's has no launcher; who is another user already cannot connect.
        if (os.getpid(), os.geteuid()) == (own, user):
            before()
        return original(*ids)

    return wrapper
