"""Generators of the script's on the way to a step: the state of their functions.

A process that goes back runs such a function anew, and lets it give as many items. That leaves it
at the right instruction; its variables may differ, as it may draw random numbers, read what has
since changed, or count what it gave. So a snapshot, and of one that draws (`drawing_generators`)
whoever gives another process its place, tells the variables that the function binds, and
how far the iterators have come over which its own loops go, and both are put in place afterwards.
Of an iterator of a class of the script's that nothing else leads to the attributes are told. The
items that loops have taken are told as well: those of the fresh process are other ones.

Whether that leads to the same place is tried by this code, before it is promised
(`generator_trials`).
"""

import dis
import functools
import gc
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType, GeneratorType
from typing import Any

import torch

from recoverrun.worker.arrival import inner_iterators
from recoverrun.worker.arrival.container_contents import WHOLE, fill
from recoverrun.worker.arrival.frame_variables import WRITES_THROUGH, write
from recoverrun.worker.arrival.inner_iterators import same
from recoverrun.worker.arrival.packing import CannotTravel, Packing, Plain, unpack
from recoverrun.worker.context.iterator_copy import BUILT_IN
from recoverrun.worker.context.object_graph import Holdings
from recoverrun.worker.context.object_members import is_defined_in
from recoverrun.worker.context.values import is_numpy
from recoverrun.worker.data.generator_source import GeneratorSource
from recoverrun.worker.data.generator_wrapper import same_kind
from recoverrun.worker.data.loader_iterator import LoaderIterator
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.tracking.loop_iterator import LoopIterator
from recoverrun.worker.tracking.microbatches import LoopFrame
from recoverrun.worker.tracking.python_frames import find_frame

ELSEWHERE = "{} does not come to the instruction at which it waited"
LACKING = "{} has other generators below it than it had"

MOST_BYTES = 64 << 20
"""Of what one variable holds, or one loop goes over: more is data."""

TENSOR_BYTES, OBJECT_BYTES, INTEGER_BYTES = 4096, 64, 8
"""Counted of each, beside what it holds, for the time that it takes."""

OF_LOOPS = "loop "
"""The beginning of the names of what loops go over."""

NUMBERS = frozenset({int, float, bool})

BINDS = frozenset({"STORE_FAST", "DELETE_FAST", "STORE_DEREF", "DELETE_DEREF"})


@dataclass(frozen=True, slots=True)
class Stateful:
    """A generator that waits, or an iterator of a class of the script's."""

    one: Any
    source: GeneratorSource | None  # through which the script asks it

    @property
    def name(self) -> str:
        return str(getattr(self.one, "__qualname__", "") or type(self.one).__name__)


@dataclass(frozen=True, slots=True)
class Below:
    """All of them from which a loop, or a variable that holds an iterator, takes its items."""

    name: str
    found: list[Stateful]
    loaders: list[LoaderIterator]  # below, too

    @property
    def loads(self) -> bool:
        return bool(self.loaders)


def below(stack: Sequence[LoopFrame], there: Holdings, own: frozenset[str]) -> list[Below]:
    """Those of the loops of `stack`, and of what has a name in `there`, each in the order in which
    it is met, and named once.
    """
    roots = [(f"{OF_LOOPS}{number}", one.items) for number, one in enumerate(stack)]
    roots += [(path, one) for path, one in (*there.iterators, *there.sources) if path]
    named = {id(one) for path, one in there.held if path}
    seen: set[int] = set()
    found = [_below(name, root, own, named, seen) for name, root in roots]
    return [one for one in found if one.found]


def under(root: Any, own: frozenset[str]) -> Below:
    """Those from which an iterator takes its items."""
    return _below("", root, own, set(), set())


def _below(name: str, root: Any, own: frozenset[str], named: set[int], seen: set[int]) -> Below:
    found: list[Stateful] = []
    todo: list[tuple[Any, GeneratorSource | None]] = [(root, None)]
    loaders: list[LoaderIterator] = []
    while todo:
        one, source = todo.pop()
        if id(one) in seen or not hasattr(type(one), "__next__"):
            continue
        seen.add(id(one))
        inner: Iterable[Any] = ()
        if isinstance(one, LoaderIterator):
            loaders.append(one)
        elif isinstance(one, GeneratorSource):
            todo.append((one.generator, one))
        elif isinstance(one, LoopIterator):
            inner = (one.items,)
        elif isinstance(one, GeneratorType) and one.gi_code in same_kind.__code__.co_consts:
            inner = (one.gi_yieldfrom,)
        elif isinstance(one, GeneratorType):
            if one.gi_suspended:
                found.append(Stateful(one, source))
                inner = gc.get_referents(one)
        elif type(one).__module__ in BUILT_IN:
            inner = inner_iterators.parts(one)
        elif is_own_iterator(one, own):
            inner = vars(one).values()
            if named.isdisjoint((id(one), id(vars(one)))):
                found.append(Stateful(one, source))
        todo += [(part, None) for part in reversed(list(inner))]
    return Below(name, found, loaders)


def is_own_iterator(one: Any, own: frozenset[str]) -> bool:
    """True of one whose place its attributes tell, of a class of the script's `own` modules."""
    kind = type(one)
    return kind.__module__ in own and hasattr(kind, "__next__") and hasattr(one, "__dict__")


def told(found: Sequence[Stateful], packing: Packing) -> list[list[Any]]:
    """Plain values for msgpack: for each its place, its variables, the names of those that cannot
    be told, and the places of iterators over sequences.
    """
    return [_told(one.one, packing) for one in found]


def untold(found: Sequence[Stateful]) -> list[str]:
    """The names of variables that cannot be told."""
    return [name for _, _, names, _ in told(found, Packing([])) for name in names]


def put(
    states: Sequence[Sequence[Any]],
    found: Sequence[Stateful],
    tensors: Sequence[torch.Tensor],
    here: Sequence[torch.Tensor] = (),
) -> None:
    """Put them in place. Raises NotReachable where these are others, or wait elsewhere."""
    if len(states) != len(found):
        raise NotReachable(LACKING.format(found[0].name if found else "a loop"))
    for (at, variables, _, places), one in zip(states, found, strict=True):
        if at != _place(one.one):
            raise NotReachable(ELSEWHERE.format(one.name))
        present = variables_of(one.one)
        values = {name: unpack(packed, tensors, here=here) for name, packed in variables}
        iterators = inner_iterators.below(one.one)
        if len(iterators) != len(places):
            raise NotReachable(ELSEWHERE.format(one.name))
        for iterator, place in zip(iterators, places, strict=True):
            inner_iterators.move(iterator, unpack(place, tensors, here=here))
        rest = {
            name: value
            for name, value in values.items()
            if not (name in present and same(present[name], value))  # it may be another's memory
            and not fill(present.get(name), value)
        }
        if isinstance(one.one, GeneratorType):
            write(_frame(one.one), rest)
            _let_go(one.one)
        else:
            vars(one.one).update(rest)


def _told(one: Any, packing: Packing) -> list[Any]:
    variables: list[list[Plain]] = []
    untold: list[str] = []
    held = variables_of(one)
    iterators = {id(value) for value in held.values() if hasattr(type(value), "__next__")}
    for name, value in sorted(held.items()):
        if id(value) in iterators or _repeats(value, iterators):
            continue
        try:
            _require_light(value, name)
            variables.append([name, packing.pack(value, f"{_place_of(one)}.{name}")])
        except CannotTravel:
            untold.append(name)
    places: list[list[Plain]] = []
    for iterator in inner_iterators.below(one):
        left, at, items = inner_iterators.place_of(iterator)
        where = f"{_place_of(one)}: items"
        try:
            _require_light(items, where)
            packed = packing.pack(items, where)
        except CannotTravel as why:
            untold.append(why.path)
            packed = None
        places.append([left, at, packed])
    return [_place(one), variables, untold, places]


def _repeats(value: Any, iterators: Collection[int]) -> bool:
    """True of a list of one iterator alone that another variable holds, too: a batch sampler asks
    it for all rows of a batch.
    """
    return (
        type(value) in (list, tuple)
        and len(set(map(id, value)) | {0}) == 2
        and id(value[0]) in iterators
    )


def _require_light(value: Any, path: str) -> None:
    """Raises CannotTravel if it is data."""
    left, todo = MOST_BYTES, [value]
    while todo and left >= 0:
        one = todo.pop()
        if isinstance(one, torch.Tensor) or is_numpy(one):
            left -= one.nbytes + TENSOR_BYTES
        elif isinstance(one, str | bytes):
            left -= len(one) + OBJECT_BYTES
        elif isinstance(one, dict):
            left -= OBJECT_BYTES
            if 2 * OBJECT_BYTES * len(one) > left:
                break
            todo += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set | frozenset | deque):
            numbers = NUMBERS.issuperset(map(type, one))
            left -= OBJECT_BYTES + (INTEGER_BYTES * len(one) if numbers else 0)
            if not numbers and OBJECT_BYTES * len(one) > left:
                break  # to look at each takes long
            todo += [] if numbers else one
        else:
            left -= OBJECT_BYTES
    else:
        if left >= 0:
            return
    raise CannotTravel("what is large", path)


def _place_of(one: Any) -> str:
    return f"generator {getattr(one, '__qualname__', '') or type(one).__name__}"


def _place(one: Any) -> int:
    return _frame(one).f_lasti if isinstance(one, GeneratorType) else -1


def _frame(one: "GeneratorType[Any, Any, Any]") -> FrameType:
    assert one.gi_frame is not None, "it waits"
    return one.gi_frame


def variables_of(one: Any) -> dict[str, Any]:
    """Those that its own code may change."""
    if not isinstance(one, GeneratorType):
        return dict(vars(one))
    values, bound = dict(_frame(one).f_locals), _bound(one.gi_code)
    _let_go(one)
    return {
        name: value for name, value in values.items() if name in bound or type(value) in CONTAINERS
    }


def objects_of(one: Any, own: frozenset[str]) -> dict[str, Any]:
    """Objects of the script's that it was given, or that its attributes hold, by name. They are no
    variables that its code binds: what is in them is told by others.
    """
    if isinstance(one, GeneratorType):
        values, bound = dict(_frame(one).f_locals), _bound(one.gi_code)
        _let_go(one)
    else:
        values, bound = dict(vars(one)), frozenset()
    return {
        name: value
        for name, value in sorted(values.items())
        if name not in bound
        and is_defined_in(type(value), own)
        and not (hasattr(type(value), "__next__") or isinstance(value, torch.nn.Module))
    }


CONTAINERS = (*WHOLE, dict)


def _let_go(one: "GeneratorType[Any, Any, Any]") -> None:
    """Before 3.13 its frame keeps this dict, and the dict all that is in it."""
    local: Any = _frame(one).f_locals
    if not WRITES_THROUGH:
        local.clear()


@functools.cache
def _bound(code: CodeType) -> frozenset[str]:
    return frozenset(str(one.argval) for one in dis.get_instructions(code) if one.opname in BINDS)


def items_of(
    stack: Sequence[LoopFrame],
    start: FrameType,
    drawn: Sequence[Below],
    also: Iterable[str] = (),
) -> list[tuple[int, str, Any]]:
    """The items that loops have taken from these, and the loops of the names `also`: the number of
    the loop, name and value.
    """
    numbers = {*also, *(one.name for one in drawn)}
    found = []
    for number, one in enumerate(stack):
        if f"{OF_LOOPS}{number}" in numbers and (frame := find_frame(one.frame_id, start)):
            values = frame.f_locals
            names = sorted(one.loop.targets & values.keys())
            found += [(number, name, values[name]) for name in names]
    return found


def untold_items(
    stack: Sequence[LoopFrame],
    start: FrameType,
    drawn: Sequence[Below],
    also: Iterable[str] = (),
) -> list[str]:
    """The names of items that cannot be told."""
    packing, names = Packing([]), []
    for _, name, value in items_of(stack, start, drawn, also):
        try:
            packing.pack(value)
        except CannotTravel:
            names.append(name)
    return names


def put_items(items: Sequence[tuple[str, Any]], loop_frame: LoopFrame, start: FrameType) -> None:
    """Give the variables that `loop_frame` binds for each iteration the items that were taken."""
    frame = find_frame(loop_frame.frame_id, start)
    assert frame is not None, "its top was reached"
    present = dict(frame.f_locals)
    write(
        frame,
        {
            name: value
            for name, value in items
            if not (name in present and same(present[name], value))
        },
    )
