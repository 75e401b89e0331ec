"""Functions, classes and objects that an attribute, an entry or a variable is given while the
script trains: another activation, a state of another class, the second of two models.

What has changed since the run began is told by a way in which another process finds the same: by
the name of a function, by the place at which every process has made it, as a method of an object,
as a new object of a class of the script's, whose attributes are told like all others. Where there
is no such way, code between two loops may make it again, and a process that goes back looks whether
it has. Nothing does where no loop is around the one that trains, and nothing has if it outlives an
iteration of that one: then this is told at once. New objects of libraries are in
`library_objects`.
"""

import weakref
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from types import BuiltinFunctionType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from recoverrun.worker.arrival import dict_kinds, frame_variables
from recoverrun.worker.arrival.generator_states import OF_LOOPS
from recoverrun.worker.arrival.named_functions import by_code, by_name, lookup
from recoverrun.worker.arrival.packing import CannotTravel, Packing, Plain, unpack
from recoverrun.worker.arrival.plain_values import NOT_OURS
from recoverrun.worker.arrival.structure import variable_of
from recoverrun.worker.arrival.value_kinds import is_value, named
from recoverrun.worker.arrival.value_places import Place, Spaces
from recoverrun.worker.context.object_graph import CONTAINERS, HOOKS, Holdings, inside
from recoverrun.worker.context.object_members import DICTS, is_defined_in
from recoverrun.worker.context.object_views import PLAIN, named_in
from recoverrun.worker.data.numpy_arrays import is_array
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.snapshots import library_objects, new_dicts
from recoverrun.worker.snapshots.library_objects import is_makeable
from recoverrun.worker.tracking.microbatches import LoopFrame

GIVEN = "{} was given {} while the script trained, and a process that goes back has none"
GONE = "{} is {} in this process, and was {}"
NOTHING = "nothing like it"
GROUPS = (
    "an optimizer was given other parameters while the script trained, and a process that goes back"
    " does not give it these"
)

MODULE = ".vars"
"""The end of the path of a module's attributes."""

FUNCTIONS = (FunctionType, BuiltinFunctionType)
NO_OBJECTS = frozenset({*PLAIN, *CONTAINERS, torch.Tensor, torch.nn.Parameter})

Groups = Sequence[Sequence[str | None]]
"""Of an optimizer: names of the parameters of each, None where one is in no module."""

Token = tuple[Any, ...]
"""Tells one from another, alike in each process of the job: a word, and names."""


Look = Callable[[], tuple[Holdings, Spaces]]


class References:
    """The references of one process, as the run began."""

    def __init__(
        self,
        there: Holdings,
        spaces: Spaces,
        own: frozenset[str],
        *,
        optimizers: Sequence[Any] = (),
        bound: frozenset[str] = frozenset(),
    ) -> None:
        """The variables of a loop, `bound`, are no places of what has another one."""
        self._own = own
        self._known: dict[int, tuple[weakref.ref[Any], Place]] = {}
        found = sorted(_all(there, spaces), key=lambda one: variable_of(one[0]) in bound)
        for key, value in found:
            if id(value) not in self._known:
                with suppress(TypeError):  # a kind without weak references has no place
                    self._known[id(value)] = weakref.ref(value), key
        self._modules = {path for path, _ in there.held if path.endswith(MODULE)}
        self._variables = {(space, name) for space, names in spaces for name in list(names)}
        self._dicts = new_dicts.paths_of(there)
        self._before: dict[Place, Token] = {}
        self._rest: dict[Place, weakref.ref[Any]] = {}  # the very objects
        for key, value, token in self._tokens(there, spaces):
            self._before[key] = token
            if (known := self._known.get(id(value))) is not None:
                self._rest[key] = known[0]
        self._doubtful: dict[Place, tuple[Any, Sequence[int]]] = {}
        self._groups = [[len(one["params"]) for one in opt.param_groups] for opt in optimizers]
        self._grouped: tuple[list[list[int]], list[int]] | None = None  # others, and since when

    def require_groups(self, groups: Sequence[Groups], stack: Sequence[LoopFrame]) -> None:
        """`groups` are of each optimizer. Raises NotReachable where one has been given other
        parameters since, some of which are in no module, and no code between loops does so again.
        """
        around = [one.iteration for one in stack[:-1]]
        now = [[len(group) for group in one] for one in groups]
        if now == self._groups or all(None not in group for one in groups for group in one):
            self._grouped = None
        elif self._grouped is None or self._grouped[0] != now:
            self._grouped = now, around
        if self._grouped is not None and (not around or self._grouped[1] != around):
            raise NotReachable(GROUPS)

    def told(
        self, there: Holdings, spaces: Spaces, stack: Sequence[LoopFrame], packing: Packing
    ) -> list[list[Plain]]:
        """Plain values for msgpack, at the top of the last loop of `stack`.

        Raises NotReachable where nothing makes one again.
        """
        around = [one.iteration for one in stack[:-1]]
        bound = {name for one in stack for name in one.loop.assigned | one.loop.targets}
        live = {name for one in stack for name in one.loop.live_in}
        said: list[list[Plain]] = []
        doubtful: dict[Place, tuple[Any, Sequence[int]]] = {}
        hooks: set[Place] = set()
        anew: set[str] = set()  # the paths of objects that are made
        for key, value, token in self._tokens(there, spaces, anew):
            if _is_hook(key):
                hooks.add(key)
            if self._before.get(key) == token and key[0] not in anew:
                continue
            if variable_of(key) in bound - live:
                continue
            if self.is_of_new_module(key[0]):
                continue  # it holds no tensor: the library that has made it does so again
            if key[0].startswith("<") and key not in self._variables and key[1] not in bound:
                continue  # of a function that was called since: it is called again
            if token[0] == library_objects.OF_LIBRARY:
                said.append([*key, *library_objects.way(value)])
                continue
            way = None if _is_hook(key) else self._way(value, token, packing)
            if way is None:
                known, since = self._doubtful.get(key, (value, around))
                since = since if known is value else around
                again = key[0].startswith(OF_LOOPS)  # the header makes it
                if not again and (not around or since != around):
                    raise NotReachable(GIVEN.format(_written(key), _in_words(token)))
                doubtful[key] = value, since
                way = ["there", list(_shape(value, self._own) or ())]
            elif way[0] == "made":
                anew.add(_inside(key))
            said.append([*key, *way])
        self._doubtful = doubtful
        gone = [key for key in self._before if _is_hook(key) and key not in hooks]
        paths = {str(one[0]) for one in said}
        dicts = new_dicts.told(paths, there, spaces, self._dicts)
        return [*dicts, *said, *([*key, "there", []] for key in gone)]

    def is_of_new_module(self, path: str) -> bool:
        """True of what a module holds that was made since."""
        module, within, _ = path.rpartition(MODULE)
        return bool(within) and module + within not in self._modules

    def _tokens(
        self, there: Holdings, spaces: Spaces, anew: Container[str] = ()
    ) -> Iterator[tuple[Place, Any, Token]]:
        """Left out is what rests where it was, but for hooks, and for what is in objects `anew`."""
        for key, value in _all(there, spaces):
            rests = self._rest.get(key)
            if rests is not None and rests() is value and key[0] not in anew:
                if not _is_hook(key):
                    continue
            token = self._token(value)
            if token is not None and not (_is_hook(key) and token[1] not in self._own):
                yield key, value, token

    def _token(self, value: Any) -> Token | None:
        """None of a value of any other kind."""
        shape = _shape(value, self._own)
        if shape is not None and shape[0] == "method":
            return ("method", *self._place(value.__self__), shape[-1])
        place = self._place(value) if shape is None or shape[0] != "name" else ()
        return ("same", *place) if place else shape

    def _place(self, value: Any) -> Token:
        """The place of an object as the run began; () if it was not there."""
        ref, key = self._known.get(id(value), (None, ()))
        return key if ref is not None and ref() is value else ()

    def _way(self, value: Any, token: Token, packing: Packing) -> list[Plain] | None:
        """The way in which another process comes to the same; None if there is none."""
        what, *names = token
        if what in ("name", "same") or (what == "method" and len(names) > 1):
            return [what, names]
        if what != "own" or not is_makeable(type(value)):
            return None
        if not all(map(self._is_told, vars(value).values())):
            return None
        told: list[Plain] = []
        for name, one in vars(value).items():
            with suppress(CannotTravel):
                told.append([name, packing.pack(one, name)])
        return ["made", [*names, told]]

    def _is_told(self, value: Any) -> bool:
        """True of what is told of an attribute of a new object, by this or by others."""
        if isinstance(value, (torch.Tensor, *CONTAINERS)) or is_array(value):
            return True
        token = self._token(value)
        if token is not None and token[0] != library_objects.OF_LIBRARY:
            return True
        if token is not None and library_objects.way(value)[0] == "made":
            return True
        try:
            Packing([]).pack(value)
        except CannotTravel:
            return hasattr(type(value), "__next__")  # `moved_sources`
        return True


def places(there: Holdings, spaces: Spaces) -> dict[Place, Any]:
    """Values by their places."""
    return dict(_all(there, spaces))


class Putting:
    """Gives this process the same."""

    def __init__(
        self,
        look: Look,
        frames: Sequence[FrameType],
        first: Mapping[Place, Any],
        tensors: Sequence[torch.Tensor],
        own: frozenset[str],
    ) -> None:
        """`look` finds what is there now; `frames` are those of the first of the spaces. `first`
        are the places by which the other process told what was there as its run began.
        """
        self._look = look
        self._frames = frames
        self._first = first
        self._tensors = tensors
        self._own = own

    def put(self, told: Sequence[Sequence[Any]]) -> None:
        """Raises NotReachable where one is missing. An object that is reached by other ways now has
        another path, so it is looked again for the holders of what is left.
        """
        left = list(told)
        while left:
            there, spaces = self._look()
            here = places(there, spaces)
            holders = {path: one for path, one in reversed(there.held) if path}
            missing = [one for one in left if not self._put(one, here, holders, spaces)]
            if len(missing) == len(left):
                path, name, way, names = missing[0]
                raise NotReachable(
                    GONE.format(_written((path, name)), NOTHING, _in_words((way, *names)))
                )
            left = missing

    def _put(
        self,
        one: Sequence[Any],
        here: Mapping[Place, Any],
        holders: dict[str, Any],
        spaces: Spaces,
    ) -> bool:
        """False if nothing holds it yet."""
        path, name, way, told = one
        if way == library_objects.ONLY_TOLD:
            return True
        key = path, name
        if way == new_dicts.NEW_DICT:
            present = library_objects.at(dict(spaces).get(path), holders.get(path), name)
            return type(present) in DICTS or self._set(key, unpack(told, ()), holders, spaces)
        shape = _shape(here.get(key), self._own)
        if way == "there":
            if list(shape or ()) != told:
                raise NotReachable(GONE.format(_written(key), _in_words(shape), _in_words(told)))
            return True
        if way == "made" and list(shape or ()) == ["own", *told[:2]]:
            return True  # what is in it is told, too
        if way == "made" and library_objects.way(here.get(key)) == [way, told]:
            return True  # others may hold it as well
        value = _found(way, told, self._first, self._tensors)
        if value is None:
            raise NotReachable(GONE.format(_written(key), NOTHING, _in_words((way, *told))))
        is_held = self._set(key, value, holders, spaces)
        if is_held and way == "made":
            holders[_inside(key)] = vars(value)
        return is_held

    def _set(self, key: Place, value: Any, holders: Mapping[str, Any], spaces: Spaces) -> bool:
        path, name = key
        of_frames = {space: one for (space, _), one in zip(spaces, self._frames, strict=False)}
        variables = dict(spaces).get(path)
        if path in of_frames:
            frame_variables.write(of_frames[path], {name: value})
        elif isinstance(variables, dict):
            variables[name] = value
        elif path in holders:
            named_in(holders[path])[name] = value
        elif dict_kinds.is_factory(path):
            dict_kinds.give(holders, path, value)
            return True
        return path in of_frames or variables is not None or path in holders


def _found(
    way: str, told: Sequence[Any], first: Mapping[Place, Any], tensors: Sequence[torch.Tensor]
) -> Any:
    """None if there is none."""
    if way == "name":
        return lookup(*told)
    if way == "same":
        return first.get((told[0], told[1]))
    if way == "method":
        return getattr(first.get((told[0], told[1])), told[2], None)
    module, kind_name, attributes = told
    kind = named(module, kind_name)
    if not is_makeable(kind):
        return None
    made = object.__new__(kind)
    vars(made).update({name: unpack(one, tensors) for name, one in attributes})
    return made


def _all(there: Holdings, spaces: Spaces) -> Iterator[tuple[Place, Any]]:
    """Variables, entries and attributes by their places. Hooks are numbered in their order."""
    for space, variables in spaces:
        for name, value in list(variables.items()):
            if type(value) not in NO_OBJECTS and not name.startswith("__"):
                yield (space, name), value
    for path, holder, items, objects in there.holders:
        if not (objects or type(holder) is defaultdict) or path in NOT_OURS:
            continue
        hooks = path.endswith(HOOKS)
        if (factory := dict_kinds.own_factory(holder)) is not None:
            yield (dict_kinds.factory_of(path), "default_factory"), factory
        for place, (name, value) in enumerate(items if hooks else objects):
            if type(value) in NO_OBJECTS:
                continue
            if type(name) is int or (type(name) is str and not name.startswith("__")):
                yield (path, place if hooks else name), value


def _shape(value: Any, own: frozenset[str]) -> Token | None:
    """The token of a function, a class or an object of the script's without its place."""
    kind: Any = type(value)
    if kind in PLAIN or is_value(kind):
        return None
    if kind is MethodType:
        function = value.__func__
        if type(function) is not FunctionType or function.__module__ not in own:
            return None
        return "method", function.__qualname__, function.__name__
    if kind in FUNCTIONS or isinstance(value, type):
        if name := by_name(value):
            return "name", *name
        code = by_code(value) if value.__module__ in own else None
        return None if code is None else ("code", *code)
    if issubclass(kind, (ModuleType, *CONTAINERS)) or hasattr(kind, "__next__"):
        return None
    if is_defined_in(kind, own) and not issubclass(kind, torch.nn.Module):
        return "own", kind.__module__, kind.__qualname__
    return library_objects.token(kind)


def _is_hook(key: Place) -> bool:
    return key[0].endswith(HOOKS)


def _inside(key: Place) -> str:
    """The path of the attributes of an object."""
    path, name = key
    return str(name) if path.startswith("<") else inside(path, name)


def _written(key: Place) -> str:
    path, name = key
    return str(name) if path.startswith("<") else f"{dict_kinds.path_of(path)}[{name!r}]"


def _in_words(token: Sequence[Any] | None) -> str:
    if not token:
        return NOTHING
    what, *names = token
    kinds = {"own": "an object of", "made": "an object of", "same": "what is at"}
    return f"{kinds.get(what, 'a function')} {'.'.join(map(str, names[:2]))}"
