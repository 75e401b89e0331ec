"""The present promise of the run about a loss. It only goes down, and says so once.

| promise | meaning |
|---|---|
| exact-samples | a lost rank's microbatches are made up with its own samples and random numbers |
| equal-count | with other samples of the same data |
| rollback | no step outlives a loss: all ranks go back to the newest snapshot |
| unprotected | not at all: a loss ends the run, as under torchrun |
"""

from collections.abc import Callable

from recoverrun.worker.step.reporter import Reporter
from recoverrun.worker.tracking.loop_extent import UNSEEN, Extent
from rendezvous.coordinator.guarantees import WEAKEST_FIRST
from rendezvous.protocol.messages import UNSAID, Promise


class Guarantee:
    """`shape` tells how many microbatches a transaction has, `extent` how many steps there will be,
    for those who read of the promise.
    """

    def __init__(
        self,
        reporter: Reporter,
        shape: Callable[[], int],
        extent: Callable[[], Extent] = lambda: UNSEEN,
    ) -> None:
        self._reporter = reporter
        self._shape = shape
        self._extent = extent
        self.promise: Promise | None = None  # not known yet
        self.steered = False
        self.refusal = ""  # why no step outlives a loss
        self.weakened = ""  # why samples are not exact any more, as far as this rank knows
        self._untold: tuple[str, Extent] | None = None  # of a promise that is held back

    @property
    def exact(self) -> bool:
        return self.promise == "exact-samples"

    @property
    def protects(self) -> bool:
        return self.promise in ("exact-samples", "equal-count")

    def state(self, promise: Promise, reason: str, own: Promise | None = None) -> None:
        """All ranks have found that the run promises this; `own` is what this rank has found."""
        if not self._lowers(promise):
            return
        self.promise, self._untold = promise, None
        if not self.protects:
            self.refusal = reason
        self._reporter.promise(own or promise, self._shape(), reason, self._extent())

    def hold_back(self, promise: Promise, reason: str) -> None:
        """Let the run promise this once `tell` is called: until then it has nothing to keep it."""
        if self._lowers(promise):
            self.promise, self.refusal = promise, reason
            self._untold = reason, self._extent()

    def tell(self, words: str = "") -> bool:
        """Say what was held back, in these `words` or for the reason known. False: nothing was."""
        if self._untold is None or self.promise is None:
            return False
        (reason, extent), self._untold = self._untold, None
        self._reporter.promise(self.promise, self._shape(), words or reason, extent)
        return True

    def adopt(self, promise: Promise, *, steered: bool) -> None:
        """Take the promise of the run in which this process takes a lost rank's place: others have
        said it.
        """
        self.promise, self.steered = promise, steered

    def weaken(self, reason: str) -> None:
        """Weaken the promise: from here on lost microbatches are made up with other samples.

        Each rank says so itself, and the coordinator writes it down once: a rank that spoke for
        others may be lost before its word is sent. Without a reason, another rank knows it.
        """
        if self._lowers("equal-count"):
            self.promise, self.weakened = "equal-count", reason
            self._reporter.downgraded(reason or UNSAID)

    def steer(self, reason: str) -> None:
        """Note that from here on a decision of the script may be another one; samples stay what
        they are.
        """
        self.steered = True
        self._reporter.steered(reason)

    def _lowers(self, promise: Promise) -> bool:
        known = self.promise
        return known is None or WEAKEST_FIRST.index(promise) < WEAKEST_FIRST.index(known)
