"""Buffers of a lost rank from which all take them over (`ForwardSync`), followed by survivors.

Whoever executes its microbatches of a transaction, all of them and in their order, has its buffers
at the end, and all survivors know who that is. Where several survivors share these microbatches,
the one with the first of them executes the others once more, for the buffers alone.
"""

from collections.abc import Callable, Mapping

from recoverrun.worker.make_up.made_microbatch import MadeMicrobatch
from recoverrun.worker.replay.executed import Executed
from recoverrun.worker.step.forward_sync import Buffers
from recoverrun.worker.step.worker_state import WorkerState
from rendezvous.protocol.views import Identity


class FollowedBuffers:
    """The buffers of lost ranks that this rank follows, and who follows others."""

    def __init__(
        self, worker: WorkerState, aside: Callable[[Identity, int, Buffers], MadeMicrobatch]
    ) -> None:
        """`aside` executes a microbatch of a lost rank, and leaves it at that."""
        self._worker = worker
        self._aside = aside
        # In this transaction, each with what it went on from: that may be executed again.
        self._asides: dict[Identity, tuple[Executed, MadeMicrobatch]] = {}
        self._held: Buffers = ()  # those that this rank has, by module
        self._holders: dict[int, int] = {}  # by module

    def before(self, made: Mapping[Identity, MadeMicrobatch], identity: Identity) -> Buffers:
        """The end of the microbatch before this one: it goes on from there. Nothing if that is not
        known, or is in the same iteration, which is executed from its top.
        """
        slot, index = identity
        earlier, own = made.get((slot, index - 1)), self._worker.runtime.microbatches
        if earlier is None or earlier.executed is None or own[index].top is own[index - 1].top:
            return ()
        return earlier.executed.buffers

    def told(self, made: Mapping[Identity, MadeMicrobatch]) -> list[int]:
        """The modules of which this rank has a lost rank's buffers as the transaction ends."""
        self._held = ()
        for (slot, index), first in sorted(made.items()):
            if not index and self._worker.protection.strategy.forward_sync.leads(first.rank):
                self._held = self._end(made, slot, first.rank)
        return [number for number, one in enumerate(self._held) if one is not None]

    def _end(self, made: Mapping[Identity, MadeMicrobatch], slot: int, rank: int) -> Buffers:
        """The buffers of lost `rank` at the end of all its microbatches, of which this one has the
        first.
        """
        worker, chain = self._worker, dict(made)
        last = chain[slot, 0]
        for index in range(len(worker.runtime.microbatches)):
            identity = (slot, index)
            if last.executed is None or not any(one is not None for one in last.executed.buffers):
                return ()  # Nothing to follow: models without such buffers end here.
            if identity not in chain:
                if worker.protection.layout.shards > 1:
                    return ()  # Its mates would have to take part.
                earlier, made_aside = self._asides.get(identity, (None, None))
                if made_aside is None or earlier is not last.executed:
                    made_aside = self._aside(identity, rank, self.before(chain, identity))
                    self._asides[identity] = last.executed, made_aside
                chain[identity] = made_aside
            last = chain[identity]
        return () if last.executed is None else last.executed.buffers

    def hear(self, said: Mapping[int, list[int]]) -> None:
        """Learn who has them, from what each rank has `told`."""
        self._holders = {number: rank for rank, numbers in said.items() for number in numbers}

    def committed(self, step: int) -> None:
        """Transaction `step` is over."""
        self._worker.protection.strategy.forward_sync.commit(step, self._holders, self._held)
        self._asides.clear()
        self._holders, self._held = {}, ()
