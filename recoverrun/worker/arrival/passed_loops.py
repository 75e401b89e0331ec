"""Loops that have trained and are over, on the way to where a survivor is.

A fresh process cannot train as they did: it passes each over as it comes to it, and goes on with
what the loop has left in variables. Code between such loops runs in it as it did in the others,
though on a model that was not trained; what that leaves in parameters, optimizers, attributes and
random streams is put right as it arrives. Of values that are no figures, nor lists of them, it has
None where its own first lines have bound nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from recoverrun.worker.arrival import frame_variables
from recoverrun.worker.context import values
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.instrumentation import Loop
from recoverrun.worker.tracking.loop_frames import LoopStack
from recoverrun.worker.tracking.trained_loops import RETURNED, TrainedLoop


@dataclass(frozen=True, slots=True)
class PassedLoop:
    """One loop that has trained and is over."""

    loop_id: str
    opened: int = 0  # iterators of loaders that the process had made as it ended
    values: Mapping[str, Any] = field(default_factory=dict)  # packed, by variable
    unlike: tuple[str, ...] = ()  # variables whose values are not told

    def pack(self) -> list[Any]:
        """Plain values for msgpack."""
        return [self.loop_id, self.opened, dict(self.values), list(self.unlike)]

    @staticmethod
    def unpack(packed: list[Any]) -> "PassedLoop":
        """Raises ValueError if `packed` is not what `pack` makes."""
        loop_id, opened, told, unlike = packed
        return PassedLoop(str(loop_id), int(opened), dict(told), tuple(map(str, unlike)))

    def trained(self, loop: Loop) -> TrainedLoop:
        """The facts of it that a process needs which comes to others later."""
        told = {name: values.unpack(one) for name, one in self.values.items()}
        return TrainedLoop(loop, told, self.unlike, self.opened)


def told(loops: LoopStack) -> list[tuple[PassedLoop, ...]]:
    """The loops before each of those that are under way, the outermost first.

    Raises NotReachable if one of them cannot be passed over.
    """
    return [tuple(map(_told, level.values())) for level in loops.trained_before()[:-1]]


def for_good(loops: LoopStack) -> tuple[PassedLoop, ...]:
    """The loops before the outermost one under way: they stay over. Raises NotReachable."""
    return tuple(map(_told, loops.trained_before()[0].values()))


def _told(one: TrainedLoop) -> PassedLoop:
    if why := one.why_not_passed:
        raise NotReachable(why)
    packed = {name: values.pack(value) for name, value in (one.values or {}).items()}
    return PassedLoop(one.loop.id, one.opened, packed, one.unlike)


def put(one: TrainedLoop, frame: FrameType) -> None:
    """The loop is over in `frame`: its variables are as it has left them elsewhere."""
    of_module = one.loop.global_names
    present: Sequence[str] = (*frame.f_globals, *frame.f_locals)
    left = {**dict.fromkeys(set(one.unlike).difference(present)), **(one.values or {})}
    left.pop(RETURNED, None)
    local = {name: value for name, value in left.items() if name not in of_module}
    frame.f_globals.update({name: left[name] for name in left.keys() & of_module})
    frame_variables.write(frame, local)
