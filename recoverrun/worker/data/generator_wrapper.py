"""Wrappers of generator functions that look exactly like the functions they replace."""

import functools
from collections.abc import Callable, Generator, Iterator
from typing import ParamSpec, TypeVar, cast

T = TypeVar("T")
P = ParamSpec("P")


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
