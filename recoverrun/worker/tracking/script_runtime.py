"""The state of the script: its loops, and the microbatches of the present transaction.

The instrumented loops of the script call `LoopTracker`, which notes here the stack of loops that
are under way. A microbatch is one backward of the script's own; it is known by the iterations
around it and by how many backwards came before it in each of them.
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Never

from recoverrun.worker.context.module_data import ModuleData
from recoverrun.worker.data.generator_wrapper import maker, same_kind
from recoverrun.worker.data.source import Draw
from recoverrun.worker.errors import Unwind
from recoverrun.worker.instrumentation import Loop
from recoverrun.worker.tracking.draw_log import DrawLog
from recoverrun.worker.tracking.idle_loops import IdleLoops
from recoverrun.worker.tracking.loop_frames import LoopStack, line_of
from recoverrun.worker.tracking.loop_winder import LoopWinder
from recoverrun.worker.tracking.microbatches import LoopFrame, Microbatch, MicrobatchPlace, Top
from recoverrun.worker.tracking.mode import ExecutionMode
from recoverrun.worker.tracking.own_sources import OwnSources
from recoverrun.worker.tracking.process_observer import Observer
from recoverrun.worker.tracking.rank0_gate import Rank0Gate
from rendezvous.protocol.layout import Layout
from rendezvous.protocol.progress_page import ProgressWriter

if TYPE_CHECKING:  # they import torch, which the script imports when it wants to
    from recoverrun.worker.data.source import Source
    from recoverrun.worker.rng.streams import Streams


class ScriptRuntime:
    """The runtime of the script of a protected worker. `own_rank` is that of this process."""

    Unwind: ClassVar[type[BaseException]] = Unwind

    def __init__(self, own_rank: int, progress: ProgressWriter | None = None) -> None:
        self.own_rank = own_rank
        self.progress = progress or ProgressWriter("")  # tells the launcher where the script is
        self.gate = Rank0Gate(own_rank)
        self.beside = self.gate.beside
        self.alone = 0  # nesting depth of blocks that only this rank executes as its own work
        self.refusals: list[str] = []
        self.own_modules: frozenset[str] = frozenset({"__main__"})
        self.own_sources = OwnSources()
        self.module_data = ModuleData()
        self.counting_modules: set[str] = set()  # framework modules whose objects count steps
        self.loop_stack = LoopStack()
        self.microbatches: list[Microbatch] = []
        self.previous: Microbatch | None = None  # first of the last transaction
        self.outward: dict[str, int] = {}
        """Loop around a backward -> index of the iteration around it that is executed again."""
        self.regions: set[str] = set()  # loops whose bodies are executed again
        self.observer: Observer | None = None  # None until the script has imported torch
        self.mode = ExecutionMode()
        self.layout: Layout | None = None  # None until the replicas are known
        self.unwrapped_steps = 0  # optimizer steps before a model was served
        self.unwrapped_backwards = 0  # backward passes before a model was served
        self.sources: list[Source] = []
        self.adopted = 0  # sources adopted so far
        self.opened = 0  # loader iterators made so far
        self.winds: LoopWinder | None = None  # set while this process is on its way to a place
        self.result: tuple[str, Any] | None = None
        """A loop that was passed over, and what others have returned from within it."""
        self.heard = 0  # collectives in which ranks may have said different things
        self.feeding: Callable[[Any, str, Any], Any] | None = None  # None until torch is imported
        self.spoiled = ""  # why the present execution as another rank is wrong, "" if it is not
        self.on_top: Callable[[Top], None] = lambda top: None
        self.on_loop: Callable[[], None] = lambda: None
        """Hears of each loop whose first iteration begins, before that has drawn an item."""
        self.draws = DrawLog(lambda: len(self.microbatches))
        self.idle = IdleLoops()
        self.training_loops: set[str] = set()  # ids of loops around a backward
        self._over: list[Source] = []  # ended before this step; their items may be used in it

    def see(
        self,
        observer: Observer,
        on_top: Callable[[Top], None],
        feeding: Callable[[Any, str, Any], Any],
    ) -> None:
        """The script has imported torch: `on_top` hears of each iteration that begins, `feeding`
        is given the generators of the script's own generator functions.
        """
        self.observer, self.on_top, self.feeding = observer, on_top, feeding

    def also_tell(self, on_top: Callable[[Top], None]) -> None:
        """`on_top` hears of each iteration that begins, too, after those who are told already."""
        first = self.on_top

        def both(top: Top) -> None:
            first(top)
            on_top(top)

        self.on_top = both

    @property
    def acting_rank(self) -> int | None:
        """The rank as which code is executed again, None while the script runs by itself."""
        return self.mode.acting_rank

    @property
    def active(self) -> bool:
        """False in what the script forks, and where it cannot be served."""
        return self.mode.active

    @property
    def quiet(self) -> bool:
        """True if nothing is noted: there is no torch yet, code is executed as another rank or in
        the place of rank 0, or this process is no rank.
        """
        here = self.observer is not None and self.mode.active and not self.gate.lone
        return not here or self.mode.acting_rank is not None

    @property
    def speaker(self) -> int | None:
        """The other rank whose code runs here, also in its child processes."""
        return self.mode.speaks_as if self.acting_rank is None else self.acting_rank

    def given(self) -> list[Any]:
        """The items that iterators have given of late: data, whatever holds them now."""
        items = [loop_frame.item for loop_frame in self.stack]
        return [*items, *(draw.item for draw in self.draws.before_now)]

    def generator(self, function: Any) -> Any:
        """A generator function of the script, whose generators may be sources of data."""

        def serve(*args: Any, **kwargs: Any) -> Any:
            made = function(*args, **kwargs)
            if self.quiet or self.feeding is None:
                return made
            return self.feeding(made, function.__qualname__, maker(function, args, kwargs))

        return same_kind(function, serve)

    # --------------------------------------------------------------------------- the stack

    @property
    def stack(self) -> list[LoopFrame]:
        """Loops that are under way, the outermost first."""
        return self.loop_stack.stack

    # --------------------------------------------------------------------------- data

    def adopt(self, source: "Source") -> None:
        """Add a new rank-dependent iterator of the script."""
        self.sources = [known for known in self.sources if not getattr(known, "gone", False)]
        self.sources.append(source)
        self.adopted += 1

    def drawn(self, source: "Source", index: int, item: Any) -> None:
        """Note an item taken in normal work; it belongs to the iteration that has just begun."""
        self.draws.note(Draw(source, index, item))

    def hears(self) -> None:
        """The ranks are about to tell each other something that may differ between them."""
        self.heard += 1

    def seeding(self) -> None:
        """Torch's streams are about to be seeded: note it where nothing was drawn before."""
        if self.observer is None or not self.active:
            return
        if self.acting_rank is not None:
            if self.mode.untold is not None and self._undrawn(self.mode.untold):
                self.mode.untold = None
            return
        for loop_frame in self.stack:
            if (
                loop_frame.streams is not None
                and not loop_frame.seeded
                and self._undrawn(loop_frame.streams)
            ):
                loop_frame.seeded = True
                if loop_frame.top is not None:
                    loop_frame.top.seeded = True

    def _undrawn(self, began: "Streams") -> bool:
        assert self.observer is not None, "torch is there"
        now = self.observer.streams()
        return (now.torch_cpu, now.torch_cuda) == (began.torch_cpu, began.torch_cuda)

    def waits(self, reason: str, _value: object = None) -> Never:
        """Code that is executed again is about to wait for somebody, as the script itself would."""
        self.spoil(reason)
        raise Unwind("wait")

    def spoil(self, reason: str) -> None:
        """Mark the execution as another rank as wrong, for this reason."""
        self.spoiled = self.spoiled or reason

    # --------------------------------------------------------------------------- microbatches

    def note_backward(self) -> Microbatch | None:
        """A backward of normal work is done: the microbatch, None if no loop is around it."""
        places = []
        frame = sys._getframe(1)
        self.loop_stack.drop_stale(frame)
        for loop_frame in reversed(self.stack):
            if loop_frame.top is not None:
                loop_frame.top.drew = len(loop_frame.draws) > len(loop_frame.top.draws)
                loop_frame.top.seeded = loop_frame.seeded
                places.append(
                    MicrobatchPlace(
                        loop_frame.top, loop_frame.backwards, line_of(loop_frame, frame)
                    )
                )
            loop_frame.backwards += 1
        if not places:
            return None
        self.training_loops.update(one.loop.id for one in self.stack)  # one may have been idle
        microbatch = Microbatch(len(self.microbatches), tuple(places))
        microbatch.chosen = self.outward.get(places[0].top.loop.id, 0)
        self.microbatches.append(microbatch)
        self.loop_stack.note_backward()
        return microbatch

    def trains(self, loop: Loop) -> bool:
        """True if a backward of the script was seen in `loop`."""
        return loop.id in self.training_loops

    def is_region(self, top: Top) -> bool:
        """True if a microbatch may be executed again from here, as far as is known."""
        return top.loop.id in self.regions or not self.trains(top.loop)

    def tops_around(self) -> list[Top]:
        """The tops of the iterations that are under way, the innermost first: of loops that are
        known to train, once any is.
        """
        under_way = reversed(self.loop_stack.stack)
        tops = [top for loop_frame in under_way if (top := loop_frame.top) is not None]
        return [top for top in tops if top.loop.id in self.training_loops] or tops

    def top_around(self) -> Top | None:
        """The iteration from which what runs now would be executed again."""
        tops = self.tops_around()
        if not tops:
            return None
        return tops[min(self.outward.get(tops[0].loop.id, 0), len(tops) - 1)]

    def under_way(self) -> list[LoopFrame]:
        """Iterations that have begun and from which the next microbatch may be executed again, the
        outermost first: a loop within one may have transactions of its own.
        """
        return [
            loop_frame
            for loop_frame in self.stack
            if loop_frame.top is not None and loop_frame.loop.id in self.regions
        ]

    def begin_step(self) -> None:
        around = self.under_way()
        counts = around[0].counts if around else {}
        self.previous = self.microbatches[0] if self.microbatches else None
        self.microbatches = []
        self.draws.begin_step()
        over, self._over = self._over, [s for s in self.sources if getattr(s, "ended", False)]
        needed = {id(source) for frame in around if frame.top for source, _ in frame.top.positions}
        self.sources = [
            source for source in self.sources if source not in over or id(source) in needed
        ]
        for source in self.sources:
            source.begin_step(counts.get(id(source), source.count))

    def why_no_loop(self) -> str:
        """The reason why no loop of the script is known around its backward."""
        if self.refusals:
            return self.refusals[0]
        idle = [why for loop_frame in self.stack if (why := self.idle.why(loop_frame.loop.id))]
        if idle:
            return idle[-1]
        return "no loop of the script's own code was seen around its backward pass"


def changing_modules(runtime: ScriptRuntime) -> frozenset[str]:
    """Those whose objects a process that comes into the middle of the loops has to be told."""
    return runtime.own_modules | runtime.counting_modules
