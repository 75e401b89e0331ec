"""Modes of the script do not hear of our own calls of torch."""

import sys
import threading
from contextlib import ExitStack
from typing import Any, cast

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ft_collectives.communicators.script_modes import (
    Modes,
    aside,
    caller_of,
    of_script,
    outermost,
    within,
)


class Function(TorchFunctionMode):
    def __init__(self) -> None:
        self.heard = 0

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.heard += 1
        return function(*args, **(kwargs or {}))


class Dispatch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.heard = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.heard += 1
        return function(*args, **(kwargs or {}))


def ask() -> None:
    torch.ones(2).add(1)


def test_modes_hear_of_nothing_that_is_done_aside() -> None:
    with Function() as function, Dispatch() as dispatch:
        aside(ask)()
        before = function.heard, dispatch.heard
        ask()

    assert before == (0, 0)
    assert function.heard and dispatch.heard, "they are there again"


def test_an_error_leaves_the_script_in_its_modes() -> None:
    def fails() -> None:
        raise RuntimeError("ours")

    with Function() as function:
        with pytest.raises(RuntimeError, match="ours"):
            aside(fails)()
        ask()

    assert function.heard


def test_modes_of_the_script_are_known_aside_of_them() -> None:
    with Function() as outer, Function() as inner, Dispatch() as dispatch:
        known = aside(aside(of_script))()

    assert known == Modes((outer, inner), (dispatch,))
    assert of_script() == Modes()


def test_code_of_the_script_is_in_its_modes_and_what_it_calls_of_ours_is_not() -> None:
    with Function() as outer:
        modes = of_script()

        def executed() -> Modes:
            with Function() as inner, within(modes):
                ask()
                aside(ask)()
                assert not inner.heard
                return of_script()

        then = aside(executed)()

    assert (then, outer.heard) == (modes, 2)


def test_modes_that_wrap_each_other_keep_their_order() -> None:
    heard = []

    class Named(Function):
        def __init__(self, name: str) -> None:
            self.name = name

        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            heard.append(self.name)
            return function(*args, **(kwargs or {}))

    with Named("outer"), Named("inner"):
        aside(ask)()
        torch.ones(1)

    assert heard == ["inner", "outer"]


def test_another_thread_is_in_no_mode_of_this_one() -> None:
    known = []
    with Function():
        other = threading.Thread(target=lambda: known.append(aside(of_script)()))
        other.start()
        other.join()

    assert known == [Modes()]


class Again(TorchFunctionMode):
    """A mode of the script's, which hears of each call and passes it on."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.heard.append(function)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_wrapper_is_called_once_whatever_modes_call_again(depth: int) -> None:
    calls: list[str] = []

    def counted(original: Any) -> Any:
        def wrapper(*args: Any) -> Any:
            calls.append(caller_of(sys._getframe(1)).f_code.co_name)
            return original(*args)

        return wrapper

    def asking(tensor: torch.Tensor) -> torch.Tensor:  # as a function of torch is written
        if torch.overrides.has_torch_function((tensor,)):
            return cast(
                "torch.Tensor", torch.overrides.handle_torch_function(public[0], (), tensor)
            )
        return tensor + 1

    public = [outermost(counted)(asking)]
    modes = [Again() for _ in range(depth)]
    with ExitStack() as around:
        for mode in modes:
            around.enter_context(mode)
        for number in range(2):
            assert float(public[0](torch.zeros(()))) == 1.0, number

    assert calls == [test_a_wrapper_is_called_once_whatever_modes_call_again.__name__] * 2
    assert all(mode.heard.count(public[0]) == 2 for mode in modes)
