"""A fresh process takes a lost rank's place.

The script runs from its first line, alone in all groups between replicas; collectives of its
prologue are answered as they were answered to others (`prologue_record`). Before the outermost loop
of the path it says `Ready` and waits for a view with it. Then loops are wound forward (`winding`),
and at the top of the step's loop everything is put in place (`packed_state`).
"""

import sys
import time
from collections.abc import Mapping
from functools import partial
from types import FrameType
from typing import Any, Never, Protocol

import torch

from ft_collectives.communicators.c10d import DistStoreError, GroupMember, PrefixStore
from ft_collectives.communicators.fabric import Fabric
from ft_collectives.communicators.limits import TimeLimits, limit_of
from ft_collectives.step.machine import StepMachine
from ft_collectives.step.vote import VoteGroup
from recoverrun.worker.arrival import (
    drawing_generators,
    passed_bodies,
    passed_loops,
    plain_values,
    published,
)
from recoverrun.worker.arrival.contents import Before, PackedState
from recoverrun.worker.arrival.fetching import from_donor
from recoverrun.worker.arrival.frame_variables import frames_of
from recoverrun.worker.arrival.kept_files import KeptFiles
from recoverrun.worker.arrival.learned import Gives, PlaceParts, TakesSnapshots
from recoverrun.worker.arrival.passed_loops import PassedLoop
from recoverrun.worker.arrival.prologue_record import PrologueRecord
from recoverrun.worker.arrival.slot_sources import SlotSources
from recoverrun.worker.arrival.state_source import StateLost
from recoverrun.worker.arrival.transfer import empty, fetch
from recoverrun.worker.arrival.winding import SurvivorPosition, Winding
from recoverrun.worker.context.slot_context import Context
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.groups import process_groups
from recoverrun.worker.replay.known_state import unpack_lacking
from recoverrun.worker.replay.lost_rank import LostRank
from recoverrun.worker.rng.streams import restore_streams
from recoverrun.worker.step import take_over
from recoverrun.worker.step.leaving import leave
from recoverrun.worker.step.protection import Protection
from recoverrun.worker.tracking.microbatches import LoopFrame, Top
from recoverrun.worker.tracking.python_frames import find_frame
from recoverrun.worker.tracking.script_runtime import changing_modules
from recoverrun.worker.tracking.trained_loops import TrainedLoop
from rendezvous.protocol.arrival_messages import Ready
from rendezvous.protocol.donors import donor_in
from rendezvous.protocol.progress_page import Phase
from rendezvous.protocol.views import View

READY_AGAIN_S = 1.0
"""A message may be lost, and a coordinator be replaced."""

MISSED = "it came too late to take part"
KEPT = "its first lines run again, and leave what the run has written: {}"
EDITED = "{} has changed since the run began"
NOTHING = "the others have not told where in the script they are"


class Puts(Protocol):
    """The interface that puts in place what others have told (`arrived_state`)."""

    def __call__(
        self,
        parts: PlaceParts,
        found: PackedState,
        loop_frame: LoopFrame,
        frame: FrameType,
        global_: dict[str, Any],
        *,
        sources: SlotSources,
    ) -> Before:
        """Put it in place. Raises NotReachable."""


class Newcomer:
    """The newcomer's side: a process that was started after its rank was lost."""

    def __init__(
        self,
        parts: PlaceParts,
        survivor: Gives,
        record: PrologueRecord,
        snapshots: TakesSnapshots | None = None,
        *,
        puts: Puts,
    ) -> None:
        """`survivor` is what this process is once it has taken its place; `puts` puts in place what
        others have told.
        """
        self._puts = puts
        self._parts = parts
        self._snapshots = snapshots
        self._record = record
        self._survivor = survivor
        worker = parts.worker
        store = worker.store(0)
        try:  # Waits: they tell it with the next step.
            self._way = published.unpacked(store.get(published.PATH))
        except DistStoreError:
            leave(worker, NOTHING, again=True)
        self.layout = self._way.layout
        _, shard = self.layout.place(worker.env.rank)
        record.answer_from(store.get(published.record_key(shard)), self.layout)
        self._packed: PackedState | None = None
        self._fetched_at = 0.0
        self.winding: Winding | None = None
        self._others: list[list[Any]] = []
        alone = View(generation=1, live=(), live_ranks=(worker.env.rank,), losses=())
        self._fabric = Fabric(
            rank=worker.env.rank,
            view=alone,
            store=worker.store,
            changed=worker.changed,
            limits=TimeLimits(lambda: limit_of(GroupMember.WORLD), worker.reporter.overdue),
            on_hint=lambda generation, reason: None,
            progress=worker.progress,
            withdraw=self.leave,
            since=lambda: 0 if worker.place is None else worker.place.generation,
        )
        process_groups.late(self._fabric, self.layout, parts.driver.policy)
        self._files = KeptFiles(self._way.began, worker.env.error_file)
        self._files.guard()
        worker.failpoints.comes("prologue")

    @property
    def outermost(self) -> str:
        """The id of the loop before which this process waits for its place."""
        return self._way.path[0]

    @property
    def passed(self) -> tuple[PassedLoop, ...]:
        """Loops that were over as this process began."""
        return self._way.passed

    @property
    def prefix(self) -> str:
        """The prefix of the store in which this process meets the ranks of its replica."""
        env = self._parts.worker.env
        return f"arrival/{self.layout.slot(env.rank)}/{env.incarnation}/"

    def store(self, store: Any) -> Any:
        return PrefixStore(self.prefix, store)

    def leave(self, reason: str) -> Never:
        """This process ends: others go on making up for its rank."""
        leave(self._parts.worker, reason)

    # --------------------------------------------------------------------------- on the way

    def before(self, loop_id: str) -> SurvivorPosition:
        """Wait until all others stand at the top of a step with us, and fetch what they tell."""
        worker, env = self._parts.worker, self._parts.worker.env
        self._serve()
        self._await_place()
        assert worker.place is not None, "waited for"
        worker.progress.at(Phase.FIRST_DATA)
        donor = donor_in(self.layout, worker.place, env.rank)
        try:
            began, told, tensors = from_donor(worker, donor, self._fetch)
        except (StateLost, DistStoreError) as error:
            leave(worker, f"the state of the others did not come: {error}", again=True)
        manifest: dict[str, Any] = dict(told)
        self._fetched_at = time.monotonic()
        worker.timing.note("transfer", 1000 * (self._fetched_at - began))
        worker.timing.note("bytes", sum(one.nbytes for one in tensors))
        worker.timing.note("source", manifest["donor"])
        self._packed = PackedState(manifest, tensors)
        self._record.answer_from(manifest["record"], self.layout)
        assert self.winding is not None, "it winds the loop before which this waits"
        self.winding.sources.remade = bool(manifest["drawn"])
        return SurvivorPosition.unpack(manifest["standing"])

    def _fetch(self) -> tuple[float, Mapping[str, Any], list[torch.Tensor]]:
        """When the donor's word came, its manifest and tensors. Raises StateLost, DistStoreError.

        In a thread of its own.
        """
        worker = self._parts.worker
        assert worker.place is not None, "waited for"
        key = published.address_key(worker.place.generation, worker.env.rank)
        word = published.unpacked_word(worker.store(0).get(key))
        if isinstance(word, str):
            raise StateLost(word)
        began, amid = time.monotonic(), partial(worker.failpoints.comes, "receive")
        return began, *fetch(word, empty, amid=amid)

    def _serve(self) -> None:
        """This process trains as the others do; the first steps of a script may have told how."""
        worker, name = self._parts.worker, self._way.strategy
        unannounced = self._parts.driver.unannounced
        if worker.strategy is None and unannounced is not None and unannounced.name == name:
            worker.serve(unannounced, self.layout)
        if worker.refusal:
            self.leave(worker.refusal)
        if worker.strategy is None:
            self.leave("no model was wrapped before the loop that trains")
        if worker.strategy.name != name:
            self.leave(f"this process trains with {worker.strategy.name}, the others with {name}")
        if edited := self._edited():
            self.leave(EDITED.format(edited))

    def _edited(self) -> str:
        """The path of a file that has changed since the lost rank has loaded it, "" if none is
        known: it may have been lost before it told.
        """
        worker = self._parts.worker
        store, key = worker.store(0), published.sources_key(worker.env.rank)
        return worker.runtime.own_sources.edited(store.get(key)) if store.check([key]) else ""

    def _await_place(self) -> None:
        worker, env = self._parts.worker, self._parts.worker.env
        while worker.place is None:
            worker.link.send(Ready(rank=env.rank, incarnation=env.incarnation))
            worker.failpoints.comes("ready", before=worker.link.close)  # it is heard first
            with worker.changed:
                placed = worker.changed.wait_for(
                    lambda: worker.place is not None, timeout=READY_AGAIN_S
                )
                view = worker.view
            if not placed and view is not None and env.rank in view.live_ranks:
                leave(worker, MISSED, again=True)

    def passes_over(self, trained: TrainedLoop, frame: FrameType) -> None:
        """Plain values as they are now, or were as the loop that trains now was first begun."""
        worker = self._parts.worker
        runtime, (_, shard) = worker.runtime, self.layout.place(worker.env.rank)
        frames = list(dict.fromkeys([frame, *frames_of(runtime.stack, frame)]))
        bound = plain_values.bound_by(runtime.stack)
        there = plain_values.found(frames, changing_modules(runtime), last=bound)
        if self._packed is not None:
            values = self._packed.manifest["values"]
        else:
            values = published.unpacked_values(worker.store(0).get(published.values_key(shard)))
        plain_values.put_early(values, there)
        self._files.save_nothing()
        passed_loops.put(trained, frame)

    def restore(self, index: int) -> None:
        """Restore the random streams of our slot as the iteration begins."""
        assert self._packed is not None, "fetched"
        self._parts.worker.failpoints.comes("wind")
        packed = self._packed.manifest["starts"][index]
        if packed is not None:
            restore_streams(Context.unpack(packed).streams)

    def finds(self, loop_frame: LoopFrame) -> None:
        """Plain values as they are now, not as they were at each of the items."""
        assert self._packed is not None, "fetched"
        runtime = self._parts.worker.runtime
        stack = [*runtime.stack, loop_frame]
        frames, bound = frames_of(stack, sys._getframe(1)), plain_values.bound_by(stack)
        there = plain_values.found(frames, changing_modules(runtime), last=bound)
        plain_values.put_early(self._packed.manifest["values"], there)
        drawing_generators.begin(self._packed.manifest["drawn"], f"loop {len(stack) - 1}")

    def passes(self, index: int, loop_frame: LoopFrame) -> None:
        """The body of an outer loop begins, with plain variables and iterators of the others."""
        assert self._packed is not None and self.winding is not None, "fetched, and wound to here"
        frame = find_frame(loop_frame.frame_id, sys._getframe(1))
        assert frame is not None, "its top was reached"
        passed_bodies.put(
            self._packed.manifest["passes"][index],
            frame,
            self.winding.sources.hold,
            self._parts.worker.runtime.module_data,
        )

    def arrived(self, loop_frame: LoopFrame, global_: dict[str, Any]) -> None:
        """The script stands at the top of the step: put everything in place, and go on."""
        assert self._packed is not None, "fetched"
        try:
            self._take(self._packed, loop_frame, sys._getframe(1), global_)
        except (NotReachable, ValueError) as why:
            self.leave(str(why))
        self._files.release()
        if self._files.kept:
            self._parts.worker.reporter.notice(KEPT.format(", ".join(self._files.kept)))
        timing = self._parts.worker.timing
        timing.note("place", 1000 * (time.monotonic() - self._fetched_at))
        timing.starts()
        self._packed = None
        failpoints = self._parts.worker.failpoints
        failpoints.comes("place")
        failpoints.return_begins(self._parts.worker.step)

    def _take(
        self, found: PackedState, loop_frame: LoopFrame, frame: FrameType, global_: dict[str, Any]
    ) -> None:
        parts, told = self._parts, found.manifest
        self._protect(told)
        if self._snapshots is not None:
            self._snapshots.comes(told["snapshots"], frame)
        assert self.winding is not None, "wound to here"
        sources = self.winding.sources
        before = self._puts(parts, found, loop_frame, frame, global_, sources=sources)
        self._others = told["others"]
        self._survivor.know(before, self._way.began)
        take_over.join(parts.worker, parts.driver.control, told["channels"])

    def _protect(self, told: dict[str, Any]) -> None:
        """Gradients are ours from now on, and no others are met yet."""
        parts, layout, fabric = self._parts, self.layout, self._fabric
        worker = parts.worker
        assert worker.strategy is not None and worker.place is not None, "served, and invited"
        vote_group = VoteGroup(fabric, range(layout.world_size))
        peers, mates = take_over.channels_of(worker.env.rank, layout, fabric)
        machine = StepMachine.arrived(
            rank=worker.env.rank,
            layout=layout,
            view=worker.place,
            step=told["step"],
            microbatches=told["microbatches"],
        )
        protection = Protection(
            layout=layout,
            strategy=worker.strategy,
            machine=machine,
            fabric=fabric,
            vote_group=vote_group,
            peers=peers,
            mates=mates,
        )
        take_over.take_place(worker, protection, told["plan"], parts.executor, parts.driver.policy)
        parts.driver.begin_transaction()
        worker.runtime.draws.arrive()

    # --------------------------------------------------------------------------- other lost ranks

    def wants(self, top: Top) -> bool:
        """True once it has taken its place."""
        return False

    def first_forward(self) -> None:
        """The others have told what there was before anything was trained."""

    def begins(self, top: Top, context: Context) -> None:
        """This rank stands at `context`, its first: so do those that are still lost."""
        parts = self._parts
        for rank, packed, apart, assumed, words in self._others:
            lost = LostRank(rank, apart=apart)
            theirs, lacking = Context.unpack(packed), unpack_lacking(words)
            lost.learn(theirs, context, assumed=assumed, lacking=lacking)
            lost.made = frozenset(theirs.loaders)
            parts.executor.lost[rank] = parts.left.informs(lost)
        assert parts.worker.place is not None, "given a place"
        others = (one for one in parts.worker.place.joined if one != parts.worker.env.rank)
        self._survivor.meet(others)
        self._record.arrived()
        parts.driver.return_by(self._survivor)
        self._survivor.begins(top, context)

    def committed(self) -> None:
        """No transaction of this process can be, before it has begun one."""
