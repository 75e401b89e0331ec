"""The tracker that a script's instrumented code calls: a loop begins, goes on, ends.

As each iteration begins, a snapshot is kept of what its body can see (`Top`): enough to execute
that body again (`executor`). Where the script is, `ScriptRuntime` knows.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType, MappingProxyType
from typing import Any, TypeVar

from recoverrun.worker.context.attached_state import ATTACHED
from recoverrun.worker.instrumentation import NO_CHANGES, Changes, Loop
from recoverrun.worker.tracking.loop_iterator import LoopIterator
from recoverrun.worker.tracking.microbatches import CONTAINERS, LoopFrame, Top
from recoverrun.worker.tracking.python_frames import find_frame
from recoverrun.worker.tracking.script_runtime import ScriptRuntime
from recoverrun.worker.tracking.trained_loops import RETURNED, variables_of

T = TypeVar("T")

NOTHING: Mapping[str, Any] = MappingProxyType({})


class LoopTracker:
    """Implements `instrumentation.Runtime`."""

    def __init__(self, script: ScriptRuntime) -> None:
        self.script = script
        self.loops: dict[str, Loop] = {}
        self._installed: set[str] = set()  # files of packages
        # They look at the frame that calls them: nothing may stand between.
        gate = script.gate
        self.first, self.stands_in, self.hand_on = gate.first, gate.stands_in, gate.hand_on
        self.asking, self.leading, self.beside = gate.asking, gate.leading, gate.beside
        self.bring, self.waits, self.generator = gate.bring, script.waits, script.generator
        self.Unwind = script.Unwind

    def register(self, loop: Loop) -> None:
        self.loops[loop.id] = loop

    def own(
        self,
        module: str,
        path: str,
        source: bytes,
        changes: Changes = NO_CHANGES,
        *,
        installed: bool = False,
    ) -> None:
        """`module` is the script's own: its objects belong to what a slot is."""
        self.script.own_modules |= {module}
        self.script.module_data.own(module, changes)
        self.script.own_sources.load(module, path, source)
        if installed:
            self._installed.add(path)

    def refuse(self, filename: str, reason: str) -> None:
        self.script.refusals.append(f"{filename}: {reason}")

    def iterate(self, loop_id: str, iterable: Iterable[Any]) -> Iterator[Any]:
        if self.script.quiet:
            return iter(iterable)
        loop_frame = LoopFrame(self.loops[loop_id], id(sys._getframe(1)))
        return LoopIterator(self, loop_frame, iterable)

    def enter(self, loop_id: str) -> bool:
        if not self.script.quiet:
            frame = sys._getframe(1)
            loop_frame = LoopFrame(self.loops[loop_id], id(frame))
            if self.script.winds is not None and self.script.winds.passes_over(loop_frame, frame):
                return False
            self.script.loop_stack.push(loop_frame, frame)
            if self.script.winds is not None:
                self.script.winds.enters(loop_frame)
            loop_frame.counts = {id(source): source.count for source in self.script.sources}
        return True

    def leave(self, loop_id: str) -> None:
        if self.script.quiet:
            return
        loop_frame = self.script.loop_stack.turn_in(loop_id, sys._getframe(1))
        if loop_frame is not None:
            self.pop(loop_frame)

    def returns(self, loop_id: str, value: T) -> T:
        if self.script.quiet:
            return value
        frame = sys._getframe(1)
        loop_frame = self.script.loop_stack.turn_in(loop_id, frame)
        if loop_frame is not None:
            self.pop(loop_frame, frame, {RETURNED: value})
        return value

    def returned(self, loop_id: str) -> bool:
        result = self.script.result
        return result is not None and result[0] == loop_id

    def result(self, loop_id: str) -> object:
        result, self.script.result = self.script.result, None
        assert result is not None and result[0] == loop_id, "asked behind `returned`"
        return result[1]

    def drained(self, reason: str, delegate: Iterable[object]) -> object:
        """Return the result of a generator that yields nothing; else the script waits here."""
        try:
            next(iter(delegate))
        except StopIteration as end:
            return end.value
        return self.script.waits(reason)

    def top(self, loop_id: str, local: dict[str, object], global_: dict[str, object]) -> None:
        if self.script.quiet:
            return
        loop_frame = self.script.loop_stack.under_way(loop_id, sys._getframe(1))
        if loop_frame is None:
            return
        if loop_frame.loop.kind != "for":
            self.begin_iteration(loop_frame)
        if self.script.winds is not None:
            self.script.winds.top(loop_frame, local, global_)
        if loop_frame.streams is None:
            return
        loop_frame.top = self._top(loop_frame, local, global_)
        if not loop_frame.loop.module_level and sys.version_info < (3, 13):
            local.clear()  # the frame keeps this dict and would keep the last logits alive with it
        self.script.on_top(loop_frame.top)

    def _top(self, loop_frame: LoopFrame, local: dict[str, Any], global_: dict[str, Any]) -> Top:
        observer = self.script.observer
        assert observer is not None and loop_frame.streams is not None, "not quiet"
        self.script.draws.end_header()
        observer.look()
        names = {
            **self._snapshot(loop_frame.loop, local),
            **ATTACHED.names(),
            **self.script.module_data.beside(global_),
        }
        attributes = observer.attributes(
            self._around(loop_frame, global_, names), self.script.own_modules, self.script.given()
        )
        read = {name: local[name] for name in loop_frame.loop.live_in if name in local}
        carried = loop_frame.loop.carried & names.keys()
        made_iterator = loop_frame.adopted != self.script.adopted
        return Top(
            loop=loop_frame.loop,
            frame_id=loop_frame.frame_id,
            iteration=loop_frame.iteration,
            item=loop_frame.item,
            streams=loop_frame.streams,
            body=observer.streams() if made_iterator else None,
            names=names,
            globals=global_,
            attributes=attributes,
            bulk=observer.bulk({name: names[name] for name in carried}),
            iterators=observer.iterators(global_, read),
            iterator_lists=observer.iterator_lists(),
            first_writes=len(ATTACHED.first_writes),
            containers={name: local[name] for name in carried if type(local[name]) in CONTAINERS},
            positions=[(source, source.count) for source in self.script.sources],
            draws=loop_frame.draws[:],
            ahead=loop_frame.ahead,
            heard=loop_frame.heard,
        )

    def _around(
        self, loop_frame: LoopFrame, global_: dict[str, Any], names: dict[str, Any]
    ) -> Mapping[str, Any] | None:
        """The names in which objects are looked for as an iteration begins; None: those of the last
        time are read. Variables that the header of the loop binds come with its item.
        """
        if self.script.microbatches:
            return None
        loop = loop_frame.loop
        around = names if loop.filename in self._installed else {**global_, **names}
        return {k: v for k, v in around.items() if k not in loop.targets}

    def pop(
        self,
        loop_frame: LoopFrame,
        below: FrameType | None = None,
        returned: Mapping[str, Any] = NOTHING,
    ) -> None:
        """A loop has ended, in a call that runs in `below` or around; `returned` is by a `return`
        in it.
        """
        self.script.draws.in_header = False  # it may have been the header that ended the loop
        trained = self.script.loop_stack.end(loop_frame)
        frame = find_frame(loop_frame.frame_id, below or sys._getframe(1))
        observer = self.script.observer
        if trained is not None and frame is not None and observer is not None:
            bound = variables_of(loop_frame.loop, frame)
            values, unlike = observer.left({**bound, **returned})
            trained.values = None if returned.keys() & unlike else values
            trained.unlike, trained.opened = unlike, self.script.opened

    def begin_iteration(self, loop_frame: LoopFrame) -> None:
        loop_frame.iteration += 1
        loop_frame.backwards, loop_frame.seeded, loop_frame.top = 0, False, None
        loop_frame.heard = self.script.heard
        assert self.script.observer is not None, "not quiet"
        # Until something has trained, any loop may be the one that does.
        passed = loop_frame.loop.id not in self.script.training_loops and self.script.idle.count(
            loop_frame.loop.id, within=self._is_within_training(loop_frame)
        )
        loop_frame.streams = None if passed else self.script.observer.streams()
        loop_frame.adopted, loop_frame.opened = self.script.adopted, self.script.opened
        loop_frame.trained = {}
        counts = {id(source): source.count for source in self.script.sources}
        if loop_frame.tested is None:  # its first iteration here
            begun = loop_frame.counts  # as a `while` was entered
            loop_frame.tested = {key: count - begun.get(key, 0) for key, count in counts.items()}
        loop_frame.counts = counts
        loop_frame.draws, ahead = self.script.draws.begin_iteration(first=not loop_frame.iteration)
        loop_frame.ahead = loop_frame.held + [draw for draw in ahead if draw not in loop_frame.held]
        if not loop_frame.iteration and loop_frame.streams is not None:
            self.script.on_loop()

    def _is_within_training(self, loop_frame: LoopFrame) -> bool:
        """True if an iteration of a loop that trains is under way around this one."""
        known = self.script.training_loops
        return any(
            one.top is not None and one.loop.id in known
            for one in self.script.stack
            if one is not loop_frame
        )

    def goes_over(self, loop_frame: LoopFrame, iterable: Iterable[Any]) -> None:
        """A loop begins. Items that it holds already are held until it ends: so are their draws."""
        draws = self.script.draws.before_now
        if draws and self.script.observer is not None:
            loop_frame.held = self.script.observer.drawn_for(iterable, draws)

    def _snapshot(self, loop: Loop, local: dict[str, Any]) -> dict[str, Any]:
        """The variables around the body that it can see, by reference."""
        if loop.module_level:
            wanted = loop.carried | loop.targets
            seen = {name: local[name] for name in wanted if name in local}
        else:
            gone = loop.assigned - loop.carried - loop.targets
            seen = {name: value for name, value in local.items() if name not in gone}
        assert self.script.observer is not None, "not quiet"
        for name in loop.carried & seen.keys():
            seen[name] = self.script.observer.copied(seen[name])
        return seen
