"""Incremental reachability: which names lead to a backward, given calls, aliases and arguments.

The result is the least set of names that follows from the facts, in whatever order they are added;
a new fact costs only what it adds. An extension of a `Reachability` leaves the one below unchanged,
so that a module is analysed together with a project of hundreds of files at the cost of that
module.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")

RESULT = "()"
"""After a name: what calling it returns."""


class LayeredSet:
    """A set of names that adds to another set."""

    def __init__(self, below: "LayeredSet | None" = None) -> None:
        self._below = below
        self._own: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._own or (self._below is not None and name in self._below)

    def add(self, name: str) -> bool:
        """Add a name; False if it was there."""
        if name in self:
            return False
        self._own.add(name)
        return True

    def all(self) -> frozenset[str]:
        return frozenset(self._own) if self._below is None else self._below.all() | self._own


class LayeredMultimap(Generic[Item]):
    """A map from names to sets, which adds to another map."""

    def __init__(self, below: "LayeredMultimap[Item] | None" = None) -> None:
        self._below = below
        self._own: dict[str, set[Item]] = {}

    def of(self, name: str) -> Iterator[Item]:
        """Yield the present items of `name`; what is added meanwhile is not among them."""
        yield from tuple(self._own.get(name, ()))
        if self._below is not None:
            yield from self._below.of(name)

    def add(self, name: str, item: Item) -> None:
        self._own.setdefault(name, set()).add(item)

    def items(self) -> Iterator[tuple[str, Item]]:
        if self._below is not None:
            yield from self._below.items()
        for name, items in self._own.items():
            for item in items:
                yield name, item


class Reachability:
    """The names that lead to a backward, and the facts from which that follows."""

    def __init__(self) -> None:
        self.functions = LayeredSet()  # defined somewhere by `def`
        self.called = LayeredSet()
        self.makers = LayeredSet()  # calling one of these may return a function
        self.reaching = LayeredSet()  # calling one of these may run a backward
        self.standing_for = LayeredSet()  # these may stand for a reaching name, called or not
        self._callers = LayeredMultimap[str]()
        self._handing = LayeredMultimap[str]()  # functions that pass a name on
        self._aliases = LayeredMultimap[str]()  # other names for a name
        self._made = LayeredMultimap[str]()  # names for what a name returns
        self._parameters = LayeredMultimap[tuple[str, ...]]()
        self._arguments = LayeredMultimap[tuple[int, str]]()
        self._todo: list[tuple[LayeredSet, str]] = []  # added, and not yet followed

    def extension(self) -> "Reachability":
        """Return a new one that adds to this one, and leaves it unchanged."""
        extended = Reachability()
        extended.functions, extended.called = LayeredSet(self.functions), LayeredSet(self.called)
        extended.makers, extended.reaching = LayeredSet(self.makers), LayeredSet(self.reaching)
        extended.standing_for = LayeredSet(self.standing_for)
        extended._callers, extended._handing = (
            LayeredMultimap(self._callers),
            LayeredMultimap(self._handing),
        )
        extended._aliases, extended._made = (
            LayeredMultimap(self._aliases),
            LayeredMultimap(self._made),
        )
        extended._parameters, extended._arguments = (
            LayeredMultimap(self._parameters),
            LayeredMultimap(self._arguments),
        )
        return extended

    def add_reaching(self, name: str) -> None:
        self._put(self.reaching, name)
        self._follow()

    def add_function(self, function: str) -> None:
        self._put(self.functions, function)
        self._follow()

    def add_call(self, function: str, callee: str) -> None:
        """The body of `function` calls `callee`."""
        self._callers.add(callee, function)
        if callee in self.reaching:
            self.add_reaching(function)

    def add_passing(self, function: str, name: str) -> None:
        """The body of `function` passes `name` to a call."""
        self._handing.add(name, function)
        if name in self.reaching and name in self.functions:
            self.add_reaching(function)

    def add_called(self, callee: str) -> None:
        """`callee` is called somewhere."""
        self._put(self.called, callee)
        self._follow()

    def add_maker(self, name: str) -> None:
        self._put(self.makers, name)
        self._follow()

    def add_alias(self, name: str, source: str) -> None:
        """`name` may be `source`, or what calling it returns."""
        if source.endswith(RESULT):
            maker = source.removesuffix(RESULT)
            self._made.add(maker, name)
            leads = maker in self.makers and maker in self.standing_for
        else:
            self._aliases.add(source, name)
            leads = source in self.standing_for
            if source in self.makers:
                self._put(self.makers, name)
        if leads:
            self._put(self.standing_for, name)
        self._follow()

    def add_parameters(self, callee: str, parameters: tuple[str, ...]) -> None:
        """A function of that name has these parameters."""
        self._parameters.add(callee, parameters)
        for position, source in self._arguments.of(callee):
            if position < len(parameters):
                self.add_alias(parameters[position], source)

    def add_argument(self, callee: str, position: int, source: str) -> None:
        """`source` is passed to `callee`."""
        self._arguments.add(callee, (position, source))
        for parameters in self._parameters.of(callee):
            if position < len(parameters):
                self.add_alias(parameters[position], source)

    def receivers(self) -> Iterator[str]:
        """Yield what is called with a function that reaches a backward as an argument."""
        for callee, (_, name) in self._arguments.items():
            if name in self.reaching and name in self.functions:
                yield callee

    def _put(self, names: LayeredSet, name: str) -> None:
        if names.add(name):
            self._todo.append((names, name))

    def _follow(self) -> None:
        while self._todo:
            names, name = self._todo.pop()
            if names is self.reaching:
                self._put(self.standing_for, name)
                self._put_all(self.reaching, self._callers.of(name))
            elif names is self.standing_for or names is self.makers:
                self._put_all(names, self._aliases.of(name))
            if name in self.reaching and name in self.functions:
                self._put_all(self.reaching, self._handing.of(name))
            if name in self.standing_for and name in self.makers:
                self._put_all(self.standing_for, self._made.of(name))
            if name in self.standing_for and name in self.called:
                self._put(self.reaching, name)

    def _put_all(self, names: LayeredSet, added: Iterator[str]) -> None:
        for name in added:
            self._put(names, name)
