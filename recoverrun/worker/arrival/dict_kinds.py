"""The kinds of dicts: each is told as an empty one, before its entries are put into it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from recoverrun.worker.arrival.packing import FACTORIES
from recoverrun.worker.context.object_members import DICTS
from recoverrun.worker.context.object_views import named_in

FACTORY = ".<factory>"
"""Behind the path of a `defaultdict`: the function that it calls for a new entry."""


def own_factory(one: Any) -> Any:
    """The factory of a dict that is no kind of values: it is told as a reference. None if there is
    none.
    """
    factory = one.default_factory if type(one) is defaultdict else None
    return None if FACTORIES.get(getattr(factory, "__name__", "")) is factory else factory


def empty(one: Any) -> Any:
    """An empty dict of the same kind, without a factory of its own."""
    if type(one) is not defaultdict:
        return type(one)()
    return defaultdict(None if own_factory(one) is not None else one.default_factory)


def of_kind(present: Any, told: Any, around: Any, name: Any) -> Any:
    """Give `present`, which `around` holds by this name, the kind of an empty one that was `told`.
    Returns what is held then; one that nothing is known to hold stays as it is.
    """
    if type(present) not in DICTS or type(told) not in DICTS:
        return present
    if type(present) is type(told):
        if type(told) is defaultdict and told.default_factory is not None:
            present.default_factory = told.default_factory
        return present
    if around is None:
        return present
    told.update(present)
    named_in(around)[name] = told
    return told


def factory_of(path: str) -> str:
    """The path of the factory of the dict at this path."""
    return path + FACTORY


def path_of(path: str) -> str:
    """The inverse; any other path is as it was."""
    return path.removesuffix(FACTORY)


def is_factory(path: str) -> bool:
    return path.endswith(FACTORY)


def apart(told: Sequence[Sequence[Any]]) -> tuple[list[Sequence[Any]], list[Sequence[Any]]]:
    """Of rows that begin with a path, those of factories, and the others. A factory is put once all
    dicts are there.
    """
    factories = [one for one in told if is_factory(one[0])]
    return factories, [one for one in told if not is_factory(one[0])]


def give(holders: Mapping[str, Any], path: str, factory: Any) -> None:
    """Give the dict its factory, if anything in this process holds it."""
    made = holders.get(path_of(path))
    if type(made) is defaultdict:
        made.default_factory = factory
