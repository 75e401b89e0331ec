"""Incremental reachability: which names lead to a backward, given calls, aliases and arguments.

Beside names of the module's own there are `f()`, what calling `f` returns, and slots, what is given
to `f` at a place or by a keyword. If `g` may be `f`, then `g()` may be `f()`, and what is given to
`g` is given to `f`.

The result is the least set of names that follows from the facts, in whatever order they are added;
a new fact costs only what it adds. An extension of a `Reachability` leaves the one below unchanged,
so that a module is analysed together with a project of hundreds of files at the cost of that
module.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from recoverrun.worker.analysis.bare_names import RESULT
from recoverrun.worker.analysis.scoped_names import SLOT

Item = TypeVar("Item")

ANY = "*"
"""The place of an argument that may be any: of `*rest`, or of one that is handed on."""

ENDS = ("", RESULT, RESULT * 2)
"""Results of results of results are not followed: a function that returns itself has no end."""


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


@dataclass(frozen=True, slots=True)
class Parameters:
    """Names of a function's parameters; one that is bound to an instance has no place."""

    places: tuple[str, ...] = ()
    keywords: tuple[tuple[str, str], ...] = ()  # the keyword, and what it is known by
    rest: tuple[str, ...] = ()  # those behind `*` and `**`

    def given(self, place: str) -> Iterable[str]:
        """Return those that an argument at this place, or of this keyword, may come to.

        Of what calling the argument returns (`0()`), it is what calling them returns.
        """
        end = place[len(place.rstrip(RESULT)) :]
        return [name + end for name in self._at(place.removesuffix(end))]

    def _at(self, place: str) -> Iterable[str]:
        if place == ANY:
            return (*self.places, *(known for _, known in self.keywords), *self.rest)
        if place.isdecimal():
            at = int(place)
            return self.places[at : at + 1] or self.rest
        return [known for keyword, known in self.keywords if keyword == place] or self.rest


def slot(callee: str, place: int | str) -> str:
    """Return the name of what is given to `callee` at a place, or by a keyword."""
    return f"{callee}{SLOT}{place}"


class Reachability:
    """The names that lead to a backward, and the facts from which that follows."""

    def __init__(self, below: "Reachability | None" = None) -> None:
        def names(of: str) -> LayeredSet:
            return LayeredSet(getattr(below, of) if below else None)

        def items(of: str) -> LayeredMultimap[str]:
            return LayeredMultimap(getattr(below, of) if below else None)

        self.functions = names("functions")  # defined somewhere
        self.called = names("called")
        self.reaching = names("reaching")  # calling one of these may run a backward
        self.standing_for = names("standing_for")  # may stand for a reaching name, called or not
        self.handed = names("handed")  # may be a reaching function: to pass it on is to call it
        self._callers = items("_callers")
        self._handing = items("_handing")  # functions that pass a name on
        self._aliases = items("_aliases")  # other names for a name
        self._wrappers = items("_wrappers")  # names for what a call returns that a name is given to
        self._sources = items("_sources")  # the opposite of both
        self._slots = items("_slots")  # places at which a name is given something that matters
        self._parameters: LayeredMultimap[Parameters] = LayeredMultimap(
            below._parameters if below else None
        )
        self._todo: list[tuple[LayeredSet, str]] = []  # added, and not yet followed

    def extension(self) -> "Reachability":
        """Return a new one that adds to this one, and leaves it unchanged."""
        return Reachability(self)

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
        if name in self.handed:
            self.add_reaching(function)

    def add_called(self, callee: str) -> None:
        """`callee` is called somewhere."""
        self._put(self.called, callee)
        self._follow()

    def add_alias(self, name: str, source: str, wrapped: bool = False) -> None:
        """`name` may be `source`, or (`wrapped`) what was made of it."""
        (self._wrappers if wrapped else self._aliases).add(source, name)
        if not wrapped:
            self._sources.add(name, source)
        sets = (self.standing_for,) if wrapped else (self.standing_for, self.handed)
        for end in ENDS:
            known = source + end
            for names in sets:
                if known in names:
                    self._put(names, name + end)
        for place in () if wrapped else self._slots.of(name):
            self._give(source, place, name)
        self._follow()

    def add_parameters(self, callee: str, parameters: Parameters) -> None:
        """A function of that name has these parameters."""
        self._parameters.add(callee, parameters)
        for place in self._slots.of(callee):
            self._hand_over(callee, place, parameters)
        self._follow()

    def _put(self, names: LayeredSet, name: str) -> None:
        if names.add(name):
            self._todo.append((names, name))

    def _put_all(self, names: LayeredSet, added: Iterable[str]) -> None:
        for name in added:
            self._put(names, name)

    def _follow(self) -> None:
        while self._todo:
            names, name = self._todo.pop()
            if names is self.reaching:
                self._put(self.standing_for, name)
                self._put_all(self.reaching, self._callers.of(name))
            elif names is self.handed:
                self._put_all(self.reaching, self._handing.of(name))
                self._rename(names, name)
            elif names is self.standing_for:
                self._rename(names, name)
            if name in self.reaching and name in self.functions:
                self._put(self.handed, name)
            if name in self.standing_for and name in self.called:
                self._put(self.reaching, name)

    def _rename(self, names: LayeredSet, name: str) -> None:
        """Add to `names` all that `name` goes by elsewhere."""
        self._put_all(names, self._aliases.of(name))
        if names is self.standing_for:
            self._put_all(names, self._wrappers.of(name))
        callee, is_slot, place = name.partition(SLOT)
        if is_slot:
            self._slots.add(callee, place)
            for parameters in self._parameters.of(callee):
                self._put_all(names, parameters.given(place))
            for source in self._sources.of(callee):
                self._put(names, slot(source, place))
            return
        for end in ENDS[1:]:
            if not name.endswith(end):
                return
            maker = name.removesuffix(end)
            self._put_all(names, (other + end for other in self._aliases.of(maker)))
            if names is self.standing_for:
                self._put_all(names, (other + end for other in self._wrappers.of(maker)))

    def _give(self, callee: str, place: str, other: str) -> None:
        """Let what is given to `other` be given to `callee`."""
        for names in (self.standing_for, self.handed):
            if slot(other, place) in names:
                self._put(names, slot(callee, place))

    def _hand_over(self, callee: str, place: str, parameters: Parameters) -> None:
        for names in (self.standing_for, self.handed):
            if slot(callee, place) in names:
                self._put_all(names, parameters.given(place))
