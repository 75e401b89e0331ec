"""The messages of survivors about where lost ranks stand, and their use."""

from recoverrun.worker.context.slot_context import Context
from recoverrun.worker.context.values import same
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.make_up.left_contexts import LeftContexts
from recoverrun.worker.make_up.made_microbatch import MadeMicrobatch
from recoverrun.worker.replay.executor import Executor
from recoverrun.worker.replay.known_state import (
    ABSENT,
    PackedLacking,
    digest_of,
    lacking,
    pack_lacking,
    unpack_lacking,
)
from recoverrun.worker.step.worker_state import WorkerState

End = tuple[int, int, bytes, bool, int, PackedLacking, tuple[int, bool]]
"""Lost rank, microbatch, its context at the end; whether its start was assumed, a digest of the
start, what is not known at the end, a digest of its inputs, and whether the lost rank had noted
what entered the model, as here.
"""

Start = tuple[int, bytes, PackedLacking]
"""Lost rank, its context as its first microbatch of the transaction began, what is not known."""


class ToldPositions:
    """The positions of lost ranks, as this rank knows them."""

    def __init__(self, worker: WorkerState, executor: Executor, left: LeftContexts) -> None:
        self._worker = worker
        self._executor = executor
        self._left = left

    def starts(self) -> list[Start]:
        """The starts of lost ranks in whose place this one has drawn since the last transaction."""
        microbatches = self._worker.runtime.microbatches
        top = microbatches[0].top.context if microbatches else None
        if top is None:
            return []
        starts = []
        for rank, lost in sorted(self._executor.lost.items()):
            state = lost.states.get(top.point)
            drawn = lost.drawn or lost.drawn_from
            if drawn and state is not None and not state.torch_unknown and not state.assumed:
                starts.append((rank, state.context.pack(), pack_lacking(state.unknown, "")))
        return starts

    def begun(self, starts: list[Start]) -> set[int]:
        """Learn where lost ranks began, from who has drawn in their place. Those of which this rank
        did not know it, or took them to stand where they would without these draws.
        """
        news = set()
        for rank, packed, words in starts:
            self._left.absorb_of(rank)
            theirs, lost = Context.unpack(packed), self._executor.lost.get(rank)
            mine = self._executor.captures.at(theirs.point)
            if lost is None or mine is None:
                continue
            known = lost.states.get(theirs.point)
            if (
                known is None
                or known.torch_unknown
                or _draws_otherwise(known.context, theirs, mine)
            ):
                lost.learn(theirs, mine, lacking=unpack_lacking(words))
                news.add(rank)
        return news

    def end_of(self, made: MadeMicrobatch) -> End | None:
        """The end of a microbatch that was executed exactly, as far as this rank knows."""
        if made.executed is None or made.executed.after is None or made.start is None:
            return None
        start, after = made.start.context, made.executed.after
        digest = digest_of(start, self._executor.influence.matters)
        assumed = made.start.assumed and not made.failed
        words = pack_lacking(*lacking(made.start, after))
        rank, index = made.rank, made.identity[1]
        noted, _ = self._left.marks.get(rank, {}).get((self._worker.step, index), (0, 0))
        inputs = made.executed.inputs, noted == made.executed.mark[0]
        return rank, index, after.pack(), assumed, digest, words, inputs

    def starts_there(self, rank: int, index: int, digest: int) -> bool:
        """True if lost `rank` began microbatch `index` where its executor had assumed."""
        top = self._worker.runtime.microbatches[index].top.context
        lost = self._executor.lost.get(rank)
        if lost is None or top is None:
            return False
        lost.states.pop(top.point, None)
        try:
            state = lost.at(top.point, self._executor.captures.points)
        except NotReplayable:
            return False
        here = digest_of(state.context, self._executor.influence.matters)
        return not state.assumed and here == digest


def _draws_otherwise(known: Context, theirs: Context, mine: Context) -> bool:
    """True if other numbers of torch follow at `theirs` than at `known`, or of generators that this
    rank has, too.
    """
    if known.streams.torch_cpu != theirs.streams.torch_cpu:
        return True
    return known.streams.torch_cuda != theirs.streams.torch_cuda or any(
        not same(known.generators.get(key, ABSENT), state)
        for key, state in theirs.generators.items()
        if key in mine.generators
    )
