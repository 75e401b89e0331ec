"""Where the script is: its loops, the microbatches of the step so far, and what they saw.

The instrumented loops of the script call this object (`script.Runtime`). It keeps the stack of
loops that are under way and, for every microbatch of the present step, a snapshot of what its
region of code could see when it began: enough to execute that code again (see `impersonate`).

Learned at the first commit point, never configured: the *region* is the body of the innermost loop
around the backward; the *step loop* is the loop whose iteration contains the commit point. They are
one loop for scripts without accumulation or with `(i + 1) % G`, two for `for micro in range(G)`."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from recoverrun.hooks.deputy import FirstRank
from recoverrun.hooks.draws import Draw, Draws
from recoverrun.hooks.generators import same_kind
from recoverrun.hooks.idle import Idle
from recoverrun.hooks.looping import LoopIterator, find_frame
from recoverrun.hooks.script import Loop
from rendezvous.layout import Layout

if TYPE_CHECKING:  # they import torch, which the script imports when it wants to
    from recoverrun.hooks.context import Key, Path
    from recoverrun.hooks.data import Source
    from recoverrun.hooks.rng import Streams


class Senses(Protocol):
    """What can be seen of a process once the script has imported torch."""

    def streams(self, since: "Streams | None") -> "Streams":
        """Where the random streams stand; `since` is an earlier reading of the same step."""

    def hosts(self) -> dict[str, bytes]:
        """Where those of Python and numpy stand."""

    def attributes(
        self,
        module: Mapping[str, Any],
        local: Mapping[str, Any],
        own: frozenset[str],
        look_again: bool,
    ) -> "dict[Path, Any]":
        """Simple attributes of objects whose classes the modules `own` define.

        Objects are looked for among the variables if `look_again`, else those of the last time
        are read.
        """

    def bulk(self, names: Mapping[str, Any]) -> "dict[Key, Any]":
        """What is large among `names` and the attributes last looked at, by reference."""

    def iterators(self, module: Mapping[str, Any], local: Mapping[str, Any]) -> "dict[Key, Any]":
        """Copies of plain iterators among the variables and the attributes last looked at."""

    def generators(self) -> dict[str, Any]:
        """States of the generators among the variables that `attributes` last looked at."""

    def left(self) -> "dict[Key, tuple[Any, Any]]":
        """Those, and those among the attributes, each with its state."""

    def seen(self) -> frozenset[int]:
        """Identities of the objects and generators that `attributes` last looked at."""

    def copied(self, value: Any) -> Any:
        """A copy of what code may change in place (small tensors, containers), else `value`."""


class Unwind(BaseException):
    """Leaves a region that is being executed again; no script catches it."""


class Refused(Exception):
    """The script's shape cannot be served; the text is the one sentence that says why."""


@dataclass(slots=True, eq=False)
class Turn:
    """A loop that is under way, at its present iteration."""

    loop: Loop
    frame_id: int
    iteration: int = -1
    item: Any = None
    streams: "Streams | None" = None
    names: dict[str, Any] = field(default_factory=dict)
    globals: dict[str, Any] = field(default_factory=dict)
    before: dict[str, Any] | None = None  # in the first step: all that was visible at the top
    draws: list[Draw] = field(default_factory=list)
    ahead: list[Draw] = field(default_factory=list)  # before this iteration: its item fetched ahead
    adopted: int = 0  # iterators of the process when this iteration began
    heard: int = 0  # collectives of the script before it
    met: "Streams | None" = None  # where the body began, if the header made an iterator
    header_draws: int = 0  # of `draws`, those that the loop itself made to get its item
    positions: "list[tuple[Source, int]]" = field(default_factory=list)
    attributes: "dict[Path, Any]" = field(default_factory=dict)
    generators: dict[str, Any] = field(default_factory=dict)
    bulk: "dict[Key, Any]" = field(default_factory=dict)
    iterators: "dict[Key, Any]" = field(default_factory=dict)
    backwards: int = 0
    seeded: bool = False  # torch's streams, before anything was drawn in this iteration


@dataclass(slots=True, eq=False)
class Microbatch:
    """One microbatch of the present step as this rank ran it."""

    index: int
    turn: Turn
    iteration: int
    item: Any
    streams: "Streams"
    names: dict[str, Any]
    attributes: "dict[Path, Any]"
    generators: dict[str, Any]
    bulk: "dict[Key, Any]"
    iterators: "dict[Key, Any]"
    draws: list[Draw]  # those of the loop's header
    met: "Streams | None"  # where the body began, if that cannot be told from `streams`
    ahead: list[Draw]  # those before the iteration, which may have fetched this one's item
    positions: "list[tuple[Source, int]]"  # of every source, when the body began
    heard: int  # collectives of the script before it
    backwards: int = 1
    seeded: bool = False
    drew: bool = False  # data, in its body
    hosts: dict[str, bytes] = field(default_factory=dict)  # as its latest backward ended
    left: "dict[Key, tuple[Any, Any]]" = field(default_factory=dict)  # generators, just then


@dataclass(frozen=True, slots=True)
class Shape:
    """How the script goes through a step."""

    region: Loop
    step_loop: Loop
    microbatches: int
    backwards: int  # of one microbatch
    pattern: str  # "one microbatch a step", "by counting iterations", "by an inner loop"
    slices: int = 0  # the batch of a step is one microbatch, trained on in so many


class ScriptRuntime(FirstRank):
    """The `script.Runtime` of a protected worker. `own_rank` is that of this process."""

    Unwind: ClassVar[type[BaseException]] = Unwind

    def __init__(self, own_rank: int) -> None:
        super().__init__(own_rank)
        self.loops: dict[str, Loop] = {}
        self.refusals: list[str] = []
        self.own_modules: frozenset[str] = frozenset({"__main__"})
        self.stack: list[Turn] = []
        self.microbatches: list[Microbatch] = []
        self.shape: Shape | None = None
        self.senses: Senses | None = None  # None until the script has imported torch
        self.reads_gradients = False  # by `.grad`, as far as the script's sources tell
        self.active = True  # False in what the script forks, and where it cannot be served
        self.acting_rank: int | None = None
        self.speaks_as: int | None = None  # in a child: the rank whose code began it
        self.untold: Streams | None = None  # in another's place: not its own, to be seeded first
        self.layout: Layout | None = None  # once the replicas are known
        self.unwrapped_steps = 0  # of an optimizer, before a model is served
        self.iterators = 0
        self.sources: list[Source] = []
        self.adopted = 0  # sources so far
        self.heard = 0  # collectives in which ranks may have said different things
        self.feeding: Callable[[Any, str], Any] | None = None  # set once torch is there
        self.hosts_move = True  # Python's and numpy's streams, within a step; unknown at first
        self.spoiled = ""  # why what is being executed as another rank is not its microbatch
        self.on_region_top: Callable[[Turn], None] = lambda turn: None
        self.draws = Draws(lambda: self.expected)
        self.idle = Idle()
        self._over: list[Source] = []  # ended before this step; what they gave may be used in it

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
            self.push(Turn(self.loops[loop_id], id(sys._getframe(1))), sys._getframe(1))

    def leave(self, loop_id: str) -> None:
        turn = None if self.quiet else self._under_way(loop_id)
        if turn is not None:
            self.pop(turn)

    def top(self, loop_id: str, local: dict[str, object], global_: dict[str, object]) -> None:
        if self.quiet:
            return
        assert self.senses is not None, "not quiet"
        turn = self._under_way(loop_id)
        if turn is None:
            return
        if turn.loop.kind != "for":
            self.begin_iteration(turn)
        if turn.streams is None or (self.shape is not None and turn.loop is not self.shape.region):
            return
        turn.globals = global_
        turn.names = self._snapshot(turn.loop, local)
        turn.before = {**global_, **turn.names} if self.shape is None else None
        self.draws.end_header()
        turn.header_draws = len(turn.draws)
        turn.met = None
        if turn.adopted != self.adopted:
            turn.met = self.senses.streams(None)
        turn.positions = [(source, source.count) for source in self.sources]
        turn.attributes = self.senses.attributes(
            global_, turn.names, self.own_modules, not self.microbatches
        )
        turn.generators = self.senses.generators()
        read = {name: local[name] for name in turn.loop.live_in if name in local}
        turn.iterators = self.senses.iterators(global_, read)
        carried = turn.loop.carried & turn.names.keys()
        turn.bulk = self.senses.bulk({name: turn.names[name] for name in carried})
        if not turn.loop.module_level and sys.version_info < (3, 13):
            local.clear()  # the frame keeps this dict and would keep the last logits alive with it
        self.on_region_top(turn)  # in the first step, of any loop: the last one before the backward

    def generator(self, function: Any) -> Any:
        """A generator function of the script, whose generators may be sources of data."""

        def serve(*args: Any, **kwargs: Any) -> Any:
            made = function(*args, **kwargs)
            feeding = self.feeding
            return made if self.quiet or feeding is None else feeding(made, function.__qualname__)

        return same_kind(function, serve)

    # --------------------------------------------------------------------------- the stack

    def push(self, turn: Turn, frame: FrameType) -> None:
        while self.stack and find_frame(self.stack[-1].frame_id, frame) is None:
            self.stack.pop()
        again = self.stack and self.stack[-1].frame_id == turn.frame_id
        if again and self.stack[-1].loop is turn.loop:
            self.stack.pop()  # the same loop begins anew after it was left by `break`
        self.stack.append(turn)

    def pop(self, turn: Turn) -> None:
        self.draws.in_header = False  # it may have been the header that ended the loop
        if turn in self.stack:
            del self.stack[self.stack.index(turn) :]

    def _under_way(self, loop_id: str) -> Turn | None:
        """The innermost turn of this loop; those inside it were left without a word, and end."""
        for turn in reversed(self.stack):
            if turn.loop.id == loop_id:
                self.trim(turn)
                return turn
        return None

    def trim(self, turn: Turn) -> None:
        """Loops inside `turn` that were left without a word are over."""
        if self.stack and self.stack[-1] is turn:
            return
        if turn in self.stack:
            del self.stack[self.stack.index(turn) + 1 :]

    def begin_iteration(self, turn: Turn) -> None:
        turn.iteration += 1
        turn.backwards, turn.heard, turn.seeded = 0, self.heard, False
        if self.shape is not None and turn.loop is not self.shape.region:
            return
        assert self.senses is not None, "not quiet"
        learning = self.shape is None and not self.microbatches
        quiet = bool(self.microbatches) and not self.hosts_move
        since = self.microbatches[0].streams if quiet else None
        idle = learning and self.idle.passes(turn.loop.id)
        turn.streams = None if idle else self.senses.streams(since)
        turn.adopted = self.adopted
        turn.draws, turn.ahead = self.draws.begin_iteration(first=not turn.iteration)

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

    def drawn(self, source: "Source", index: int, item: Any, learning: bool) -> None:
        """Note an item taken in normal work; it belongs to the iteration that has just begun."""
        self.draws.note(Draw(source, index, item, learning))

    def hears(self) -> None:
        """The ranks are about to say something to each other that may be different."""
        self.heard += 1

    def seeding(self) -> None:
        """Torch's numbers are about to be seeded: were any drawn since the microbatch began?"""
        if self.senses is None or not self.active:
            return
        turn = self.stack[-1] if self.stack and self.acting_rank is None else None
        began = self.untold if turn is None else turn.streams
        if began is None or (turn is not None and turn.seeded):
            return
        now = self.senses.streams(began)
        if (now.torch_cpu, now.torch_cuda) == (began.torch_cpu, began.torch_cuda):
            self.untold = None
            if turn is not None:
                turn.seeded = True

    def spoil(self, reason: str) -> None:
        """What is being executed as another rank is not its microbatch, for this reason."""
        self.spoiled = self.spoiled or reason

    # --------------------------------------------------------------------------- microbatches

    def note_backward(self) -> Microbatch | None:
        """A backward of normal work is done. Returns the microbatch if it is its first one."""
        turn = self._training() if self.stack else None
        if turn is None:
            return None
        turn.backwards += 1
        if turn.backwards > 1 and self.microbatches and self.microbatches[-1].turn is turn:
            self.microbatches[-1].backwards = turn.backwards
            self._keep_hosts()
        if turn.backwards > 1 or turn.streams is None:
            return None
        microbatch = self._begun(turn)
        self.microbatches.append(microbatch)
        self._keep_hosts()
        return microbatch

    def before_backward(self) -> bool:
        """Are we in a microbatch that has not begun its backward?"""
        turn = self._training() if self.stack and self.acting_rank is None else None
        known = turn is not None and self.shape is not None and turn.loop is self.shape.region
        return known and turn is not None and not turn.backwards

    def _training(self) -> Turn:
        """The loop that a backward belongs to here: the innermost one, if not that of slices."""
        whole = self.shape.region if self.shape is not None and self.shape.slices else None
        return next((one for one in reversed(self.stack) if one.loop is whole), self.stack[-1])

    def _begun(self, turn: Turn) -> Microbatch:
        """The microbatch of the present iteration of `turn`."""
        assert turn.streams is not None, "taken as the iteration began"
        return Microbatch(
            index=len(self.microbatches),
            turn=turn,
            iteration=turn.iteration,
            item=turn.item,
            streams=turn.streams,
            names=turn.names,
            attributes=turn.attributes,
            generators=turn.generators,
            bulk=turn.bulk,
            iterators=turn.iterators,
            draws=turn.draws[: turn.header_draws],
            met=turn.met,
            ahead=turn.ahead,
            positions=turn.positions,
            heard=turn.heard,
            seeded=turn.seeded,
            drew=len(turn.draws) > turn.header_draws,
        )

    def _keep_hosts(self) -> None:
        if self.senses is None:
            return
        self.microbatches[-1].left = self.senses.left()
        if self.hosts_move:
            self.microbatches[-1].hosts = self.senses.hosts()

    def begin_step(self) -> None:
        self.microbatches = []
        self.draws.begin_step()
        over, self._over = self._over, [s for s in self.sources if getattr(s, "ended", False)]
        self.sources = [source for source in self.sources if source not in over]
        for source in self.sources:
            source.begin_step()

    @property
    def expected(self) -> int:
        """Microbatches of a step, as the first step had them; 0 while unknown."""
        return self.shape.microbatches if self.shape is not None else 0

    def learn(self) -> Shape:
        """At the first commit point: how does this script go through a step? Raises Refused."""
        if not self.microbatches:
            raise Refused(self._why_no_loop())
        last = self.microbatches[-1]
        if self.senses is not None:
            self.hosts_move = self.microbatches[0].streams.hosts != self.senses.hosts()
        inner = last.turn
        if inner.loop.refusal:
            raise Refused(inner.loop.refusal)
        here = bool(self.stack) and self.stack[-1] is inner and inner.iteration == last.iteration
        backwards = last.backwards  # the turn itself may be over, or in its next iteration
        count = len(self.microbatches)
        if here:
            pattern = "one microbatch a step" if count == 1 else "by counting iterations"
            self._require_silence(self._around(inner))
            return Shape(inner.loop, inner.loop, count, backwards, pattern)
        outer = self._around(inner)
        if outer is None:
            raise Refused(f"no loop over steps is around the microbatches at {inner.loop.id}")
        # An evaluation draws with gradients off, or goes through all of its loader.
        before = any(draw.learning and not draw.source.ended for draw in outer.draws)
        within = bool(inner.draws) or any(one.draws or one.drew for one in self.microbatches)
        if before and not within and not any(map(self._is_fetched, self.microbatches)):
            return self._sliced(outer, inner)
        self._require_silence(outer)
        return Shape(inner.loop, outer.loop, count, backwards, "by an inner loop")

    def _sliced(self, outer: Turn, inner: Turn) -> Shape:
        """A step draws one batch and trains on it in slices: they are one microbatch."""
        if outer.loop.refusal or any(one.turn is not inner for one in self.microbatches):
            raise Refused(
                f"the batches of a step are drawn at {outer.loop.id}, before the loop over "
                f"microbatches at {inner.loop.id}: they cannot be drawn again for another rank"
            )
        if outer.streams is None:
            raise Refused(self.idle.why(outer.loop.id))
        slices, self.microbatches = self.microbatches, []
        whole = self._begun(outer)
        whole.backwards = outer.backwards = sum(one.backwards for one in slices)
        whole.left, whole.hosts = slices[-1].left, slices[-1].hosts
        self.microbatches.append(whole)
        self._require_silence(self._around(outer))
        pattern = f"one microbatch a step, in {len(slices)} slices"
        return Shape(outer.loop, outer.loop, 1, whole.backwards, pattern, len(slices))

    def _is_fetched(self, microbatch: Microbatch) -> bool:
        """Was its item drawn before the loop over microbatches began?"""
        from recoverrun.hooks.items import shares  # it imports torch

        return any(shares(microbatch.item, draw.item) for draw in self.draws.fetched)

    def _require_silence(self, outer: Turn | None) -> None:
        """What ranks tell each other of batches that they have drawn (a count of tokens) would
        lack what a lost rank has to say. Raises Refused."""
        first = self.microbatches[0]
        if outer is not None and first.heard != outer.heard and self._is_fetched(first):
            raise Refused(
                f"the ranks talk to each other between drawing the batches of a step at "
                f"{outer.loop.id} and the loop over microbatches at {first.turn.loop.id}: what a "
                "lost rank would have said (a count of tokens, say) cannot be told"
            )

    def _around(self, inner: Turn) -> Turn | None:
        if inner in self.stack:
            at = self.stack.index(inner)
            return self.stack[at - 1] if at else None
        return self.stack[-1] if self.stack else None

    def _why_no_loop(self) -> str:
        if self.refusals:
            return self.refusals[0]
        idle = [why for turn in self.stack if (why := self.idle.why(turn.loop.id))]
        if idle:
            return idle[-1]
        return "no loop of the script's own code was seen around its backward pass"
