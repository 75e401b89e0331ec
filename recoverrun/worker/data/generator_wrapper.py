"""Wrappers of generator functions that look exactly like the functions they replace, and calls of
these functions that can be made once more.
"""

import functools
from collections.abc import Callable, Generator, Iterator
from inspect import GEN_CREATED, getgeneratorstate
from types import FunctionType, GeneratorType
from typing import Any, ParamSpec, TypeVar, cast

T = TypeVar("T")
P = ParamSpec("P")
Make = Callable[[], Generator[Any, Any, Any]]


def same_kind(
    function: Callable[P, Iterator[T]], serve: Callable[P, Iterator[T]]
) -> Callable[P, Generator[T, object, object]]:
    """Return a generator function that looks like `function` and yields what `serve` returns.

    Name, signature, docstring, source and `inspect.isgeneratorfunction` are those of `function`,
    and a call returns a true generator. `serve` runs at the first `next`, as the body would; what
    it returns may have `send`, `throw` and `close`, which are then passed on to it.
    """

    @functools.wraps(function)
    def generator(*args: P.args, **kwargs: P.kwargs) -> Generator[T, object, object]:
        nonlocal function  # so that `_call_of` finds it
        served = cast("Generator[T, object, object]", serve(*args, **kwargs))
        return (yield from served)

    return generator


class Anew(functools.partial[Any]):
    """The call of a generator function whose generator is given to another one."""


def maker(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> functools.partial[Any] | None:
    """A call that makes the same generator again, with those that it was given and that have not
    begun; None if it would read what is read already.
    """
    cells = function.__closure__ or () if isinstance(function, FunctionType) else ()
    if any(_is_read(_content(cell)) for cell in cells):
        return None
    given, named = [_anew(one) for one in args], {key: _anew(one) for key, one in kwargs.items()}
    parts = [*given, *named.values()]
    if any(map(_is_read, parts)):
        return None
    if not any(isinstance(one, Anew) for one in parts):
        return functools.partial(function, *args, **kwargs)
    return Anew(_made, function, *given, **named)


def _made(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    named = {key: _of(one) for key, one in kwargs.items()}
    return function(*map(_of, args), **named)


def _of(part: Any) -> Any:
    return part() if isinstance(part, Anew) else part


def _anew(one: Any) -> Any:
    """The call that makes `one` again, if it is a generator that has not begun; else itself."""
    call = _call_of(one)
    made = None if call is None else maker(*call)
    if made is None:
        return one
    return made if isinstance(made, Anew) else Anew(made.func, *made.args, **made.keywords)


def _call_of(one: Any) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]] | None:
    """The call of a function of the script that has made a generator, which has not begun."""
    if not isinstance(one, GeneratorType) or getgeneratorstate(one) != GEN_CREATED:
        return None
    if one.gi_code not in same_kind.__code__.co_consts:
        return None
    assert one.gi_frame is not None, "it has not begun"
    names = one.gi_frame.f_locals
    return names["function"], names["args"], names["kwargs"]


def _is_read(one: Any) -> bool:
    return hasattr(type(one), "__next__")


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # bound later
        return None
