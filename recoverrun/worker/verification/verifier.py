"""All that is verified as transactions begin and end, in its order. Implements `step.Verifier`."""

from typing import Any

from ft_collectives.communicators.fabric import Fabric
from ft_collectives.step.vote import Tally, VoteGroup
from recoverrun.worker.context.slot_context import Context
from recoverrun.worker.step import parameter_checksum
from recoverrun.worker.step.worker_state import WorkerState
from recoverrun.worker.tracking.microbatches import Top
from recoverrun.worker.verification.drift_check import DriftCheck
from recoverrun.worker.verification.nonfinite import NonfiniteCheck
from recoverrun.worker.verification.proofs import Proofs


class Verification:
    """Proofs, the check of drift, the check for NaN and the checksum of parameters."""

    def __init__(
        self, worker: WorkerState, proofs: Proofs, drift: DriftCheck, guard: NonfiniteCheck
    ) -> None:
        self._worker = worker
        self._proofs = proofs
        self._drift = drift
        self._nonfinite = guard

    def fitness(self, fabric: Fabric, vote_group: VoteGroup) -> str:
        """The reason why this script cannot be served, as all ranks find it, or "". All ranks
        enter.
        """
        return self._proofs.fitness(fabric, vote_group)

    def first(self) -> None:
        """The first transaction is over: make the promise of this run. All ranks enter."""
        self._proofs.first()

    def learned(self) -> list[list[Any]]:
        """The findings of ranks of each other so far, for one that takes a lost one's place."""
        return [self._proofs.learned(), self._drift.learned()]

    def learn(self, learned: list[list[Any]]) -> None:
        """The others have found this before this process began."""
        proved, drifted = learned
        self._proofs.learn(proved)
        self._drift.learn_all(drifted)
        self._nonfinite.learn()

    def wants(self, top: Top) -> bool:
        """True if an iteration may have to be tried although nobody begins there so far."""
        return self._proofs.wants(top)

    def begins(self, top: Top, context: Context) -> None:
        """A transaction begins at `top`, unless it has with an iteration around: a loop in a
        model's forward, which may train later, is no beginning.
        """
        known = self._worker.runtime.under_way()
        if not known or known[-1].top is top:
            self._drift.begins(context)

    def reduces(self) -> None:
        """Gradients are about to be reduced. Raises FaultyRank if this machine spoilt them."""
        self._worker.timing.digest = parameter_checksum.due(self._worker)
        self._nonfinite.check()

    @property
    def word(self) -> int:
        """The proof that this rank would enter once the transaction is committed."""
        return self._proofs.word

    @property
    def digest(self) -> int:
        """The same on all ranks that have gone on alike."""
        return self._drift.word

    def hear(self, tally: Tally) -> None:
        """Note the words and digests of all ranks."""
        self._proofs.hear(tally)
        self._drift.hear(tally)

    def committed(self) -> None:
        """A transaction is over: ranks compare what differs, and prove what is new, unless nothing
        is promised any more.
        """
        if self._worker.refusal:
            return
        if self._drift.committed():  # first: a proof then knows what ranks do not have in common
            self._proofs.renew()
        self._proofs.committed()
