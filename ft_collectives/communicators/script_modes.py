"""Modes of torch that the script is in, and how we stay out of them.

In a `TorchFunctionMode` or a `TorchDispatchMode` a script hears of all that is asked of torch: it
counts operations, or changes them. What we ask of torch is none of the script's: it is done aside
of all modes. Code of the script that is executed again is in the modes that it was in.
"""

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple, ParamSpec, TypeVar

from torch._C import (
    _get_dispatch_stack_at,
    _get_function_stack_at,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
)
from torch.overrides import _pop_mode as pop_function_mode
from torch.overrides import _push_mode as push_function_mode
from torch.overrides import handle_torch_function
from torch.utils._python_dispatch import _pop_mode as pop_dispatch_mode
from torch.utils._python_dispatch import _push_mode as push_dispatch_mode

P = ParamSpec("P")
T = TypeVar("T")


class Modes(NamedTuple):
    """The modes of a thread, the outermost first."""

    function: tuple[Any, ...] = ()
    dispatch: tuple[Any, ...] = ()


class _Aside(threading.local):
    """The modes of the script that this thread stays out of, None while it is in them."""

    modes: Modes | None = None


_ASIDE = _Aside()


def of_script() -> Modes:
    """Return the modes that the script is in, in this thread."""
    return _ASIDE.modes if _ASIDE.modes is not None else _present()


def _present() -> Modes:
    function = [_get_function_stack_at(i) for i in range(_len_torch_function_stack())]
    dispatch = [_get_dispatch_stack_at(i) for i in range(_len_torch_dispatch_stack())]
    return Modes(tuple(function), tuple(dispatch))


def aside(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function of ours that asks torch for something: it is in no mode of the script."""

    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        if not _len_torch_function_stack() and not _len_torch_dispatch_stack():
            return function(*args, **kwargs)
        modes = _present()
        with _exactly(Modes(), modes):
            return function(*args, **kwargs)

    functools.update_wrapper(wrapper, function)
    return wrapper


def outermost(wrapper: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`wrapper` for a function of torch that asks modes first (`torch.overrides`). The mode calls
    it again, by its public name and with one mode less: that call is not wrapped once more.
    """

    def make(original: Any) -> Any:
        asking = _Asking()

        def asked(*args: Any, **kwargs: Any) -> Any:
            before, asking.depth = asking.depth, _len_torch_function_stack()
            try:
                return original(*args, **kwargs)
            finally:
                asking.depth = before

        made = wrapper(functools.update_wrapper(asked, original))

        def stand_in(*args: Any, **kwargs: Any) -> Any:
            again = _len_torch_function_stack() < asking.depth
            return (original if again else made)(*args, **kwargs)

        return stand_in

    return make


class _Asking(threading.local):
    """The number of modes as a function of torch was called that asks them."""

    depth = 0


def caller_of(frame: FrameType) -> FrameType:
    """The frame that calls a wrapper, which runs in `frame` or in what `outermost` makes of it."""
    while frame.f_globals is globals() and frame.f_back is not None:
        frame = frame.f_back
    return frame


def is_mode_asked(frame: FrameType) -> bool:
    """True if torch asks a mode there."""
    return frame.f_code is handle_torch_function.__code__


@contextmanager
def within(modes: Modes) -> Iterator[None]:
    """Code of the script runs in these modes, and in no others."""
    with _exactly(modes, None):
        yield


@contextmanager
def _exactly(modes: Modes, left: Modes | None) -> Iterator[None]:
    """Run in these modes alone; those that the script is in are `left` then."""
    before, kept = _present(), _ASIDE.modes
    _change(before, modes)
    _ASIDE.modes = left
    try:
        yield
    finally:
        _ASIDE.modes = kept
        _change(_present(), before)


def _change(present: Modes, wanted: Modes) -> None:
    for _ in present.function:
        pop_function_mode()
    for _ in present.dispatch:
        pop_dispatch_mode()
    for mode in wanted.function:
        push_function_mode(mode)
    for mode in wanted.dispatch:
        push_dispatch_mode(mode)
