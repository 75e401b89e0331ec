"""Checks of a microbatch that was executed as a lost rank, before its gradient counts:

- before anything is executed for a rank that was just lost, our own microbatch is executed once
  more, and must come out as it did;
- where the rank has noted nothing of the transaction, its last committed microbatch is executed
  again, and must come out as it did;
- where a collective was met that no proof has met, another answer must give the same gradient;
- unknown values of the rank are believed not to matter: our own values in their place must give
  the same. Checked whenever more is unknown, and with each audit.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import torch

from ft_collectives.step.reducer import Piece, Reducer
from recoverrun.worker.context.evidence import Mark
from recoverrun.worker.context.fingerprints import is_mark
from recoverrun.worker.context.slot_context import Key, last
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.make_up import noted_evidence
from recoverrun.worker.make_up.made_microbatch import Apart, MadeMicrobatch
from recoverrun.worker.replay.containment import GivenUp
from recoverrun.worker.replay.executed import TALKS
from recoverrun.worker.replay.executor import Executor
from recoverrun.worker.replay.known_state import differing_words
from recoverrun.worker.replay.poison import HIGH, LOW, OURS
from recoverrun.worker.step.worker_state import WorkerState
from recoverrun.worker.tracking.microbatches import Microbatch

Pieces = Sequence[tuple[Reducer, Piece]]

IMPOSSIBLE, WANTED, NEEDLESS = range(3)
"""A survivor's answers as to executing the last committed microbatch of a lost rank once more."""

GUESSED = "something that is not known of all ranks of a lost replica changes its microbatch"


class Doubts:
    """The checks of one survivor. Each raises NotReplayable if it fails."""

    def __init__(self, worker: WorkerState, executor: Executor) -> None:
        self._worker = worker
        self._executor = executor
        self._recalled: dict[int, str] = {}  # by lost rank: why our own microbatch differed, or ""
        self._shown: dict[int, str] = {}  # by lost rank: why its committed one differed, or ""
        self._agreed: dict[int, int] = {}  # by lost rank: the least answer of all shard mates
        self._asked: dict[int, frozenset[Key]] = {}  # by lost rank: unknown values already checked
        self._asking: dict[int, frozenset[Key]] = {}  # the same, in the present transaction

    def committed(self) -> None:
        """The transaction is over: unknown values that were checked in it need no other check."""
        for rank, unknown in self._asking.items():
            self._asked[rank] = self._asked.get(rank, frozenset()) | unknown
        self._asking.clear()

    def check_own_microbatch(self, rank: int) -> None:
        worker = self._worker
        if rank not in self._recalled:
            slot = worker.protection.layout.slot(worker.env.rank)
            worker.context_buffer.enters((slot, worker.step, 0))
            self._recalled[rank] = noted_evidence.own_mismatch(worker, self._executor)
            worker.context_buffer.rests()
        if self._recalled[rank]:
            raise NotReplayable(self._recalled[rank])

    def last_committed(self, rank: int, step: int, marks: dict[tuple[int, int], Mark]) -> int:
        """IMPOSSIBLE if the last committed microbatch of the rank cannot be executed again, WANTED
        if it has to be, NEEDLESS if not.
        """
        if noted_evidence.committed_one(self._worker, self._executor, rank, marks) is None:
            return IMPOSSIBLE
        noted, _ = marks.get((step, 0), (0, 0))
        return NEEDLESS if noted else WANTED

    def agree(self, rank: int, least: int) -> None:
        """Shard mates have given their answers, of which `least` is the least: all of them execute
        the microbatch, or none does.
        """
        self._agreed[rank] = least

    def check_last_committed(
        self, rank: int, step: int, marks: dict[tuple[int, int], Mark]
    ) -> None:
        """`marks` are the evidence that the lost rank has noted."""
        if rank not in self._shown:
            word = self._agreed.get(rank)
            if word is None:
                word = self.last_committed(rank, step, marks)
            self._shown[rank] = (
                noted_evidence.disproved(self._worker, self._executor, rank, marks)
                if word == WANTED
                else ""
            )
        if self._shown[rank]:
            raise NotReplayable(self._shown[rank])

    def check_collectives(self, made: MadeMicrobatch, microbatch: Microbatch) -> None:
        if not self._executor.answered:
            return

        def again() -> list[tuple[Reducer, Piece]]:
            assert made.start is not None, "executed from there"
            with Apart(self._worker) as apart:
                made.executed = self._executor.execute(
                    made.rank, made.start, self._worker.step, microbatch
                )
                return apart.pieces(carried=not made.identity[1])

        if not same_for_all_answers(self._executor, made.pieces, again):
            raise NotReplayable(TALKS)
        self._executor.talked = True

    def check_unknown(self, made: MadeMicrobatch, microbatch: Microbatch) -> None:
        """Check unknown values that were not checked before. Shard mates may lack different values:
        they check together, with audits alone.
        """
        layout = self._worker.protection.layout
        unknown = self._unknown(made, microbatch)
        if layout.shards > 1 or unknown <= self._asked.get(made.rank, frozenset()):
            return
        self._asking[made.rank] = self._asking.get(made.rank, frozenset()) | unknown
        why = self.guessed(made, microbatch)
        if why:
            raise NotReplayable(why)

    def guessed(self, made: MadeMicrobatch, microbatch: Microbatch) -> str:
        """The reason why `made` is only a guess, or "": an unknown value of the rank matters after
        all.
        """
        layout, unknown = self._worker.protection.layout, self._unknown(made, microbatch)
        together = layout.shards > 1  # mates, whatever each of them does not know
        if not (unknown or together) or self._is_alike(made, microbatch, unknown):
            return ""
        if not unknown:
            return GUESSED
        each: list[Key] = []
        if len(unknown) > 1 and not together:
            each = [key for key in unknown if not self._is_alike(made, microbatch, {key})]
        return differing_words(sorted(each or unknown, key=str), "between steps")

    def _is_alike(
        self, made: MadeMicrobatch, microbatch: Microbatch, keys: Collection[Key]
    ) -> bool:
        """True if the microbatch comes out the same with our own values in the place of `keys`.

        Raises GivenUp.
        """
        start, mine = made.start, microbatch.top.context
        assert start is not None and mine is not None, "executed from there"
        assert made.executed is not None, "before"
        values = {**start.context.values, **{key: mine.values[key] for key in keys}}
        ours_instead = replace(start, context=start.context.with_values(values))
        try:
            with Apart(self._worker):
                again = self._executor.execute(
                    made.rank, ours_instead, self._worker.step, microbatch
                )
        except GivenUp:
            raise
        except NotReplayable:
            return False
        return (again.mark, again.door) == (made.executed.mark, made.executed.door)

    def _unknown(self, made: MadeMicrobatch, microbatch: Microbatch) -> frozenset[Key]:
        """Values that are not known of the rank, and of which this rank has its own."""
        ours = microbatch.top.context.values if microbatch.top.context is not None else {}
        unknown = made.start.unknown if made.start is not None else frozenset()
        return frozenset(key for key in unknown if key in ours and not is_mark(last(key)))


def same_for_all_answers(executor: Executor, first: Pieces, again: Callable[[], Pieces]) -> bool:
    """True if a microbatch has the same gradients whatever its collectives are answered: `first`,
    those with the first answer. All ranks of a replica try all answers together, as the forward
    passes need each other.
    """
    outcomes = []
    try:
        for answer in (HIGH, OURS):
            executor.answer = answer
            outcomes.append(again())
    finally:
        executor.answer = LOW
    return all(_same(first, one) for one in outcomes)


def _same(one: Pieces, other: Pieces) -> bool:
    """True if all gradients are equal, and free of NaN, which is not equal to itself."""
    return all(
        all(torch.equal(gradient, theirs[key]) for key, gradient in mine.items())
        for (_, mine), (_, theirs) in zip(one, other, strict=True)
    )
