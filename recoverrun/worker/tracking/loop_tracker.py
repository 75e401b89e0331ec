"""Where the script is: its loops, and the microbatches of the present transaction.

The instrumented loops of the script call this object (`script.Runtime`). It keeps the stack of
loops that are under way and, as each iteration begins, a snapshot of what its body can see (`Top`):
enough to execute that body again (`executor`). A microbatch is one backward of the script's own;
it is known by the iterations around it and by how many backwards came before it in each of them.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from recoverrun.worker.context.attached_state import ATTACHED
from recoverrun.worker.data.generator_wrapper import same_kind
from recoverrun.worker.data.source import Draw
from recoverrun.worker.instrumentation import Loop
from recoverrun.worker.tracking.draw_log import Draws
from recoverrun.worker.tracking.idle_loops import Idle
from recoverrun.worker.tracking.loop_frames import Turn, Turns, line_of
from recoverrun.worker.tracking.loop_iterator import LoopIterator
from recoverrun.worker.tracking.microbatches import Microbatch, Place, Top
from recoverrun.worker.tracking.rank0_gate import Rank0Gate
from rendezvous.protocol.layout import Layout

if TYPE_CHECKING:  # they import torch, which the script imports when it wants to
    from recoverrun.worker.context.slot_context import Key, Path
    from recoverrun.worker.data.source import Source
    from recoverrun.worker.rng.streams import Streams


class Senses(Protocol):
    """What can be seen of a process once the script has imported torch."""

    def streams(self) -> "Streams":
        """Where the random streams stand."""

    def attributes(
        self,
        visible: Mapping[str, Any] | None,
        own: frozenset[str],
        given: Iterable[Any],
    ) -> "dict[Path, Any]":
        """Simple attributes of objects whose classes the modules `own` define.

        Objects are looked for among `visible` variables, but not in what iterators have `given`;
        if that is None, those of the last time are read.
        """

    def bulk(self, names: Mapping[str, Any]) -> "dict[Key, Any]":
        """What is large among `names` and the attributes last looked at, by reference."""

    def iterators(self, module: Mapping[str, Any], local: Mapping[str, Any]) -> "dict[Key, Any]":
        """Copies of plain iterators among the variables and the attributes last looked at."""

    def seen(self) -> frozenset[int]:
        """Identities of the objects that `attributes` last looked at, and of all generators."""

    def drawn_for(self, iterable: Iterable[Any], draws: list[Draw]) -> list[Draw]:
        """Those of `draws` that are in what a loop over `iterable` will be given."""

    def copied(self, value: Any) -> Any:
        """A copy of what code may change in place (small tensors, containers), else `value`."""


class Unwind(BaseException):
    """Leaves a region that is being executed again; no script catches it."""


class ScriptRuntime(Rank0Gate):
    """The `script.Runtime` of a protected worker. `own_rank` is that of this process."""

    Unwind: ClassVar[type[BaseException]] = Unwind

    def __init__(self, own_rank: int) -> None:
        super().__init__(own_rank)
        self.loops: dict[str, Loop] = {}
        self.refusals: list[str] = []
        self.own_modules: frozenset[str] = frozenset({"__main__"})
        self.turns = Turns()
        self.microbatches: list[Microbatch] = []
        self.previous: Microbatch | None = None  # the first one of the transaction before
        self.outward: dict[str, int] = {}
        self.regions: set[str] = set()  # loops whose bodies are executed again
        """By loop around a backward: which of the iterations around it is executed again."""
        self.senses: Senses | None = None  # None until the script has imported torch
        self.active = True  # False in what the script forks, and where it cannot be served
        self.acting_rank: int | None = None
        self.speaks_as: int | None = None  # in a child: the rank whose code began it
        self.untold: Streams | None = None  # in another's place: not its own, to be seeded first
        self.layout: Layout | None = None  # once the replicas are known
        self.unwrapped_steps = 0  # of an optimizer, before a model is served
        self.sources: list[Source] = []
        self.adopted = 0  # sources so far
        self.heard = 0  # collectives in which ranks may have said different things
        self.feeding: Callable[[Any, str], Any] | None = None  # set once torch is there
        self.spoiled = ""  # why what is being executed as another rank is not its microbatch
        self.on_top: Callable[[Top], None] = lambda top: None
        self.draws = Draws(lambda: len(self.microbatches))
        self.idle = Idle()
        self._trains: set[str] = set()  # loops around a backward
        self._last: Microbatch | None = None
        self._over: list[Source] = []  # ended before this step; what they gave may be used in it

    def see(
        self,
        senses: Senses,
        on_top: Callable[[Top], None],
        feeding: Callable[[Any, str], Any],
    ) -> None:
        """The script has imported torch: `on_top` hears of each iteration that begins, `feeding`
        is given the generators of the script's own generator functions.
        """
        self.senses, self.on_top, self.feeding = senses, on_top, feeding

    # --------------------------------------------------------------------------- script.Runtime

    def register(self, loop: Loop) -> None:
        self.loops[loop.id] = loop

    def own(self, module: str) -> None:
        """`module` is the script's own: its objects belong to what a slot is."""
        self.own_modules |= {module}

    def refuse(self, filename: str, reason: str) -> None:
        self.refusals.append(f"{filename}: {reason}")

    @property
    def quiet(self) -> bool:
        """Nothing is noted: no torch yet, another rank is stood in for, or this is no rank."""
        here = self.senses is not None and self.active and not self.lone
        return not here or self.acting_rank is not None

    @property
    def speaker(self) -> int | None:
        """The other rank whose code runs here, also in its child processes."""
        return self.speaks_as if self.acting_rank is None else self.acting_rank

    def iterate(self, loop_id: str, iterable: Iterable[Any]) -> Iterator[Any]:
        if self.quiet:
            return iter(iterable)
        turn = Turn(self.loops[loop_id], id(sys._getframe(1)))
        return LoopIterator(self, turn, iterable)

    def enter(self, loop_id: str) -> None:
        if not self.quiet:
            frame = sys._getframe(1)
            self.turns.push(Turn(self.loops[loop_id], id(frame)), frame)

    def leave(self, loop_id: str) -> None:
        turn = None if self.quiet else self.turns.under_way(loop_id, sys._getframe(1))
        if turn is not None:
            self.pop(turn)

    def top(self, loop_id: str, local: dict[str, object], global_: dict[str, object]) -> None:
        if self.quiet:
            return
        turn = self.turns.under_way(loop_id, sys._getframe(1))
        if turn is None:
            return
        if turn.loop.kind != "for":
            self.begin_iteration(turn)
        if turn.streams is None:
            return
        turn.top = self._top(turn, local, global_)
        if not turn.loop.module_level and sys.version_info < (3, 13):
            local.clear()  # the frame keeps this dict and would keep the last logits alive with it
        self.on_top(turn.top)

    def _top(self, turn: Turn, local: dict[str, Any], global_: dict[str, Any]) -> Top:
        assert self.senses is not None and turn.streams is not None, "not quiet"
        self.draws.end_header()
        names = {**self._snapshot(turn.loop, local), **ATTACHED.names()}
        attributes = self.senses.attributes(
            self._around(turn, global_, names), self.own_modules, self.given()
        )
        read = {name: local[name] for name in turn.loop.live_in if name in local}
        carried = turn.loop.carried & names.keys()
        return Top(
            loop=turn.loop,
            frame_id=turn.frame_id,
            iteration=turn.iteration,
            item=turn.item,
            streams=turn.streams,
            body=self.senses.streams() if turn.adopted != self.adopted else None,
            names=names,
            globals=global_,
            attributes=attributes,
            bulk=self.senses.bulk({name: names[name] for name in carried}),
            iterators=self.senses.iterators(global_, read),
            positions=[(source, source.count) for source in self.sources],
            draws=turn.draws[:],
            ahead=turn.ahead,
            heard=turn.heard,
        )

    def _around(
        self, turn: Turn, global_: dict[str, Any], names: dict[str, Any]
    ) -> Mapping[str, Any] | None:
        """Where objects are looked for as an iteration begins; None: those of the last time are
        read. What the header of the loop binds comes with its item.
        """
        if self.microbatches:
            return None
        return {k: v for k, v in {**global_, **names}.items() if k not in turn.loop.targets}

    def given(self) -> list[Any]:
        """What iterators have given of late: data, whatever holds them now."""
        items = [turn.item for turn in self.stack]
        return [*items, *(draw.item for draw in self.draws.before_now)]

    def generator(self, function: Any) -> Any:
        """A generator function of the script, whose generators may be sources of data."""

        def serve(*args: Any, **kwargs: Any) -> Any:
            made = function(*args, **kwargs)
            feeding = self.feeding
            return made if self.quiet or feeding is None else feeding(made, function.__qualname__)

        return same_kind(function, serve)

    # --------------------------------------------------------------------------- the stack

    @property
    def stack(self) -> list[Turn]:
        """Loops that are under way, the outermost first."""
        return self.turns.stack

    def pop(self, turn: Turn) -> None:
        self.draws.in_header = False  # it may have been the header that ended the loop
        self.turns.pop(turn)

    def begin_iteration(self, turn: Turn) -> None:
        turn.iteration += 1
        turn.backwards, turn.heard, turn.seeded, turn.top = 0, self.heard, False, None
        assert self.senses is not None, "not quiet"
        # Until something has trained, any loop may be the one that does.
        passed = turn.loop.id not in self._trains and self.idle.passes(turn.loop.id)
        turn.streams = None if passed else self.senses.streams()
        turn.adopted = self.adopted
        turn.counts = {id(source): source.count for source in self.sources}
        turn.draws, ahead = self.draws.begin_iteration(first=not turn.iteration)
        turn.ahead = turn.held + [draw for draw in ahead if draw not in turn.held]

    def goes_over(self, turn: Turn, iterable: Iterable[Any]) -> None:
        """A loop begins. Items that it holds already are held until it ends: so are their draws."""
        draws = self.draws.before_now
        if draws and self.senses is not None:
            turn.held = self.senses.drawn_for(iterable, draws)

    def _snapshot(self, loop: Loop, local: dict[str, Any]) -> dict[str, Any]:
        """What the body can see of the variables around it, by reference."""
        if loop.module_level:
            wanted = loop.carried | loop.targets
            seen = {name: local[name] for name in wanted if name in local}
        else:
            gone = loop.assigned - loop.carried - loop.targets
            seen = {name: value for name, value in local.items() if name not in gone}
        assert self.senses is not None, "not quiet"
        for name in loop.carried & seen.keys():
            seen[name] = self.senses.copied(seen[name])
        return seen

    # --------------------------------------------------------------------------- data

    def adopt(self, source: "Source") -> None:
        """A new rank-dependent iterator of the script."""
        self.sources = [known for known in self.sources if not getattr(known, "gone", False)]
        self.sources.append(source)
        self.adopted += 1

    def drawn(self, source: "Source", index: int, item: Any) -> None:
        """Note an item taken in normal work; it belongs to the iteration that has just begun."""
        self.draws.note(Draw(source, index, item))

    def hears(self) -> None:
        """The ranks are about to say something to each other that may be different."""
        self.heard += 1

    def seeding(self) -> None:
        """Torch's numbers are about to be seeded: were any drawn since the iteration began?"""
        if self.senses is None or not self.active:
            return
        if self.acting_rank is not None:
            if self.untold is not None and self._undrawn(self.untold):
                self.untold = None
            return
        for turn in self.stack:
            if turn.streams is not None and not turn.seeded and self._undrawn(turn.streams):
                turn.seeded = True
                if turn.top is not None:
                    turn.top.seeded = True

    def _undrawn(self, began: "Streams") -> bool:
        assert self.senses is not None, "torch is there"
        now = self.senses.streams()
        return (now.torch_cpu, now.torch_cuda) == (began.torch_cpu, began.torch_cuda)

    def waits(self, reason: str, _value: object = None) -> None:
        """Code that is executed again is about to wait for whom the script's own would."""
        self.spoil(reason)
        raise Unwind("wait")

    def spoil(self, reason: str) -> None:
        """What is being executed as another rank is not its microbatch, for this reason."""
        self.spoiled = self.spoiled or reason

    # --------------------------------------------------------------------------- microbatches

    def note_backward(self) -> Microbatch | None:
        """A backward of normal work is done: the microbatch, None if no loop is around it."""
        places = []
        frame = sys._getframe(1)
        self.turns.drop_stale(frame)
        for turn in reversed(self.stack):
            if turn.top is not None:
                turn.top.drew = len(turn.draws) > len(turn.top.draws)
                turn.top.seeded = turn.seeded
                places.append(Place(turn.top, turn.backwards, line_of(turn, frame)))
                self._trains.add(turn.loop.id)
            turn.backwards += 1
        if not places:
            return None
        microbatch = Microbatch(len(self.microbatches), tuple(places))
        microbatch.chosen = self.outward.get(places[0].top.loop.id, 0)
        self.microbatches.append(microbatch)
        self._last = microbatch
        return microbatch

    def trains(self, loop: Loop) -> bool:
        """True if a backward of the script was seen in `loop`."""
        return loop.id in self._trains

    def tops_around(self) -> list[Top]:
        """Of the iterations that are under way, the innermost first: of loops that are known to
        train, once any is.
        """
        under_way = [turn for turn in reversed(self.stack) if turn.top is not None]
        training = [turn for turn in under_way if turn.loop.id in self._trains]
        return [turn.top for turn in training or under_way if turn.top is not None]

    def top_around(self) -> Top | None:
        """The iteration from which what runs now would be executed again."""
        tops = self.tops_around()
        if not tops:
            return None
        return tops[min(self.outward.get(tops[0].loop.id, 0), len(tops) - 1)]

    def under_way(self) -> list[Turn]:
        """Iterations that have begun and from which the next microbatch may be executed again, the
        outermost first: a loop within one may have transactions of its own.
        """
        return [
            turn for turn in self.stack if turn.top is not None and turn.loop.id in self.regions
        ]

    def begin_step(self) -> None:
        around = self.under_way()
        counts = around[0].counts if around else {}
        self.previous = self.microbatches[0] if self.microbatches else None
        self.microbatches = []
        self.draws.begin_step()
        over, self._over = self._over, [s for s in self.sources if getattr(s, "ended", False)]
        self.sources = [source for source in self.sources if source not in over]
        for source in self.sources:
            source.begin_step(counts.get(id(source), source.count))

    def why_no_loop(self) -> str:
        """Why no loop of the script is known around its backward."""
        if self.refusals:
            return self.refusals[0]
        idle = [why for turn in self.stack if (why := self.idle.why(turn.loop.id))]
        if idle:
            return idle[-1]
        return "no loop of the script's own code was seen around its backward pass"
