"""A survivor's side of an arrival: what a fresh process finds, and where all wait for it.

From the first transaction on a survivor tells where in the script the run is (`published`). When
all members know of an invitation, as the vote of the step before has shown, all stop at the top of
the next step, and say so. The view that begins then has the newcomers, and the step goes on: its
vote needs them. One survivor for each newcomer packs its state as soon as it has said that it
stands there, and tells where it is; the others do not wait for that.
"""

import gc
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from recoverrun.worker.arrival import (
    loose_values,
    packed_state,
    passed_loops,
    plain_values,
    published,
    rebound_variables,
    structure,
)
from recoverrun.worker.arrival.contents import Before
from recoverrun.worker.arrival.frame_variables import frames_of, stack_of
from recoverrun.worker.arrival.generator_trials import GeneratorTrials
from recoverrun.worker.arrival.learned import PlaceParts, TakesSnapshots
from recoverrun.worker.arrival.node_address import node_address
from recoverrun.worker.arrival.offer import Offer
from recoverrun.worker.arrival.passed_loops import PassedLoop
from recoverrun.worker.arrival.prologue_record import PrologueRecord
from recoverrun.worker.arrival.run_beginning import RunBeginning
from recoverrun.worker.arrival.state_wire import Address
from recoverrun.worker.arrival.winding import standing
from recoverrun.worker.context.slot_context import Context
from recoverrun.worker.data.iterator_origin import Origin
from recoverrun.worker.data.loader_iterator import LoaderIterator
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.rank0 import failover
from recoverrun.worker.step.leaving import NEVER
from recoverrun.worker.tracking.microbatches import Top
from recoverrun.worker.tracking.script_runtime import changing_modules
from rendezvous.protocol.arrival_messages import REFUSE_RETURN
from rendezvous.protocol.donors import donor_of

HELD_AGAIN_S = 0.5
"""A message may be lost, and a coordinator be replaced."""

PROVED = 2
"""Transactions after which the run has said what it promises."""

UNTOLD = "its state cannot be sent: {error}"


@contextmanager
def _guarded() -> Iterator[None]:
    """Turn any error within into NotReachable."""
    try:
        yield
    except NotReachable:
        raise
    except Exception as error:  # protects a healthy run from what its objects say of themselves
        raise NotReachable(UNTOLD.format(error=repr(error))) from error


def _begins_now(at: float | None = None) -> RunBeginning:
    """The beginning of the run, `at` or now: files of the script are younger."""
    wall = time.time()
    return RunBeginning(wall if at is None else at, wall=wall, mono=time.monotonic())


class Survivor:
    """Implements `step.Returns`."""

    def __init__(
        self, parts: PlaceParts, record: PrologueRecord, snapshots: TakesSnapshots | None = None
    ) -> None:
        self._parts = parts
        self._record = record
        self._snapshots = snapshots
        self._path: list[str] = []  # as it was told
        self._over = 0  # loops that are over, as was told
        self._beginning = _begins_now()
        self._told_at = 0.0  # the beginning that was told
        self._step = -1  # the last one whose top was seen
        self._refused = False
        self._trials = GeneratorTrials(parts.worker)
        self._before: Before | None = None  # None until it is seen
        self._offers: list[Offer] = []
        self._joined: tuple[int, ...] = ()  # ranks that take part again since this transaction

    def wants(self, top: Top) -> bool:
        """True for the loops around the one that trains: code in their bodies runs in a fresh
        process.
        """
        return not self._refused and top.loop.id in self._path[:-1]

    def first_forward(self) -> None:
        """Look around before anything has been trained."""
        if self._before is None:
            self._before = Before()
            try:
                with _guarded():
                    self._look_around()
            except NotReachable as why:
                self._refuse(str(why))

    def _look_around(self) -> None:
        runtime = self._parts.worker.runtime
        frames = frames_of(runtime.stack, sys._getframe())
        bound = plain_values.bound_by(runtime.stack[:1])
        there = plain_values.found(frames, changing_modules(runtime), last=bound)
        spaces = loose_values.spaces_of(frames, runtime.own_modules)
        self._before = Before(
            {**plain_values.digests(there), **rebound_variables.digests(spaces)},
            frozenset(path for path, _ in there.modules),
            loose_values.marks(there, spaces),
            structure.seen(there, spaces, changing_modules(runtime)),
        )

    def begins(self, top: Top, context: Context) -> None:
        """A transaction begins at `top`, of a loop that trains or of another one."""
        worker = self._parts.worker
        machine = worker.protection.machine
        if worker.step == self._step or top.loop.id not in worker.runtime.regions:
            return
        self._step = worker.step
        if not self._refused:
            self._publish(top)
            if worker.step == PROVED:
                self._look(top, context)
        if machine.held() is not None:
            self._hold(top, context)

    def know(self, before: Before, began_at: float | None = None) -> None:
        """This process has not seen the run begin: its first lines have left what was `before`.
        Others began at `began_at`, None: with it.
        """
        if began_at is not None:
            self._beginning = _begins_now(began_at)
        self._before = before

    @property
    def _began(self) -> Before:
        return self._before or Before()

    def meet(self, joined: Iterable[int]) -> None:
        """This process has come in one view with others."""
        self._joined = tuple(joined)
        self._parts.left.renew(self._joined)

    def committed(self) -> None:
        """Parameters may change now; who takes part again has its own context from here on."""
        parts = self._parts
        parts.made.stepped = False
        if not (self._path or self._refused):
            self._tell_early()
        for offer in self._offers:
            offer.close()
        self._offers.clear()
        with parts.worker.changed:  # a view in between has what their processes leave behind it
            live = parts.worker.protection.machine.view.live_ranks
            for rank in self._joined:
                if rank in live:
                    parts.left.forget(rank)
                    for source in parts.worker.runtime.sources:
                        source.forget(rank)
        if 0 in self._joined and 0 in live:
            failover.give_back(parts.worker)
        self._joined = ()

    # --------------------------------------------------------------------------- what is told

    def _tell_early(self) -> None:
        """Publish from within an iteration: it may be a whole epoch, whose top was passed before
        the loop was known to be executed again. A fresh process is on its way to the next one.
        """
        runtime = self._parts.worker.runtime
        under_way = (one.top for one in runtime.stack if one.loop.id in runtime.regions)
        if (top := next(under_way, None)) is not None:
            self._publish(top)

    def _publish(self, top: Top) -> None:
        """Say where the script trains and when the run began, if that is not as it was told."""
        worker = self._parts.worker
        loops = worker.runtime.loop_stack
        path = [one.loop.id for one in stack_of(loops.stack, top)]
        over = len(loops.trained_before()[0])
        began_at = self._beginning.look(wall=time.time(), mono=time.monotonic())
        if (path, over, began_at) == (self._path, self._over, self._told_at):
            return
        if not self._path:
            sources = worker.runtime.own_sources.pack()
            worker.store(0).set(published.sources_key(worker.env.rank), sources)
        self._path, self._over, self._told_at = path, over, began_at
        layout = worker.protection.layout
        self._record.close_in(top.loop.id)
        slot, shard = layout.place(worker.env.rank)
        try:
            with _guarded():
                passed = passed_loops.for_good(loops)
                if slot == min(worker.protection.machine.view.live):
                    self._set(shard, path, passed)
        except NotReachable as why:
            self._refuse(str(why))

    def _set(self, shard: int, path: list[str], passed: tuple[PassedLoop, ...]) -> None:
        """Set the entries of the store for this shard."""
        worker = self._parts.worker
        store, layout = worker.store(0), worker.protection.layout
        store.set(published.record_key(shard), self._record.pack(layout))
        if passed:
            values = packed_state.early_values(self._parts, sys._getframe(), self._began)
            store.set(published.values_key(shard), published.packed_values(values))
        if not shard:
            name = worker.protection.strategy.name
            way = published.TrainingPlace(name, layout, tuple(path), self._told_at, passed)
            store.set(published.PATH, published.packed(way))

    def _look(self, top: Top, context: Context) -> None:
        """Say at the start why nobody could come back, if that can be seen: all is told that can be
        told as long as nobody is lost, to nobody.
        """
        worker = self._parts.worker
        try:
            with _guarded():
                standing(worker.runtime).pack()
                passed = self._parts.executor.influence.rank0s()  # whom it is for nobody knows
                packed_state.common(
                    self._parts, top, context, self._began, self._trials, passed=passed
                )
        except NotReachable as why:
            self._refuse(str(why))

    def _refuse(self, reason: str) -> None:
        """Say that nobody comes back."""
        if not self._refused:
            self._parts.worker.reporter.notice(NEVER.format(reason), REFUSE_RETURN)
        self._refused, self._parts.worker.returns = True, False

    # --------------------------------------------------------------------------- waiting

    def _hold(self, top: Top, context: Context) -> None:
        """All members stand here: others take part from this step on.

        Nobody waits for packed states but who is to have them: where the lost ranks stand is found
        first, as it may turn out that nobody can tell; all else once this rank has said that it is
        here. The view may begin meanwhile, and the other members go on.
        """
        worker = self._parts.worker
        machine, layout = worker.protection.machine, worker.protection.layout
        view, invited = machine.view, worker.invited
        worker.failpoints.stops()
        mine = [one for one in invited if donor_of(layout, view.live, one) == worker.env.rank]
        slots = self._slots(mine, view.generation + 1, context)
        self._parts.left.renew(invited)
        held = machine.held()
        while held is not None:
            worker.link.send(held)
            worker.failpoints.welcomes("hold")
            for rank, slot in slots.items():
                self._give(rank, slot, view.generation + 1, top, context)
            slots = {}
            self._await_view(view.generation)
            held = machine.held()
        # Of those who came one may be lost again by now, and the newest view tells of no arrival.
        came = set(worker.joined if worker.joining else ()) | (
            set(machine.view.live_ranks) - set(view.live_ranks)
        )
        self._parts.left.stay(set(invited) - came)
        self._joined = tuple(sorted(came))
        if self._joined:
            worker.failpoints.return_begins(worker.step)
            worker.protection.strategy.admit()

    def _await_view(self, generation: int, within_s: float | None = HELD_AGAIN_S) -> None:
        """Wait for a newer view, but not longer than it takes to say again where we are."""
        worker, machine = self._parts.worker, self._parts.worker.protection.machine
        with worker.changed, worker.protection.fabric.waits.on(None, 0, "a lost replica"):
            worker.changed.wait_for(lambda: machine.view.generation > generation, within_s)

    def _slots(
        self, ranks: list[int], generation: int, context: Context
    ) -> dict[int, Context | None]:
        """The places of these; nothing if that is not known of all of them."""
        slots: dict[int, Context | None] = {}
        try:
            with _guarded():
                slots = {rank: packed_state.slot_of(self._parts, rank, context) for rank in ranks}
        except NotReachable as why:
            for rank in ranks:
                self._decline(rank, generation, str(why))
        return slots

    def _give(
        self, rank: int, slot: Context | None, generation: int, top: Top, context: Context
    ) -> None:
        """Tell `rank`, if it comes in `generation`, where it gets what it needs to begin here."""
        worker = self._parts.worker
        worker.failpoints.welcomes("give", lambda: self._await_view(generation - 1, None))
        collects = gc.isenabled()
        gc.disable()  # a collection takes longer than packing, and a newcomer waits for it
        try:
            with _guarded():
                address = self._offer(rank, slot, generation, top, context)
        except NotReachable as why:
            self._decline(rank, generation, str(why))
        else:
            self._tell(rank, generation, address)
        finally:
            if collects:
                gc.enable()

    def _decline(self, rank: int, generation: int, reason: str) -> None:
        """Say that nobody comes back; if `rank` has come by now, it does not wait."""
        self._refuse(reason)
        self._tell(rank, generation, reason)

    def _tell(self, rank: int, generation: int, word: Address | str) -> None:
        store = self._parts.worker.store(0)
        store.set(published.address_key(generation, rank), published.packed_word(word))

    def _offer(
        self, rank: int, slot: Context | None, generation: int, top: Top, context: Context
    ) -> Address:
        """Offer `rank` its packed state. Raises NotReachable."""
        parts, worker = self._parts, self._parts.worker
        lost = parts.executor.lost.get(rank)

        def origin_of(one: LoaderIterator) -> Origin | None:
            if lost is None or not exact:
                return None
            return lost.origin(one.number, one.origin, parts.executor.captures.points)

        exact = parts.left.exact
        stands = standing(worker.runtime, origin_of, own_data=not exact)
        found = packed_state.made(
            parts,
            rank,
            slot=slot,
            top=top,
            here=context,
            before=self._began,
            trials=self._trials,
        )
        record = self._record.pack(worker.protection.layout)
        before = [[*place, digest] for place, digest in self._began.digests.items()]
        manifest = {
            **found.manifest,
            "standing": stands.pack(),
            "record": record,
            "before": before,
            "snapshots": self._snapshots.told(top) if self._snapshots is not None else None,
            "donor": worker.env.rank,
        }
        offer = Offer(
            node_address(), manifest, found.tensors, attempt=generation, step=worker.step,
            amid=partial(worker.failpoints.welcomes, "send"),
        )  # fmt: skip
        self._offers.append(offer)
        return offer.address
