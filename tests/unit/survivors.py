"""Survivors of a lost rank, as threads: what they make up, and what they tell each other.

A lost rank's microbatch gives a gradient that tells with what it was computed: its own `x`, or
fresh data of whoever made it up. Only the lost rank's program moves `x`; that of survivors rests.
"""

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgpack

from recoverrun.worker.context.context_buffer import ContextWriter
from recoverrun.worker.context.evidence import IterationEvidence, Mark
from recoverrun.worker.context.slot_context import AFTER, Context
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.make_up.left_contexts import LeftContexts
from recoverrun.worker.make_up.make_up import MakeUp
from recoverrun.worker.make_up.microbatch_maker import MicrobatchMaker
from recoverrun.worker.replay.captures import Captures
from recoverrun.worker.replay.containment import GivenUp
from recoverrun.worker.replay.executed import Executed
from recoverrun.worker.replay.known_state import KnownState
from recoverrun.worker.step.forward_sync import Buffers, ForwardSync
from recoverrun.worker.step.guarantee import Guarantee
from recoverrun.worker.tracking.microbatches import Microbatch, MicrobatchPlace
from rendezvous.protocol.layout import Layout
from rendezvous.protocol.messages import LostContexts
from rendezvous.protocol.shared_memory import MARK, MARKS_BYTES, _check
from rendezvous.protocol.views import Identity
from tests.unit.contexts import at
from tests.unit.workers import protected

LOST, STEP = 2, 3
LAYOUT = Layout(((0,), (1,), (LOST,)))
WITHIN_S = 20.0

OWN: Mark = (21, 22)
"""Of a survivor's own microbatches."""

MADE: Mark = (11, 12)
"""Of what is executed as the lost rank."""

Gradient = tuple[str, Any]
"""How it came about: "own" and the slot's `x`, "fresh" and who made it up, or "share": of what
this rank has of its own, one of how many parts, and whether it carries what was there before.
"""


class Exchange:
    """The words of survivors to each other, all at a time."""

    def __init__(self, members: int) -> None:
        self.barrier = threading.Barrier(members)
        self.said: dict[int, Any] = {}

    def all(self, rank: int, word: Any) -> dict[int, Any]:
        self.said[rank] = msgpack.unpackb(msgpack.packb(word))  # lists for tuples, as it travels
        self.barrier.wait(WITHIN_S)
        heard = dict(sorted(self.said.items()))
        self.barrier.wait(WITHIN_S)
        return heard


def executed(after: Context | None, mark: Mark = MADE, buffers: Buffers = ()) -> Executed:
    """Two forwards entered the model, and then the backward began."""
    entered = frozenset({10, mark[0]})
    return Executed(
        mark=mark, entered=entered, door=0, after=after, buffers=buffers, inputs=mark[0]
    )


class Rehearsed:
    """Attempts in a copy of a process: what is suspect, which of these end it, and what was held.

    What an attempt does here, a copy would have done: it has no effect on a rank's own work.
    """

    def __init__(self) -> None:
        self.suspects: set[Identity] = set()
        self.deadly: set[Identity] = set()
        self.held: list[Identity] = []

    def is_wanted(self, identity: Identity) -> bool:
        return identity in self.suspects

    def hold(self, identity: Identity, attempt: Callable[[], None]) -> str:
        self.held.append(identity)
        if identity in self.deadly:
            return "a copy of this process was ended by it"
        attempt()
        return ""


def influence() -> Any:
    """Every value matters, and none comes of a loss."""
    return SimpleNamespace(
        matters=lambda key, value: True, immaterial=frozenset(), top=None,
        own_results=lambda differing, key: False,
    )  # fmt: skip


class Survivor:
    """As much of a session as making up needs."""

    barren_by: type[NotReplayable] = NotReplayable  # of `barren`

    def __init__(
        self, rank: int, exchange: Exchange, program: Callable[[int], int], microbatches: int
    ) -> None:
        self.env, self.exchange = SimpleNamespace(rank=rank), exchange
        self.program = program  # what a microbatch makes of the lost rank's `x`
        self.layout, self.step, self.lost = LAYOUT, STEP, True
        self.joining = False
        self.machine: Any = None  # nothing is audited
        self.mark = MADE  # of what is executed here
        self.buffers: Buffers = ()  # at its end
        self.executions: list[tuple[int, int]] = []  # which microbatch, with which `x`
        self.own = OWN  # of its own microbatch, executed once more
        self.drew = False  # more random numbers than it had, then
        self.recalled: list[tuple[int, int]] = []  # its own: which transaction, which microbatch
        self.view: Any = None  # nobody asks for it where more than one replica is left
        self.door: int | None = 10  # what enters in the transaction before; None: nobody can tell
        self.looked_back: list[tuple[int, int]] = []  # up to there: which transaction, which `x`
        self.refuses: set[int] = set()  # microbatches that cannot be executed here
        self.ends: set[int] = set()  # microbatches whose code would end this process
        self.barren = ""  # why fresh data give nothing here
        self.context_buffer = ContextWriter("")
        self.said: list[str] = []
        self.noticed: list[str] = []
        reporter: Any = SimpleNamespace(downgraded=self.said.append, notice=self.noticed.append)
        self.reporter, self.guarantee = reporter, Guarantee(reporter, lambda: 1)
        self.guarantee.promise = "exact-samples"
        self.timing = SimpleNamespace(measure=lambda name: nullcontext())
        self.fabric = SimpleNamespace(
            open=lambda name, ranks: self, view=SimpleNamespace(generation=2)
        )
        self.vote_group = SimpleNamespace(channel=self, least=self._least)
        self.present: list[Gradient] = []  # in the accumulators
        self.reduced: list[tuple[Identity, Gradient]] = []
        self.strategy = SimpleNamespace(
            forward_sync=ForwardSync(),
            set_aside=self._set_aside, put_back=self._put_back, reducers=lambda: [self],
            alone=False,
        )  # fmt: skip
        self.runtime: Any = SimpleNamespace(
            sources=[], own_modules=frozenset(), microbatches=[], previous=None,
            gate=SimpleNamespace(
                begin_anew=lambda: None, apart_from=lambda rank: False,
                has_done=lambda rank, places, since: False,
            ),
            under_way=list, regions={at(STEP).loop},
        )  # fmt: skip
        captures = Captures(self.runtime)
        self.executor = SimpleNamespace(
            captures=captures, lost={}, influence=influence(), answered=False,
            execute=self._execute, execute_fresh=self._execute_fresh, only_inputs=False,
            runtime=self.runtime,
        )  # fmt: skip
        self._run(microbatches)
        executor: Any = self.executor
        self.peers = self
        self.mates = SimpleNamespace(exchange=Exchange(1), env=self.env)  # nobody
        self.left = LeftContexts(protected(self), executor, lambda lost: lost)
        self.rehearsal: Any = Rehearsed()
        maker = MicrobatchMaker(self, executor, self.left, self.rehearsal)
        self.make_up = MakeUp(self, executor, self.left, maker)

    def _run(self, microbatches: int) -> None:
        """Its own transaction: `x` rests here."""
        captures: Captures = self.executor.captures
        for index in range(microbatches):
            top = at(self.step, index, names={"x": 0})
            captures.points += [top, at(self.step, index, "after", names={"x": 0})]
            began: Any = SimpleNamespace(context=top, loop=SimpleNamespace(id="train.py:9"))
            place: Any = MicrobatchPlace(began, 0)
            self.runtime.microbatches.append(
                Microbatch(index, (place,), noted=((OWN, IterationEvidence()),), inputs=OWN[0])
            )

    # ----------------------------------------------------------------------- the actor

    def _execute(
        self, rank: int, state: KnownState, step: int, microbatch: Microbatch, before: Buffers = ()
    ) -> Executed:
        index, x = microbatch.index, state.context.names["x"]
        if rank == self.env.rank:
            return self.execute_own(step, microbatch)
        if self.executor.only_inputs:
            return self._look_back(step, x)
        if index in self.refuses:
            raise NotReplayable("random numbers move")
        self.executions.append((index, x))
        if index in self.ends:
            raise GivenUp("the script's code would end this process")
        self.present.append(("own", x))
        after = at(step, index, "after", names={**state.context.names, "x": self.program(x)})
        return executed(after, self.mark, self.buffers)

    def execute_own(self, step: int, microbatch: Microbatch) -> Executed:
        """Its own microbatch once more, from where it began."""
        self.recalled.append((step, microbatch.index))
        self.present.append(("own", "once more"))
        after: Context | None = self.executor.captures.at((step, microbatch.index, AFTER, 0))
        if after is not None and self.drew:
            after = replace(after, streams=after.streams.hosted({"python": b"further on"}))
        return executed(after, self.own)

    def _look_back(self, step: int, x: int) -> Executed:
        self.looked_back.append((step, x))
        self.present.append(("own", "up to the model's door"))
        if self.door is None:
            raise NotReplayable("random numbers move")
        return executed(None, (self.door, 0))

    def _execute_fresh(self, microbatch: Microbatch) -> Executed:
        if self.barren:
            self.present.append(("fresh", "a part of a backward"))
            raise self.barren_by(self.barren)
        self.present.append(("fresh", self.env.rank))
        return executed(None)

    # ----------------------------------------------------------------------- gradients

    def _set_aside(self) -> list[Gradient]:
        kept, self.present = self.present, []
        return kept

    def _put_back(self, kept: object) -> None:
        self.present = kept  # type: ignore[assignment]

    def piece(self, carried: bool) -> dict[str, Gradient]:
        (one,) = self.present
        return {"weights": one}

    def share(self, parts: int, carried: bool) -> dict[str, Gradient]:
        return {"weights": ("share", (self.present[:], parts, carried))}

    def add(self, identity: Identity, piece: Any) -> None:
        self.reduced.append((identity, piece["weights"]))

    # ----------------------------------------------------------------------- the others

    def _least(self, generation: int, value: int) -> int:
        return min(self.exchange.all(self.env.rank, value).values())

    # ----------------------------------------------------------------------- a transaction

    def inherit(
        self,
        *contexts: Context,
        marks: dict[int, Mark] | None = None,
        before: dict[int, Mark] | None = None,
    ) -> None:
        """`before`: marks of the transaction before this one."""
        left = msgpack.packb([one.pack() for one in contexts])
        noted = {STEP - 1: before or {}, STEP: marks or {}}
        ring = b"".join(mark_of(step, n, one) for step in noted for n, one in noted[step].items())
        self.left.inherit(LostContexts(
            generation=2,
            contexts=((LOST, (bytes(left),)),),
            marks=((LOST, ring.ljust(MARKS_BYTES, b"\0")),),
        ))  # fmt: skip

    def makes_up(self, indices: tuple[int, ...]) -> None:
        for index in indices:
            self.make_up.compute((LOST, index))
        self.make_up.tell(generation=2)

    def keeps(self, here: Context) -> Context:
        """It comes to a point of its own."""
        self.executor.captures.points.append(here)
        return here

    def commit(self) -> None:
        """The transaction is over; the next one is run."""
        self.make_up.end_step(self.step)
        count, self.runtime.microbatches[:] = len(self.runtime.microbatches), []
        self.step += 1
        self.reduced.clear()
        self._run(count)


class Team:
    """Survivors, usually two, who share out what the lost rank did not do."""

    def __init__(
        self,
        program: Callable[[int], int] = lambda x: x + 1,
        microbatches: int = 2,
        *,
        survivors: int = 2,
        audits: bool = False,
    ) -> None:
        exchange, live = Exchange(survivors), range(survivors)
        self.survivors = [Survivor(rank, exchange, program, microbatches) for rank in live]
        for one in self.survivors if audits else ():
            one.machine = SimpleNamespace(slot=one.env.rank, view=SimpleNamespace(live=live))

    def inherit(self, *contexts: Context, **marks: dict[int, Mark] | None) -> None:
        for one in self.survivors:
            one.inherit(*contexts, **marks)

    def makes_up(self, shares: tuple[tuple[int, ...], ...] = ((0,), (1,))) -> None:
        """All at a time; then the transaction is reduced."""
        failed: list[BaseException] = []

        def run(survivor: Survivor, indices: tuple[int, ...]) -> None:
            try:
                survivor.makes_up(indices)
            except BaseException as error:  # the test's own thread raises it
                failed.append(error)
                survivor.exchange.barrier.abort()

        threads = [
            threading.Thread(target=run, args=pair, daemon=True)
            for pair in zip(self.survivors, shares, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WITHIN_S)
        assert not failed, failed
        assert not any(thread.is_alive() for thread in threads)

    def commit(self) -> None:
        for one in self.survivors:
            one.commit()

    @property
    def gradients(self) -> dict[Identity, Gradient]:
        """Of what is made up, in the sum."""
        pairs = [pair for one in self.survivors for pair in one.reduced]
        assert all(count == 1 for count in Counter(identity for identity, _ in pairs).values())
        return dict(pairs)

    @property
    def executions(self) -> list[list[tuple[int, int]]]:
        return [one.executions for one in self.survivors]

    @property
    def promises(self) -> list[str | None]:
        return [one.guarantee.promise for one in self.survivors]

    @property
    def said(self) -> list[str]:
        return list(dict.fromkeys(words for one in self.survivors for words in one.said))


def mark_of(step: int, index: int, mark: Mark) -> bytes:
    return MARK.pack(step, index, *mark, _check(step, index, *mark))


def left_at_top(x: int = 5) -> Context:
    return at(STEP, names={"x": x})
