"""A script in one process, and the same in another that comes into the middle of its loops."""

import ast
import sys
from copy import deepcopy
from dataclasses import replace
from types import FrameType
from typing import Any, Never

import torch
from torch.utils.data import DataLoader

from recoverrun.worker.analysis.call_graph import CallGraph
from recoverrun.worker.arrival import passed_bodies, passed_loops
from recoverrun.worker.arrival.frame_variables import read_all, write_all
from recoverrun.worker.arrival.iterator_places import HeldIterator, held_iterator
from recoverrun.worker.arrival.winding import SurvivorPosition, Winding, standing
from recoverrun.worker.context.module_data import ModuleData
from recoverrun.worker.context.observer import TorchObserver
from recoverrun.worker.data.batch_substitution import contains
from recoverrun.worker.instrumentation import RUNTIME_NAME
from recoverrun.worker.replay.data_sources import DataSources
from recoverrun.worker.replay.executor import Executor
from recoverrun.worker.rewriting.loop_transformer import instrument
from recoverrun.worker.rng.streams import Streams, restore_streams
from recoverrun.worker.tracking.loop_tracker import LoopTracker
from recoverrun.worker.tracking.microbatches import LoopFrame, Top
from recoverrun.worker.tracking.python_frames import find_frame
from recoverrun.worker.tracking.script_runtime import ScriptRuntime
from recoverrun.worker.tracking.trained_loops import TrainedLoop
from tests.unit.loaders import ORIGINAL_ITER

SEED = 11


class Told:
    """The words of a survivor at one top."""

    def __init__(self, runtime: ScriptRuntime, frame: FrameType, names: dict[str, Any]) -> None:
        self.standing = SurvivorPosition.unpack(standing(runtime).pack())
        self.variables = [
            replace(one, local=_told(one.local, names), module=_told(one.module, names))
            for one in read_all(runtime.stack, frame)
        ]
        self.passes = passed_bodies.told(
            runtime.stack, frame, frozenset({"__main__"}), [None] * len(runtime.stack), None
        )
        self.streams: list[Streams | None] = [one.streams for one in runtime.stack]
        self.generators = {
            name: value.get_state() for name, value in names.items()
            if isinstance(value, torch.Generator)
        }  # fmt: skip


class Process:
    """One process of a script, whose `train` stands for all that trains and is noted.

    At top `number` of the loop at `line` (of a newcomer: since it has arrived) it tells where it
    stands, and what it trains from then on is what a newcomer should train.
    """

    def __init__(self, text: str, line: int, number: int, **given: Any) -> None:
        self.runtime = ScriptRuntime(0)
        self.sources = DataSources(self.runtime, Executor(self.runtime, _never))
        self.runtime.see(TorchObserver(), self._top, self.sources.feed)
        graph = CallGraph()
        graph.mark_training({"train", "batch", "epoch"})
        made = instrument(ast.parse(text), "s.py", graph.backward_names())
        tracker = LoopTracker(self.runtime)
        for loop in made.loops:
            tracker.register(loop)
        self._code = made.code
        self.names: dict[str, Any] = {
            RUNTIME_NAME: tracker, "__name__": "__main__", "train": self.train, **given
        }  # fmt: skip
        self.noted: list[Any] = []
        self._line, self._left = line, number
        self.tells: Told | None = None
        self.stood: list[list[Any]] = []  # at each top from then on
        self.drew: list[list[tuple[int, int]]] = []  # there: what its item was drawn by

    @property
    def told(self) -> "Told":
        assert self.tells is not None, "the loop did not come so far"
        return self.tells

    def train(self, *what: Any) -> None:
        """Of a microbatch, with a number that its dropout would draw."""
        self.noted.append((*map(_plain, what), torch.rand(1).item()))
        self.runtime.note_backward()
        self.runtime.begin_step()

    def _top(self, top: Top) -> None:
        if top.loop.line != self._line:
            return
        if self._left:
            self._left -= 1
            return
        if self.tells is None:
            self.tells = Told(self.runtime, sys._getframe(1), self.names)
            self.noted.clear()
        self.stood.append(standing(self.runtime).pack())
        drawn = [one for one in [*top.draws, *top.ahead] if contains(top.item, one.item)]
        self.drew.append([(one.source.number, one.index) for one in drawn])

    def run(self) -> None:
        torch.manual_seed(SEED)
        kind: Any = DataLoader
        kind.__iter__ = lambda loader: self.sources.iterate(loader, ORIGINAL_ITER)
        try:
            exec(self._code, self.names)
        finally:
            kind.__iter__ = ORIGINAL_ITER
            self._end_workers()

    def _end_workers(self) -> None:
        """Of loaders that keep theirs from pass to pass: nothing else would end them here."""
        for value in self.names.values():
            if isinstance(value, DataLoader) and value.persistent_workers:
                iterator: Any = value._iterator
                iterator._shutdown_workers()


class Newcomer(Process):
    """Comes to where `place` says, and goes on from there. As it began the others had come past
    `passed` loops for good.
    """

    def __init__(
        self,
        text: str,
        place: Told,
        line: int,
        number: int,
        *,
        passed: int | None = None,
        **given: Any,
    ) -> None:
        super().__init__(text, line, number, **given)
        self.place = place
        first, *_ = place.standing.loops
        known = first.passed[:passed]
        outermost = [*first.passed, first][len(known)].loop_id
        self.winding = self.runtime.winds = Winding(self.runtime, outermost, self, known)
        self.came: list[str] = []

    def before(self, loop_id: str) -> SurvivorPosition:
        self.came.append("before")
        return self.place.standing

    def passes_over(self, trained: TrainedLoop, frame: FrameType) -> None:
        self.came.append("passes over")
        passed_loops.put(trained, frame)

    def restore(self, index: int) -> None:
        streams = self.place.streams[index]
        assert streams is not None
        restore_streams(streams)

    def finds(self, loop_frame: LoopFrame) -> None:
        self.came.append("finds")

    def passes(self, index: int, loop_frame: LoopFrame) -> None:
        self.came.append("passes")
        frame = find_frame(loop_frame.frame_id, sys._getframe(1))
        assert frame is not None, "its top was reached"
        told, hold = self.place.passes[index], self.winding.sources.hold
        passed_bodies.put(told, frame, hold, ModuleData())

    def arrived(self, loop_frame: LoopFrame, global_: dict[str, Any]) -> None:
        self.came.append("arrived")
        for name, state in self.place.generators.items():
            self.names[name].set_state(state)
        frame = find_frame(loop_frame.frame_id, sys._getframe(1))
        assert frame is not None, "its top was reached"
        present = {**global_, **frame.f_locals}
        variables = [
            replace(one, local=self._here(one.local, present), module=one.module)
            for one in self.place.variables
        ]
        write_all(variables, self.runtime.stack, sys._getframe(1))
        self.runtime.begin_step()
        self.runtime.draws.arrive()
        self.noted.clear()

    def _here(self, told: dict[str, Any], present: dict[str, Any]) -> dict[str, Any]:
        """Iterators are this process's own."""
        hold = self.winding.sources.hold
        return {
            name: hold(HeldIterator.unpack(value.pack()), present.get(name), self.names)
            if isinstance(value, HeldIterator)
            else value
            for name, value in told.items()
        }


def _told(values: dict[str, Any], names: dict[str, Any]) -> dict[str, Any]:
    """As they travel: no process sees the objects of another."""
    own = frozenset({"__main__"})
    return {
        name: held_iterator(value, names, own) or deepcopy(value) for name, value in values.items()
    }


def both(text: str, line: int, number: int, **given: Any) -> tuple[Process, Newcomer]:
    """Run `text` to its end in a process, and in another that comes to where it stood."""
    survivor = Process(text, line, number, **given)
    survivor.run()
    newcomer = Newcomer(text, survivor.told, line, 0, **given)
    newcomer.run()
    return survivor, newcomer


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, torch.Tensor) else value


def _never(_reason: str) -> Never:
    raise AssertionError("nothing is executed as another rank")
