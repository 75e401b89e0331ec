"""The draws of the script from its data iterators: for the item of an iteration, and before it.

Draws of a loop's header are those of its item. A loop's item may also have been drawn before: an
iteration ahead (a loader that looks one batch ahead), or before the loop began, where all batches
of a step are drawn first. Those of the step before are kept for both at once.
"""

from collections.abc import Callable

from recoverrun.worker.data.source import Draw

KEPT_DRAWS = 64
"""So many of the latest draws are kept in the body of a loop, and outside of all loops: a script
may read a whole data set there, which must not stay in memory."""


class DrawLog:
    """The draws of a process. `expected`: the microbatches of a step, 0 while unknown."""

    def __init__(self, expected: Callable[[], int]) -> None:
        self.count = 0  # of all draws; `present` has the last ones
        self.present: list[Draw] = []  # since the present iteration began
        self.in_header = False  # a loop's header is drawing: its draws are all kept
        self._expected = expected
        self._of_header = 0  # the first draws of `present`, which the header made
        self._fetched: list[list[Draw]] = [[], []]  # made before a loop: [last step, this step]

    def begin_iteration(self, first: bool) -> tuple[list[Draw], list[Draw]]:
        """The list for draws from now on, and the draws by which the item may have been drawn
        before.

        `first`: a loop begins.
        """
        if first:
            self._fetched[-1] += self.present
        ahead = self.fetched if first else self.before_now
        self.present = []
        self._of_header, self.in_header = 0, True
        return self.present, ahead

    def end_header(self) -> None:
        self._of_header, self.in_header = len(self.present), False

    def begin_step(self) -> None:
        self._fetched = [self._fetched[-1], []]

    @property
    def fetched(self) -> list[Draw]:
        """Drawn before a loop of this step or of the one before began."""
        return [draw for draws in self._fetched for draw in draws]

    @property
    def before_now(self) -> list[Draw]:
        """The draws that may be in the next item of a loop."""
        return [*self.fetched, *self.present]

    def note(self, draw: Draw) -> None:
        kept = max(KEPT_DRAWS, 2 * self._expected())
        if not self.in_header and len(self.present) >= self._of_header + kept:
            del self.present[self._of_header]
        self.present.append(draw)
        self.count += 1

    def since(self, mark: int) -> list[Draw] | None:
        """Draws from number `mark` on; None if they are not all kept any more."""
        count = self.count - mark
        if count > len(self.present) - (0 if self.in_header else self._of_header):
            return None
        return self.present[len(self.present) - count :]

    def fold(self, mark: int, draw: Draw | None) -> None:
        """The draws from number `mark` on are one item of another source; None: of none so far."""
        since = self.since(mark)
        if since is not None:
            del self.present[len(self.present) - len(since) :]
            self.count = mark
        if draw is not None:
            self.note(draw)

    def pass_by(self, mark: int) -> None:
        """The draws from number `mark` on were for items that were passed. The script has none of
        these, but a reader ahead may hold some of the last ones back.
        """
        kept = max(0, len(self.present) - (self.count - mark))
        passed = [draw for draw in self.present[kept:] if draw.item is not None]
        self._fetched[-1] = [*self._fetched[-1], *passed][-KEPT_DRAWS:]
        del self.present[kept:]
        self._of_header = min(self._of_header, kept)
        self.count = mark

    def arrive(self) -> None:
        """A fresh process stands at the top of a step: what it has drawn so far is for that one."""
        self._fetched = [[], self.fetched]
