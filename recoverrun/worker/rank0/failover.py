"""The deputy of a lost rank 0: who does what the script does on rank 0 alone (`rank0_transformer`).

It is the first survivor that holds the part of the model which rank 0 held. What it does in the
place of rank 0 leaves no traces in what it is itself: it draws from rank 0's random streams and
generators, as far as it knows them, its own are put back, and iterators of data are none of those
that ranks compare.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

from ft_collectives.communicators.errors import InvariantBroken, Superseded
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.make_up.left_contexts import LeftContexts
from recoverrun.worker.rank0.shared_values import Supply
from recoverrun.worker.replay.executor import Executor
from recoverrun.worker.replay.lost_rank import LostRank
from recoverrun.worker.rng.private_draws import PrivateDraws
from recoverrun.worker.rng.registry import REGISTRY
from recoverrun.worker.rng.streams import Streams, read_streams, restore_streams
from recoverrun.worker.step.worker_state import WorkerState
from rendezvous.protocol.progress_page import Phase

LEADS = "does rank 0's work from here on (checkpoints, logging)"
GIVES_BACK = "gives rank 0's work back to it (checkpoints, logging)"
FAILED = "in the place of rank 0, {} failed{} and was left: {!r}"
DRAWS = "code for rank 0 alone draws random numbers: from here on rank 0's stream is unknown"


class StandingIn:
    """Around what the deputy does in the place of rank 0."""

    def __init__(
        self, worker: WorkerState, executor: Executor, left: LeftContexts, where: str
    ) -> None:
        self._worker = worker
        self._executor = executor
        self._left = left
        self._where = where
        self._buffers = ExitStack()  # rank 0's, as far as this rank follows them

    def __enter__(self) -> None:
        worker, runtime = self._worker, self._worker.runtime
        if not runtime.gate.led:
            worker.reporter.notice(LEADS)
        runtime.gate.led = True
        self._phase = runtime.progress.phase
        runtime.progress.at(Phase.ALONE)
        if not runtime.gate.lone:
            self._own, runtime.gate.unclear = read_streams(), False
            self._buffers.enter_context(_leading(worker))
            self._first = _lost(self._executor, self._left)
            theirs = None if self._first is None else self._known(self._first)
            if theirs is not None:
                restore_streams(theirs)
            runtime.gate.unclear = theirs is None
            self._generators = _Generators(self._first, self._executor)
        self._began = read_streams()
        runtime.gate.lone += 1

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        worker, runtime = self._worker, self._worker.runtime
        runtime.progress.at(self._phase)
        runtime.gate.lone -= 1
        ended = read_streams()
        moved = ended != self._began
        runtime.gate.unclear |= moved and error is not None  # rank 0 might have drawn more
        if not runtime.gate.lone:
            self._buffers.close()
            restore_streams(self._own)
            followed = self._generators.end(clear=error is None)
            if (moved and not self._follow(ended)) or not followed:
                worker.guarantee.weaken(DRAWS)
        # Protects training from code that another rank was meant for, whatever it raises.
        if not isinstance(error, Exception) or isinstance(error, InvariantBroken):
            return False
        if runtime.gate.fail(self._where, error):
            often = runtime.gate.left[self._where]
            times = f" {often} times" if often > 1 else ""
            worker.reporter.notice(FAILED.format(self._where, times, error))
        return True

    def _known(self, first: LostRank) -> Streams | None:
        points = self._executor.captures.points
        return first.known_at(self._own, points[-1]) if points else None

    def _follow(self, ended: Streams) -> bool:
        """Rank 0 would have drawn up to there. False if its numbers cannot be told from now on."""
        first = self._first
        if first is None or self._worker.runtime.gate.unclear:
            return False
        here = self._executor.captures.points[-1]
        first.stood_in(here, self._own, self._began, ended)
        return True


class _Generators:
    """The script's generators while the deputy does something in the place of rank 0: they stand
    where those of rank 0 do.
    """

    def __init__(self, first: LostRank | None, executor: Executor) -> None:
        self._first = first
        self._here = executor.captures.points[-1] if first is not None else None
        self._own, self._unknown = REGISTRY.states(), frozenset[str]()
        if first is not None and self._here is not None:
            theirs, self._unknown = first.generators_at(self._own, self._here)
            REGISTRY.restore(theirs)
        self._began = REGISTRY.states()

    def end(self, *, clear: bool) -> bool:
        """Put this rank's own back. False if numbers were drawn, and it is not known which rank 0
        would have drawn; unless `clear` it might have drawn more.
        """
        moved = REGISTRY.moved_since(self._began)
        REGISTRY.restore(self._own)
        if not moved:
            return True
        if self._first is None or self._here is None:
            return False
        self._first.drew_from(self._here, moved)
        return clear and self._unknown.isdisjoint(moved)


def _leading(worker: WorkerState) -> AbstractContextManager[None]:
    return (
        worker.protection.strategy.forward_sync.as_leading() if worker.protected else nullcontext()
    )


def _lost(executor: Executor, left: LeftContexts) -> LostRank | None:
    """The state of the lost rank 0, followed up to this rank's present point."""
    if not left.exact or not executor.captures.points:
        return None
    left.await_contexts(0)
    left.absorb()
    first = executor.lost.get(0)
    if first is not None:
        try:
            first.at(executor.captures.points[-1].point, executor.captures.points)
        except NotReplayable:
            return None
    return first


def serve(worker: WorkerState, executor: Executor, left: LeftContexts) -> None:
    """Tell the runtime from now on who the deputy is."""

    runtime, env = worker.runtime, worker.env
    points = executor.captures
    runtime.gate.last_point = lambda: points.points[-1].point if points.points else None
    runtime.gate.is_deputy = lambda: is_deputy(worker)
    runtime.gate.supply = Supply(worker).supply
    runtime.gate.standing_in = lambda where: StandingIn(worker, executor, left, where)
    runtime.gate.passing = lambda: _passing(worker)
    runtime.gate.by_itself = lambda where: _by_itself(worker, where)
    if (env.rank - env.local_rank) % env.local_world_size == 0:  # nodes are alike, it seems
        runtime.gate.first_of_node = lambda rank: rank % env.local_world_size == 0


def _by_itself(worker: WorkerState, where: str) -> AbstractContextManager[Any]:
    runtime = worker.runtime
    return PrivateDraws(runtime, where) if runtime.acting_rank is None else _in_passing()


def _passing(worker: WorkerState) -> AbstractContextManager[Any]:
    return nullcontext() if worker.runtime.acting_rank is None else _in_passing()


@contextmanager
def _in_passing() -> Iterator[None]:
    """Around what rank 0 does alone, where its microbatch is executed elsewhere.

    An error there ends it, and not the execution: what rank 0 needs for a log is nowhere else.
    Where the microbatch needs what such code makes, the proofs find it.
    """
    try:
        yield
    except (NotReplayable, Superseded, InvariantBroken):
        raise
    # Protects the microbatch from what the script does beside it on rank 0, whatever that raises.
    except Exception:
        return


def give_back(worker: WorkerState) -> None:
    """Rank 0 takes part again, and does by itself what this rank may have done in its place."""
    if worker.runtime.gate.led:
        worker.runtime.gate.led = False
        worker.reporter.notice(GIVES_BACK)


def is_deputy(worker: WorkerState) -> bool:
    """True if this rank is the deputy of rank 0."""
    view, layout, runtime = worker.view, worker.layout, worker.runtime
    if view is None or layout is None or not runtime.active or runtime.acting_rank is not None:
        return False
    if 0 in view.live_ranks or not view.live:
        return False
    _, shard = layout.place(0)
    return layout.replicas[min(view.live)][shard] == worker.env.rank


def of_rank_zero(worker: WorkerState, name: str, original: property) -> property:
    """A framework's property that says whether this process is rank 0, or speaks for it."""
    get, gate = original.fget, worker.runtime.gate
    assert get is not None, "a property that can be read"

    def leads(owner: Any) -> bool:
        if get(owner) or is_deputy(worker):
            return True
        gate.pass_by(f"{type(owner).__name__}.{name}")
        return False

    return property(leads, doc=original.__doc__)
