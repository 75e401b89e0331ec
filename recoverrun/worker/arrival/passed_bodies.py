"""The values that the body of an outer loop finds, as its present iteration began.

Between two loops of the path code runs once in a fresh process, too: it may take the batches of a
step from an iterator, or ask a counter whether it is time to evaluate. So before that code runs the
variables and attributes that are plain are as they were in the survivor then, and iterators have
come as far. All else comes as the innermost loop is reached.
"""

from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

from recoverrun.worker.arrival import frame_variables
from recoverrun.worker.arrival.frame_variables import names_bound
from recoverrun.worker.arrival.iterator_places import HeldIterator, Hold, held_iterator, source_of
from recoverrun.worker.context.module_data import ModuleData
from recoverrun.worker.context.namespaces import reachable
from recoverrun.worker.context.object_members import members, resolve
from recoverrun.worker.context.object_views import PLAIN
from recoverrun.worker.context.slot_context import Key, belongs_to_process
from recoverrun.worker.context.values import is_of_one_rank
from recoverrun.worker.context.values import put as put_member
from recoverrun.worker.data.samplers import RANK_NAMES
from recoverrun.worker.data.source import Source
from recoverrun.worker.data.weak_source import WeakSource
from recoverrun.worker.replay.known_state import KnownState, differing
from recoverrun.worker.tracking.microbatches import LoopFrame
from recoverrun.worker.tracking.python_frames import find_frame

LARGE = 1 << 63

Told = list[list[list[Any]]]
"""Of one loop: variables, iterators that variables hold, and attributes, each with its name."""


def told(
    stack: Sequence[LoopFrame],
    start: FrameType,
    own: frozenset[str],
    slots: Sequence[KnownState | None],
    apart: frozenset[Key] | None,
) -> list[Told]:
    """The values of each loop of `stack`, the innermost apart. `start` is below their frames;
    `slots` tell where the lost rank stood as these iterations began: what differs there is its own,
    as the rank that a sampler carries. Where that is not known (it was lost before), all is told
    but what differs now, `apart`; None if nobody has followed it.
    """
    return [
        _told(one, list(stack[: place + 1]), start, own=own, slot=slots[place], now_apart=apart)
        for place, one in enumerate(stack[:-1])
    ]


def _told(
    loop_frame: LoopFrame,
    around: list[LoopFrame],
    start: FrameType,
    *,
    own: frozenset[str],
    slot: KnownState | None,
    now_apart: frozenset[Key] | None,
) -> Told:
    frame, top = find_frame(loop_frame.frame_id, start), loop_frame.top
    if frame is None or top is None:
        return [[], [], []]
    bound = names_bound(one for one in around if one.frame_id == loop_frame.frame_id)
    values: dict[Key, Any] = {name: top.names[name] for name in sorted(bound & top.names.keys())}
    if slot is not None and top.context is not None:
        values |= dict(top.context.attributes.items())
        apart = differing(slot.context, top.context)
        values = {key: apart.get(key, one) for key, one in values.items()}
        values = {key: one for key, one in values.items() if key not in slot.unknown}
    elif now_apart is not None and top.context is not None:
        values |= dict(top.context.attributes.items())
        values = {key: one for key, one in values.items() if key not in now_apart}
    plain = {key: one for key, one in values.items() if _is_plain(one)}
    variables = [[key, one] for key, one in plain.items() if isinstance(key, str)]
    attributes = [[list(key), one] for key, one in plain.items() if not isinstance(key, str)]
    visible = {**frame.f_globals, **frame.f_locals}
    counts = {id(_held(source)): count for source, count in top.positions}
    iterators: list[list[Any]] = []
    for name, value in frame.f_locals.items():
        held, count = held_iterator(value, visible, own), counts.get(id(source_of(value)))
        if held is not None and count is not None:
            iterators.append([name, held.as_of(count).pack()])
    return [variables, iterators, attributes]


def _is_plain(value: Any) -> bool:
    """True of what nobody has changed since then, and msgpack knows."""
    kind = type(value)
    return kind in PLAIN and kind is not complex and (kind is not int or -LARGE < value < LARGE)


def _held(source: Source) -> Source | None:
    return source.held if isinstance(source, WeakSource) else source


def put(told_here: Told, frame: FrameType, hold: Hold, data: ModuleData) -> None:
    """Put the values into the `frame` of the loop, in a fresh process. Raises NotReachable."""
    variables, iterators, attributes = told_here
    frame_variables.write(frame, dict(variables))
    _put_attributes(attributes, reachable(data, frame.f_globals, frame.f_locals))
    for name, packed in iterators:
        visible = {**frame.f_globals, **frame.f_locals}
        present = frame.f_locals.get(name)
        held = hold(HeldIterator.unpack(packed), present, visible)
        if held is not present:
            frame_variables.write(frame, {name: held})


def _put_attributes(attributes: list[list[Any]], visible: Mapping[str, Any]) -> None:
    """The rank that a sampler carries is this process's, whatever others know of it."""
    for told_path, value in attributes:
        path = tuple(told_path)
        own = belongs_to_process(path[-1]) or path[-1] in RANK_NAMES
        owner = None if own else resolve(visible, path)
        if owner is None or path[-1] not in members(owner):
            continue
        if not is_of_one_rank(members(owner)[path[-1]], value):
            put_member(members(owner), path[-1], value)
