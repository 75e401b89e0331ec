"""A registry of all random generators that the script makes, wherever it keeps them.

It wraps the constructors of generators, and so also knows those in closures, dicts and slots. A
generator is named by the place in the code that made it and by how many were made there before:
ranks that run the same code make the same generators, whatever one of them makes elsewhere.
Generators that torch's data loaders make for themselves, or that data sets make as they give an
item, are left out: copies of a loader have their own.
"""

import functools
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # it imports torch, which the script imports when it wants to
    from recoverrun.worker.rng.object_generators import State

MAX_GENERATORS = 64
"""The most generators whose states are captured; with more, a loss is not made up exactly."""

PASSED_OVER = ("random", "numpy", "torch", "functools")
"""Packages whose frames lie between a constructor and the code that wants a generator."""

OURS = "recoverrun"
"""The package whose generators are its own: copies of a loader's, say, within a backward."""

LOADERS = "torch.utils.data"


class Registry:
    """The generators of this process, in the order in which they were made."""

    def __init__(self) -> None:
        self._known: dict[str, Callable[[], Any]] = {}
        self._made: Counter[str] = Counter()  # by place
        self.crowded = False  # there have been more than MAX_GENERATORS

    def note(self, generator: Any, frame: FrameType | None) -> None:
        """Register `generator`, which was just made in code that `frame` called."""
        place = _place(frame)
        if place is None:
            return
        number, self._made[place] = self._made[place], self._made[place] + 1
        try:
            self._known[f"{place}#{number}"] = weakref.ref(generator)
        except TypeError:  # numpy's have no weak references
            self._known[f"{place}#{number}"] = functools.partial(_if_held_elsewhere, [generator])

    def alive(self) -> dict[str, Any]:
        """Return the generators that the script still holds, by name."""
        if not self._known:
            return {}
        from recoverrun.worker.rng.object_generators import is_generator

        alive: dict[str, Any] = {}
        for key, held in list(self._known.items()):
            generator = held()
            if generator is None or not is_generator(generator):
                del self._known[key]
            elif len(alive) < MAX_GENERATORS:
                alive[key] = generator
            else:
                self.crowded = True
        return alive

    def states(self) -> "dict[str, State]":
        """Return the states of all generators, by name. Most scripts make none."""
        if not self._known:
            return {}
        from recoverrun.worker.rng.object_generators import state_of

        return {key: state_of(generator) for key, generator in self.alive().items()}

    def moved_since(self, states: "dict[str, State]") -> "dict[str, State]":
        """Return the states of those generators that are elsewhere than in `states`, or new."""
        from recoverrun.worker.rng.object_generators import is_at, state_of

        return {
            key: state_of(generator)
            for key, generator in self.alive().items()
            if key not in states or not is_at(generator, states[key])
        }

    def restore(self, states: "dict[str, State]") -> None:
        """Put generators into these states. Raises ValueError."""
        from recoverrun.worker.rng import object_generators

        alive = self.alive()
        for key in states.keys() & alive.keys():
            object_generators.put_state(alive[key], states[key])

    def made(self) -> Counter[str]:
        """Return how many generators were made at each place so far."""
        return self._made.copy()

    @contextmanager
    def as_at(self, made: Counter[str]) -> Iterator[None]:
        """Code is executed again from where these had been made: what it makes has the names of
        those that were made since. Afterwards these are known again, and nothing that it made.
        """
        before = self._known, self._made
        self._known = {key: held for key, held in self._known.items() if _was_made(key, made)}
        self._made = made.copy()
        try:
            yield
        finally:
            self._known, self._made = before

    def numbers(self) -> dict[str, list[Any]]:
        """The number of generators made at each place, and the numbers of those still held."""
        alive = self._numbers()
        return {place: [made, alive.get(place, [])] for place, made in self._made.items()}

    def renumber(self, told: dict[str, list[Any]]) -> None:
        """Number generators as others have them, in a process that has not run what they have: the
        newest generators of a place are theirs of the same place, and so are the numbers of those
        that will be made.
        """
        for place, mine in self._numbers().items():
            made, theirs = told.get(place, [0, []])
            known = {number: self._known.pop(f"{place}#{number}") for number in mine}
            named = dict(zip(reversed(mine), reversed(theirs), strict=False))
            for number, held in known.items():
                self._known[f"{place}#{named.get(number, -1 - number)}"] = held
            self._made[place] = max(made, self._made[place])
        for place, (made, _) in told.items():
            self._made[place] = max(made, self._made[place])

    def _numbers(self) -> dict[str, list[int]]:
        """The numbers of generators that are still held, in their order."""
        found: dict[str, list[int]] = {}
        for key in self.alive():
            place, _, number = key.rpartition("#")
            found.setdefault(place, []).append(int(number))
        return {place: sorted(numbers) for place, numbers in found.items()}

    # --------------------------------------------------------------------------- constructors

    def watch_random(self, module: ModuleType) -> None:
        """Wrap the constructor of `random.Random`, a Python class."""
        kind: Any = module.Random
        original = kind.__init__

        @functools.wraps(original)
        def __init__(made: Any, *args: Any, **kwargs: Any) -> None:
            original(made, *args, **kwargs)
            self.note(made, sys._getframe(1))

        kind.__init__ = __init__

    def watch_torch(self, module: ModuleType) -> None:
        """Wrap the constructor of `torch.Generator`, which is written in C."""
        self._replace(module, "Generator")

    def watch_numpy(self, module: ModuleType) -> None:
        """Wrap numpy's two kinds of generators, and `default_rng`."""
        self._replace(module, "Generator")
        self._replace(module, "RandomState")
        original: Any = module.default_rng

        @functools.wraps(original)
        def default_rng(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            self.note(made, sys._getframe(1))
            return made

        module.default_rng = default_rng  # type: ignore[attr-defined]

    def _replace(self, module: ModuleType, name: str) -> None:
        """Replace a class whose constructor cannot be wrapped by a subclass."""
        original: Any = getattr(module, name)
        registry = self

        class Kind(type(original)):  # type: ignore[misc]  # of whatever metaclass it is
            def __call__(cls, *args: Any, **kwargs: Any) -> Any:
                # The result is of torch's or numpy's own class: it pickles, and C code knows it.
                make = original if cls is stand_in else super().__call__
                made = make(*args, **kwargs)
                registry.note(made, sys._getframe(1))
                return made

            def __instancecheck__(cls, value: Any) -> bool:
                return (
                    isinstance(value, original) if cls is stand_in else cls in type(value).__mro__
                )

            def __subclasscheck__(cls, kind: type) -> bool:
                return issubclass(kind, original) if cls is stand_in else cls in kind.__mro__

        stand_in = Kind(name, (original,), {"__doc__": original.__doc__})
        stand_in.__module__ = module.__name__
        setattr(module, name, stand_in)


def place_of(key: str) -> str:
    """The place in the code that made the generator of that name."""
    return key.rpartition("#")[0]


def _was_made(key: str, made: Counter[str]) -> bool:
    """True if that generator is one of those that had been `made`."""
    place, _, number = key.rpartition("#")
    return int(number) < made[place]


def _place(frame: FrameType | None) -> str | None:
    """Return the code that wants a generator; None if a data loader, a library or we want it."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        package = name.partition(".")[0]
        if name == "random" or name.startswith(LOADERS) or package == OURS:
            return None
        if package not in PASSED_OVER and package in sys.stdlib_module_names:
            return None  # names of temporary files, say
        if package not in PASSED_OVER:
            nobodys = _is_for_loader(frame) or _is_imported_by_torch(frame)
            return None if nobodys else f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def _is_for_loader(frame: FrameType | None) -> bool:
    """True if code of a data set runs, to give a loader its next item."""
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(LOADERS):
            return True
        frame = frame.f_back
    return False


def _is_imported_by_torch(frame: FrameType | None) -> bool:
    """True if a module is being imported that only torch wants, for its own purposes."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.partition(".")[0] == "torch" and frame.f_code.co_name == "<module>":
            return True
        frame = frame.f_back
    return False


def _if_held_elsewhere(held: list[Any]) -> Any:
    """Return what is in `held`, until nothing else holds it."""
    if held and sys.getrefcount(held[0]) == 2:  # one of them is the argument of this call
        held.clear()
    return held[0] if held else None


REGISTRY = Registry()
"""The registry of this process; mutable, as constructors can be wrapped only once."""
