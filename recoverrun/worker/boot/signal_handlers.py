"""The script's signal handlers, which must not break off what is ours."""

import signal
import sys
from collections.abc import Callable
from typing import Any

from recoverrun.worker import own_files
from recoverrun.worker.patches.monkeypatch import replace
from recoverrun.worker.step.held_exceptions import HELD, Handler


def hold_exceptions(acting: Callable[[], bool]) -> None:
    """Have the script's handlers called by `HeldExceptions`, which says what `acting` is. The
    script finds its handlers as it has set them.
    """
    HELD.acting = acting
    replace(signal, "signal", _setting)
    replace(signal, "getsignal", _getting)


def _setting(original: Callable[..., Any]) -> Callable[..., Any]:
    def set_handler(signalnum: Any, handler: Any) -> Any:
        if own_files.has(sys._getframe(1).f_code.co_filename):
            return original(signalnum, handler)
        # Torch's own handler tells that a data worker has ended, to whoever waits for its data.
        at_once = signalnum == signal.SIGCHLD or handler is signal.default_int_handler
        held = callable(handler) and not at_once
        return _bare(original(signalnum, Handler(handler) if held else handler))

    return set_handler


def _getting(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_handler(signalnum: Any) -> Any:
        handler = original(signalnum)
        ours = own_files.has(sys._getframe(1).f_code.co_filename)
        return handler if ours else _bare(handler)

    return get_handler


def _bare(handler: Any) -> Any:
    return handler.handler if isinstance(handler, Handler) else handler
