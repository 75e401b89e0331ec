"""Values that a process took over from another rank as it came back, and that were not the lost
rank's: a running mean of losses, say, that goes on between the microbatches.

    total += loss.item()                     # after each backward
    ...
    dist.all_reduce(torch.tensor(total))     # at the end of the epoch

Nobody executes the first line for a lost rank, so nobody knows its total. Its successor goes on
with that of a survivor: samples are the right ones, the mean is not. So the run says so, once for
each place in the script at which such a value may enter a collective.
"""

from collections.abc import Callable, Iterable

from recoverrun.worker.context.object_members import identifier, spelt
from recoverrun.worker.context.slot_context import Key
from recoverrun.worker.instrumentation import Loop
from recoverrun.worker.make_up.lost_operands import in_words, script_place
from recoverrun.worker.replay.influence import Influence
from recoverrun.worker.step.worker_state import WorkerState

ENTERS = (
    "the collective at {place} is given what rank {rank} took over from another rank as it came "
    "back ({names}): what the script computes from it may differ"
)

MOST_NAMES = 3
"""Names in one sentence."""


class TakenOver:
    """Hears of each collective of the script across replicas, before its data are sent."""

    def __init__(self, worker: WorkerState, influence: Influence) -> None:
        self._worker = worker
        self._influence = influence
        self._names = ""
        self._enters: Callable[[str, int], bool] | None = None
        """True if one may be read at this line; None if all that we hold is our rank's own."""
        self._seen: set[tuple[str, int]] = set()

    def take(self, keys: Iterable[Key], loops: Iterable[Loop]) -> None:
        """This process has come back within `loops`, with values of another rank under `keys`."""
        paths = sorted((key,) if isinstance(key, str) else key for key in keys)
        if paths:
            self._names = ", ".join(map(spelt, paths[:MOST_NAMES]))
            self._enters = self._influence.spread(loops, map(identifier, paths))

    def exchanges(self) -> None:
        """The script is about to exchange something between ranks."""
        worker = self._worker
        if self._enters is None or worker.acting or not worker.guarantee.exact:
            return
        place = script_place()
        if place not in self._seen:
            self._seen.add(place)
            if self._enters(*place):
                words = {"place": in_words(*place), "names": self._names}
                worker.guarantee.steer(ENTERS.format(rank=worker.env.rank, **words))
