"""All generators of random numbers that the script makes, wherever it keeps them.

Constructors are watched, so that closures, dicts and slots are no hiding place. A generator is
known by the place in the code that made it and how many had been made there before: ranks that run
the same code make the same generators, whatever one of them makes elsewhere. Generators that
torch's data loaders make for themselves, or data sets as they give an item, are not among them:
copies of a loader have their own.
"""

import functools
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # it imports torch, which the script imports when it wants to
    from recoverrun.worker.rng.object_generators import State

MAX_GENERATORS = 64
"""So many are told of: where more than these are drawn from, a loss is not made up exactly."""

PASSED_OVER = ("random", "numpy", "torch", "recoverrun", "functools")
"""Packages whose frames stand between a generator and the code that wants it."""

LOADERS = "torch.utils.data"


class Registry:
    """The generators of this process, in the order in which they were made."""

    def __init__(self) -> None:
        self._known: dict[str, Callable[[], Any]] = {}
        self._made: Counter[str] = Counter()  # by place
        self.crowded = False  # there have been more than are told of

    def note(self, generator: Any, frame: FrameType | None) -> None:
        """`generator` was just made, in code that `frame` called."""
        place = _place(frame)
        if place is None:
            return
        number, self._made[place] = self._made[place], self._made[place] + 1
        try:
            self._known[f"{place}#{number}"] = weakref.ref(generator)
        except TypeError:  # numpy's have no weak references
            self._known[f"{place}#{number}"] = functools.partial(_if_held_elsewhere, [generator])

    def alive(self) -> dict[str, Any]:
        """Those that the script still holds, by what they are known by."""
        from recoverrun.worker.rng.object_generators import is_generator

        found: dict[str, Any] = {}
        for key, held in list(self._known.items()):
            generator = held()
            if generator is None or not is_generator(generator):
                del self._known[key]
            elif len(found) < MAX_GENERATORS:
                found[key] = generator
            else:
                self.crowded = True
        return found

    def states(self) -> "dict[str, State]":
        """Where each of them stands."""
        from recoverrun.worker.rng.object_generators import state_of

        return {key: state_of(one) for key, one in self.alive().items()}

    def restore(self, states: "dict[str, State]") -> None:
        """Make the numbers that followed `states` follow again. Raises ValueError."""
        from recoverrun.worker.rng import object_generators

        alive = self.alive()
        for key in states.keys() & alive.keys():
            object_generators.put_state(alive[key], states[key])

    # --------------------------------------------------------------------------- constructors

    def watch_random(self, module: ModuleType) -> None:
        """`random.Random`, which is a class of Python's."""
        kind: Any = module.Random
        original = kind.__init__

        @functools.wraps(original)
        def __init__(made: Any, *args: Any, **kwargs: Any) -> None:
            original(made, *args, **kwargs)
            self.note(made, sys._getframe(1))

        kind.__init__ = __init__

    def watch_torch(self, module: ModuleType) -> None:
        """`torch.Generator`, which is made in C."""
        self._replace(module, "Generator")

    def watch_numpy(self, module: ModuleType) -> None:
        """`numpy.random`: its two kinds of generators, and the function that makes one."""
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
        """Put a subclass in the place of a class whose constructor cannot be replaced."""
        original: Any = getattr(module, name)
        registry = self

        class Kind(type(original)):  # type: ignore[misc]  # of whatever metaclass it is
            def __call__(cls, *args: Any, **kwargs: Any) -> Any:
                # What is made is of torch's or numpy's own class: it pickles, and C code knows it.
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


def _place(frame: FrameType | None) -> str | None:
    """The code that wants a generator; None if a data loader or the `random` module itself does."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name == "random" or name.startswith(LOADERS):
            return None
        package = name.partition(".")[0]
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
    """What is in `held`, until nobody but that holds it."""
    if held and sys.getrefcount(held[0]) == 2:  # one of them is the question itself
        held.clear()
    return held[0] if held else None


REGISTRY = Registry()
"""Of this process: constructors know of no other."""
