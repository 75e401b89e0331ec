"""Wrappers of generator functions that look exactly like the functions they replace, and calls of
these functions that can be made once more.
"""

import functools
from collections.abc import Callable, Generator, Iterator
from types import FunctionType
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
        served = cast("Generator[T, object, object]", serve(*args, **kwargs))
        return (yield from served)

    return generator


def maker(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Make | None:
    """A call that makes the same generator again; None if it would read what is read already."""
    cells = function.__closure__ or () if isinstance(function, FunctionType) else ()
    given = [*args, *kwargs.values(), *(_content(cell) for cell in cells)]
    if any(hasattr(type(one), "__next__") for one in given):
        return None
    return functools.partial(function, *args, **kwargs)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # bound later
        return None
