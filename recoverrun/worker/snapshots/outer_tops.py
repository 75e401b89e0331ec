"""The values that code between two loops finds: as they were when the outer one's iteration began.

A snapshot is taken at the top of an inner loop, and a process that goes back to it runs the code
between the loops once more: what begins an epoch, say, and asks a counter whether that is the first
one. So as such an iteration begins, it is noted which plain values have changed since the run
began. Those with tensors are put in place at the inner loop alone, as all else is.
"""

from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

from recoverrun.worker.arrival import passed_bodies, plain_values
from recoverrun.worker.arrival.frame_variables import frames_of
from recoverrun.worker.arrival.iterator_places import Hold
from recoverrun.worker.arrival.packing import Packing
from recoverrun.worker.arrival.value_places import Place
from recoverrun.worker.context.object_graph import Holdings
from recoverrun.worker.snapshots import script_values
from recoverrun.worker.tracking.microbatches import LoopFrame
from recoverrun.worker.tracking.python_frames import find_frame
from recoverrun.worker.tracking.script_runtime import ScriptRuntime, changing_modules

Values = list[Any]
"""Plain values, as `plain_values.put` takes them."""


class OuterTops:
    """The present iterations, in one process, of loops around those whose iterations are steps."""

    def __init__(self, runtime: ScriptRuntime) -> None:
        self._runtime = runtime
        self._around: set[str] = set()  # ids of loops around the one at whose top a step has begun
        self._noted: dict[int, tuple[int, Values]] = {}  # by loop: its iteration, and values then

    def step_begins(self, stack: Sequence[LoopFrame]) -> None:
        """Note the top of the last loop of `stack`."""
        self._around.update(one.loop.id for one in stack[:-1])

    def begins(
        self, stack: Sequence[LoopFrame], start: FrameType, before: Mapping[Place, int]
    ) -> None:
        """An iteration of the last loop of `stack` begins; `start` is below its frame, and `before`
        are the digests of plain values as the run began.
        """
        last = stack[-1]
        if last.loop.id not in self._around:
            return
        there = self._found(stack, start)
        changed = plain_values.changed(there, before, of_process=True)
        values = plain_values.pack((one for one in changed if not one.tensors), Packing([]))
        self._keep(stack, last, values)

    def told(self, stack: Sequence[LoopFrame], start: FrameType) -> list[list[Any]]:
        """The values of each loop of `stack`, the innermost apart: plain values for msgpack."""
        bodies = passed_bodies.told(
            stack, start, self._runtime.own_modules, [None for _ in stack[:-1]], frozenset()
        )
        return [[body, self._values(one)] for one, body in zip(stack[:-1], bodies, strict=True)]

    def noted(self, stack: Sequence[LoopFrame]) -> list[Values]:
        """The values of each loop of `stack`, the innermost apart."""
        return [self._values(one) for one in stack[:-1]]

    def follow(self, stack: Sequence[LoopFrame], noted: Sequence[Values]) -> None:
        """This process has come to the last loop of `stack` by another way than through the tops of
        those around it; another rank has `noted` their values.
        """
        for one, values in zip(stack[:-1], noted, strict=True):
            self._around.add(one.loop.id)
            self._keep(stack, one, values)

    def put(self, told: list[Any], loop_frame: LoopFrame, start: FrameType, hold: Hold) -> None:
        """Put values in place before the body of `loop_frame`, in a process that goes back. Raises
        NotReachable.
        """
        body, values = told
        stack = self._runtime.stack
        frame = find_frame(loop_frame.frame_id, start)
        assert frame is not None, "its top was reached"
        there = self._found(stack, start)
        plain_values.put(values, [], there)
        passed_bodies.put(body, frame, hold, self._runtime.module_data)
        self._around.add(loop_frame.loop.id)
        self._keep(stack, loop_frame, values)

    def _found(self, stack: Sequence[LoopFrame], start: FrameType) -> Holdings:
        own = changing_modules(self._runtime)
        return script_values.found(frames_of(stack, start), own, stack=stack)

    def _keep(self, stack: Sequence[LoopFrame], last: LoopFrame, values: Values) -> None:
        under_way = {one.number for one in stack}
        self._noted = {key: one for key, one in self._noted.items() if key in under_way}
        self._noted[last.number] = (last.iteration, values)

    def _values(self, loop_frame: LoopFrame) -> Values:
        """None were noted as long as no step had begun in there: they are as they ever are."""
        iteration, values = self._noted.get(loop_frame.number, (-1, []))
        return values if iteration == loop_frame.iteration else []
