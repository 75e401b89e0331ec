"""Executing a region of the script again, as another rank (docs/scripts.md, "Re-execution").

A microbatch is a pure function of (parameters, transaction, slot, index). To compute one of a lost
slot, this rank runs the script's own code of its own microbatch of the same index, with everything
that is the slot's put in its place: random streams and generators, rank-dependent variables and
attributes, data. It begins where the iteration began, skips backwards that belong to microbatches
before it, and ends with its own. All that was touched is put back, and the script never knows.

Where a lost rank stands `lost_rank` knows; if not, `make_up` takes fresh data, never wrong ones.
"""

import math
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Never

import torch

from ft_collectives.communicators.errors import InvariantBroken, Superseded
from recoverrun.worker.context import undo_log
from recoverrun.worker.context.evidence import IterationEvidence, digest_of_inputs, digest_of_losses
from recoverrun.worker.context.module_state import ModuleStructure
from recoverrun.worker.context.namespaces import hold
from recoverrun.worker.context.object_contents import KeptContents
from recoverrun.worker.context.slot_context import AFTER, Context
from recoverrun.worker.data.own_data_sets import contents_of
from recoverrun.worker.errors import NotReplayable, Unwind
from recoverrun.worker.instrumentation import ITEM_NAME
from recoverrun.worker.replay import shared_cells, surroundings
from recoverrun.worker.replay.captures import Captures
from recoverrun.worker.replay.containment import Containment
from recoverrun.worker.replay.earlier_transactions import EarlierTransactions, Weights, held_weights
from recoverrun.worker.replay.end_context import EndContext
from recoverrun.worker.replay.executed import (
    CROWDED,
    STEERS,
    TALKS,
    Executed,
    Misled,
    NothingReached,
    require_count,
)
from recoverrun.worker.replay.executed_rank import ExecutedRank
from recoverrun.worker.replay.influence import Influence
from recoverrun.worker.replay.known_state import UNTOLD, KnownState, StreamMoves, differing, require
from recoverrun.worker.replay.local_shards import LocalShards
from recoverrun.worker.replay.loop_items import LoopItems
from recoverrun.worker.replay.lost_rank import LostRank
from recoverrun.worker.replay.passing import PassingClock
from recoverrun.worker.replay.poison import LOW, poisoned
from recoverrun.worker.replay.rank_constants import RankConstants
from recoverrun.worker.replay.rank_environment import as_rank
from recoverrun.worker.replay.substitution import Substitution, UndoRecord, restore_body
from recoverrun.worker.replay.tails import Tails
from recoverrun.worker.replay.taken_items import require_put_back
from recoverrun.worker.rng.registry import REGISTRY
from recoverrun.worker.rng.streams import read_streams, restore_streams
from recoverrun.worker.step.forward_sync import Buffers, ForwardSync
from recoverrun.worker.step.strategy import Strategy
from recoverrun.worker.step.time_limits import limit_s
from recoverrun.worker.tracking.microbatches import Microbatch, Top
from recoverrun.worker.tracking.script_runtime import ScriptRuntime


class Executor:
    """Executes microbatches as other ranks."""

    def __init__(
        self,
        runtime: ScriptRuntime,
        leave: Callable[[str], Never],
        others_wait_s: Callable[[], float] = lambda: math.inf,
        together: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`together` is of `ShardMates`, the other functions are those of `Containment`."""
        self.runtime, self._together = runtime, together
        self.influence = Influence(runtime)
        self.captures = Captures(runtime, Tails(self.influence).behind)
        self.shares, self.constants = LocalShards(), RankConstants()
        self._substitution = Substitution(runtime, self.influence, self.shares)
        self.containment = Containment(runtime, leave, others_wait_s)
        self.look_at_the_clock = self.containment.timer.look
        self.earlier = EarlierTransactions(runtime.regions)
        self.moved: list[Any] = []  # what proofs found changed; `KeptContents` puts it back
        self.executed = ExecutedRank(self.influence)
        self.rewrites = False  # code between a top and a backward changes parameters
        self._weights: Weights | None = None  # parameters that this execution may change
        self.lost: dict[int, LostRank] = {}
        self.optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self.proves = False  # this is the child in which a proof is made
        self.talked = False  # a proof has met a collective of the script
        self.answer = LOW  # the false result of collectives in a proof
        self.answered = False  # a collective that no proof has met was called in this execution
        self.items, self.passing = LoopItems(), PassingClock(runtime)
        self.fresh = False  # executing as ourselves, on fresh data
        self.only_inputs = False  # the execution ends where data enter the model
        self.proving = True  # gradients of first microbatches are compared
        self.longest_s = 0.0  # duration of this rank's longest microbatch
        self._began_at = 0.0
        self._strategy: Strategy | None = None
        self._skip = 0  # backwards still to be passed over
        self._top: Top | None = None  # the iteration that is executed
        self._passed = 0  # its backwards that were passed over
        self._structure = ModuleStructure(())
        self._end = EndContext()
        self._shown = IterationEvidence()  # of what is executed

    def serve(self, strategy: Strategy) -> None:
        """Gradients are those of `strategy` from now on."""
        self._strategy = strategy

    @property
    def compares(self) -> bool:
        """True while gradients may be compared: of first microbatches here, or in a proof."""
        return self.proving or self.proves

    # --------------------------------------------------------------------------- own work

    def capture_top(
        self, step: int, index: int, attempt: int, top: Top, *, wanted: bool
    ) -> Context | None:
        """The context of this rank, if a microbatch may be executed again from here. It is noted,
        too, if that is `wanted` for a proof.
        """
        region = self.runtime.is_region(top)
        if not region and not wanted:
            return None
        context = self.captures.top(step, index, attempt, top)
        if not region:
            return None
        self.influence.top, self._began_at = top, time.monotonic()
        self.earlier.begins([loop_frame.top for loop_frame in self.runtime.stack])
        top.groups = [(optimizer, optimizer.param_groups[:]) for optimizer in self.optimizers]
        return self.captures.keep(context)

    def ran(self, step: int, microbatch: Microbatch, strategy: Strategy | None) -> None:
        """The backward of one of our own microbatches has ended."""
        self.longest_s = max(self.longest_s, time.monotonic() - self._began_at)
        self.runtime.regions.add(microbatch.top.loop.id)
        noted = [place.top.evidence or IterationEvidence() for place in microbatch.places]
        microbatch.noted = tuple((evidence.mark, evidence) for evidence in noted)
        microbatch.inputs = noted[0].latest
        if strategy is not None:
            microbatch.reduces = strategy.asked_to_reduce()
        if strategy is not None and not microbatch.index and self.proving:
            microbatch.gradient = strategy.digest()
        goes_on = strategy is not None and strategy.early and not strategy.synced
        self.captures.after(step, microbatch, look_again=not goes_on)

    def transaction_ends(self) -> None:
        """Gradients are what the transaction left: re-executed code may find them."""
        self.earlier.ended(self.runtime.microbatches, self.optimizers)
        self.runtime.module_data.read(self.influence.read)

    def last_after(self) -> Context | None:
        """The context of this rank as its last backward ended."""
        points = self.captures.points
        return points[-1] if points and points[-1].kind == "after" else None

    # --------------------------------------------------------------------------- as another rank

    def execute(
        self, rank: int, state: KnownState, step: int, microbatch: Microbatch, before: Buffers = ()
    ) -> Executed:
        """Run `microbatch` of `step` as `rank`, which stood at `state` as its iteration began, with
        the buffers of `before`, where these were not taken over then.

        Gradients are in the strategy's accumulators then. Raises NotReplayable, or what the
        script's own code raises in the midst of a backward.
        """
        top = microbatch.top
        sync = self._shared().acting(rank, top.synced, before)
        if microbatch.place.refusal:
            raise NotReplayable(microbatch.place.refusal)
        if REGISTRY.crowded:
            raise NotReplayable(CROWDED)
        mine, after = top.context, self.captures.at((step, microbatch.index, AFTER, 0))
        assert mine is not None and after is not None, "captured as they were"
        moved, self.influence.top = StreamMoves.between(mine, after, top.seeded), top
        require(state, mine, moved, self.influence.matters_to(rank))
        self._substitution.require_copies(top)
        self.executed.begins(top, contents_of(self.runtime.sources), state.unknown)
        theirs = state.context
        untold = theirs.streams if state.torch_unknown and moved.torch else None
        kept, undo = KeptContents(self.moved), UndoRecord(read_streams(), REGISTRY.states())
        self._skip = microbatch.place.skip
        try:
            try:
                with self.runtime.mode.as_rank(rank, untold), sync:
                    done = self._substituted(rank, theirs, step, microbatch, undo)
            finally:
                self._substitution.revert(top, undo)
        finally:
            kept.put_back()
        return done.of_rank_at(theirs)

    def _substituted(
        self, rank: int, theirs: Context, step: int, microbatch: Microbatch, undo: UndoRecord
    ) -> Executed:
        """Run it with all that is the rank's in the place of ours."""
        top, mine = microbatch.top, microbatch.top.context
        assert mine is not None, "captured as it began"
        apart = differing(theirs, mine)
        names = self._substitution.apply(top, apart, undo)
        hold(names, top.bulk)
        self._substitution.find(rank, top, apart, names, undo)
        self._substitution.share(rank, top, names, undo)
        self._substitution.lend(names, top, undo)
        for source in self.runtime.sources:  # one that the body made had given nothing yet
            source.seek(rank, 0)
        for source, count in top.positions:
            source.seek(rank, count)
        REGISTRY.restore(theirs.generators)
        restore_streams(theirs.streams)
        self.executed.goes_on(apart, names)
        with as_rank(rank), self.constants.of(rank, self.influence.asked(top)):
            item = self._item(top, rank)
            if top.body is not None:  # what making an iterator draws is not drawn again
                restore_body(top, theirs, mine)
            with self._unchanged(top, names), undo_log.training():
                return self._run(top, names, item, microbatch, step)

    def execute_fresh(self, microbatch: Microbatch) -> Executed:
        """Compute one more microbatch as ourselves, on our own next data, which the script gets,
        too. Raises NotReplayable where it would not, or comes to no backward on them.
        """
        top = self.influence.top = (microbatch := self.passing.within_limit(microbatch)).top
        require_put_back(top, self.influence, self.runtime.own_modules)
        with self._substitution.as_ourselves(top) as names:
            self.fresh = True
            try:
                with (
                    self.runtime.mode.as_rank(self.runtime.own_rank),
                    self._unchanged(top, names),
                    undo_log.training(),
                ):
                    return self._run_fresh(top, names, microbatch)
            finally:
                self.fresh = False

    def _item(self, top: Top, rank: int) -> Any:
        def item() -> Any:
            told = self.constants.holds(top.item)
            return self.items.of(top, rank, told=told, proves=self.proves, fresh=self.fresh)

        return self.containment.serve(top.loop.id, rank, self.longest_s, item)

    def _run_fresh(self, top: Top, names: dict[str, Any], microbatch: Microbatch) -> Executed:
        """The same backward on other data; an earlier one where these have not as many, as the
        last batch of an epoch may be cut into fewer parts.
        """
        for skip in range(microbatch.place.skip, -1, -1):
            self._skip = skip
            item = self._item(top, self.runtime.own_rank)
            try:
                return self._run(top, names, item, microbatch, -1)
            except NothingReached:
                continue
        raise NothingReached(top.loop.id)

    def _run(
        self, top: Top, names: dict[str, Any], item: Any, microbatch: Microbatch, step: int
    ) -> Executed:
        region, shown = top.loop, IterationEvidence()
        assert region.body_code, f"{region.id} was refused: {region.refusal}"
        self.answered, self._top, self._passed = False, top, 0
        self.runtime.spoiled, self._shown = "", shown
        whole, unknown = not self.fresh and not self.only_inputs, self.executed.unknown
        self._end.begins(whole, lambda now: self.captures.executed(now, microbatch, step, unknown))
        self._asked_to_reduce()
        self.passing.start()
        with self._together():
            self._execute_code(top, names, item)
            if self.runtime.spoiled:
                raise self.containment.failure()
        if whole:
            require_count(self.runtime.acting_rank, microbatch.reduces, self._asked_to_reduce())
        entered, after = frozenset(shown.entered), self._end.taken
        buffers = () if after is None else self._shared().left()
        return Executed(shown.mark, entered, shown.door, after, buffers, shown.latest)

    @property
    def _misled(self) -> bool:
        return self.answered or (self.proves and self.talked)

    def _shared(self) -> ForwardSync:
        return ForwardSync() if self._strategy is None else self._strategy.forward_sync

    def _asked_to_reduce(self) -> bool | None:
        return None if self._strategy is None else self._strategy.asked_to_reduce()

    def _execute_code(self, top: Top, names: dict[str, Any], item: Any) -> None:
        region, rank = top.loop, self.runtime.acting_rank
        assert region.body_code is not None and rank is not None, "not refused, as somebody"
        try:
            with self.containment.of(region.id, rank, limit_s(self.longest_s)):
                if region.item_code is not None:
                    names[ITEM_NAME] = item
                    exec(region.item_code, names)
                with shared_cells.shared(top, names, self.runtime.own_modules) as local:
                    self._end.local = local
                    exec(region.body_code, names, local)
        except Unwind:
            pass
        except (NotReplayable, Superseded, InvariantBroken):
            raise
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            # Protects a healthy run from what its code says to others' data.
            if self.runtime.spoiled:
                raise self.containment.failure() from error
            if self._misled and not isinstance(error, KeyboardInterrupt):
                raise Misled(TALKS) from error
            self.containment.end_by(error, self.earlier.lacked)
        if not self._end.reached and not self.runtime.spoiled:
            raise Misled(STEERS) if self._misled else NothingReached(region.id)

    @contextmanager
    def _unchanged(self, top: Top, names: dict[str, Any]) -> Iterator[None]:
        """The script never knows."""
        optimizers, mine, strategy = self.optimizers, self.runtime.own_modules, self._strategy
        around = surroundings.unchanged(top, names, mine, optimizers, strategy)
        held = held_weights(optimizers, rewritten=self.rewrites)
        with around as self._structure, undo_log.schedules_rest(), held as self._weights:
            try:
                yield
            finally:
                self.earlier.take_back()
                self._weights = None

    # --------------------------------------------------------------------------- on the way

    def unheard(self, alone: torch.Tensor) -> torch.Tensor:
        """A collective in which this rank is `alone`: its result is false (`poison`) in a proof."""
        if self.fresh:
            return alone
        if self.proves:
            self.talked = True
            return poisoned(alone, self.answer)
        if self.talked:
            return alone
        if self.only_inputs:
            self.runtime.spoil(TALKS)
        self.answered = True
        return poisoned(alone, self.answer)

    def forward_begins(self, values: Iterable[Any]) -> None:
        """Inputs enter the model, in our own microbatch or another rank's."""
        digest, noted = digest_of_inputs(values), self._evidence()
        first = any(not evidence.entered for evidence in noted)
        if self._weights is not None and self.runtime.acting_rank is not None:
            self._weights.restore()
        streams = read_streams() if first else None
        for evidence in noted:
            evidence.enters(digest, streams)
        if self.only_inputs and self.runtime.acting_rank is not None:
            self._end.reached = True
            raise Unwind("door")

    def skips(self) -> bool:
        """True if the backward that would begin is passed over."""
        if self.runtime.acting_rank is None or not self._skip:
            return False
        assert self._top is not None, "something is executed"
        if not self.proves:
            self.passing.check(self._top.loop.id, self._skip + self._passed)
        self.earlier.give(self._top, self._passed)
        self._shown.passes()
        self._skip -= 1
        self._passed += 1
        return True

    def ends(self, losses: Any) -> None:
        """A backward begins, from these losses."""
        digest = digest_of_losses(losses) if self._evidence() else 0
        for evidence in self._evidence():
            evidence.ends(digest)

    def _evidence(self) -> list[IterationEvidence]:
        if self.runtime.acting_rank is not None:
            return [self._shown]
        return [top.evidence for top in self.runtime.tops_around() if top.evidence is not None]

    def backward_begins(self) -> None:
        """The backward of a re-executed microbatch. Nothing that is spoiled may be accumulated."""
        if self.runtime.mode.untold is not None:
            self.runtime.spoil(UNTOLD)
        if rebuilt := self._structure.changed:
            self.runtime.spoil(rebuilt)
        if self.runtime.spoiled:
            raise Unwind("backward")
        assert self._strategy is not None, "gradients are somebody's"
        self.containment.timer.too_late_to_interrupt()
        self._strategy.clear()

    def backward_done(self) -> None:
        """There is nothing more to run."""
        self._end.reach()
        raise Unwind("backward")
