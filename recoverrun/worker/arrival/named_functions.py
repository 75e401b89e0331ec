"""Functions and classes by their names: another process finds the same one."""

from typing import Any

from recoverrun.worker.arrival.value_kinds import named

LIBRARIES = ("torch", "torch.nn.functional", "math", "operator")
"""Functions of C do not always know their module."""


def by_name(value: Any) -> tuple[str, str] | None:
    """The module and the name by which it is found; None if it is found by none."""
    name = getattr(value, "__qualname__", "")
    for module in (getattr(value, "__module__", None) or "", *LIBRARIES):
        if lookup(module, name) is value:
            return module, name
    return None


def by_code(value: Any) -> tuple[str, str, int] | None:
    """The module, the name and the line of a function that no name leads to; None of a class."""
    code = getattr(value, "__code__", None)
    return None if code is None else (value.__module__, code.co_qualname, code.co_firstlineno)


def lookup(module: str, name: str, *_: Any) -> Any:
    """None if there is none. C functions of torch are found by the last part of their name."""
    return named(module, name) or (named(module, name.rpartition(".")[2]) if name else None)
