"""Code that is executed as another rank may neither end this process nor hold it for ever.

Ends that the code asks for are refused (`exit_calls`), exceptions that would end a script end the
execution, and so does a time limit (`time_limits`). What it leaves for the end of the process is
not done (`end_of_process`). Signals remain: who dies of one has left in its shared memory which
microbatches it had begun (`context_buffer`), and others judge by that (`deadly_microbatches`).
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Never, Protocol, TypeVar

from ft_collectives.communicators.errors import InvariantBroken, Superseded
from recoverrun.worker.errors import NotReplayable, Unwind
from recoverrun.worker.replay import script_locations
from recoverrun.worker.replay.end_of_process import nothing_left
from recoverrun.worker.replay.exit_calls import Interrupts, refused
from recoverrun.worker.replay.influence import Modules
from recoverrun.worker.step.time_limits import SERVING_LEAST_S, ExecutionTimer, limit_s

RAISED = "{}: executed as rank {}, the script's code raised {!r}{}"
HARMS = "{}: executed as rank {}, the script's code would {}{}"
LATE = "{}: executed as rank {}, the script's code had not ended after {:.0f} s; it was{}"
SOMEWHERE = " in a library"

SHARE = 0.6
"""An execution may take this share of the script's time limit, within which others wait for it."""

T = TypeVar("T")


class GivenUp(NotReplayable):
    """A microbatch that nobody tries again."""


class Spoils(Modules, Protocol):
    """Knows whether code that is executed again is not its microbatch."""

    spoiled: str

    def spoil(self, reason: str) -> None:
        """Mark the execution as no microbatch, for this reason; the first one counts."""


class Containment:
    """Around code of another rank; `region` is the loop that it belongs to."""

    def __init__(
        self,
        script: Spoils,
        leave: Callable[[str], Never],
        others_wait_s: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """`leave` ends this process, for a reason in words, where an execution cannot be ended.

        `others_wait_s` is asked how long other ranks wait for this one in a collective.
        """
        self._end, self._others_wait_s = leave, others_wait_s
        self.timer = ExecutionTimer(self._late)
        self._script = script
        self._interrupts = Interrupts()
        self._region, self._rank = "", -1
        self._given_up = False

    @contextmanager
    def of(self, region: str, rank: int, limit_s: float) -> Iterator[None]:
        """Code within is ended by Unwind, and then `failure` tells why.

        It gets `limit_s`, and never more than most of what the others' time limits leave.
        """
        limit_s = self.within_s(limit_s)
        self._region, self._rank, self._given_up = region, rank, False
        own = self._script.own_modules
        with self._interrupts.noted(), refused(self._refuse, own), nothing_left(own):
            with self.timer.within(limit_s, self._interrupt):
                yield

    def within_s(self, limit_s: float) -> float:
        """The part of `limit_s` that the time limits of others leave to an execution."""
        return min(limit_s, SHARE * self._others_wait_s())

    def serve(self, region: str, rank: int, longest_s: float, work: Callable[[], T]) -> T:
        """Run `work` with data sets that give the data of `rank`. Raises NotReplayable."""
        self._script.spoiled = ""
        try:
            with self.of(region, rank, limit_s(longest_s, SERVING_LEAST_S)):
                served = work()
        except Unwind:
            raise self.failure() from None
        except (NotReplayable, Superseded, InvariantBroken):
            raise
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            # Protects a healthy run from what its code says to others' data.
            self.end_by(error)
        if self._script.spoiled:  # an exception may not pass through a generator of the script
            raise self.failure()
        return served

    def end_by(self, error: BaseException, beside: str = "") -> Never:
        """Code that runs for another rank raised what is not meant for this one; `beside` ends the
        sentence that tells so.
        """
        users = isinstance(error, KeyboardInterrupt) and self._interrupts.came
        if users or "gloo" in str(error):
            raise error
        where = script_locations.of_error(error, self._script.own_modules)
        words = RAISED.format(self._region, self._rank, error, where) + beside
        raise (NotReplayable if isinstance(error, Exception) else GivenUp)(words) from error

    def failure(self) -> NotReplayable:
        """The error of an execution that was left by Unwind, and is no microbatch."""
        return (GivenUp if self._given_up else NotReplayable)(self._script.spoiled)

    def _late(self, thread: int, took_s: float) -> Never:
        """End the process from the control thread: the script's thread cannot be interrupted."""
        where = script_locations.of_thread(thread, self._script.own_modules) or SOMEWHERE
        self._end(LATE.format(self._region, self._rank, took_s, where))

    def _refuse(self, what: str, frame: FrameType) -> Never:
        where = script_locations.of_frame(frame, self._script.own_modules)
        self._leave(HARMS.format(self._region, self._rank, what, where))

    def _interrupt(self, frame: FrameType | None, took_s: float) -> Never:
        where = script_locations.of_frame(frame, self._script.own_modules) or SOMEWHERE
        self._leave(LATE.format(self._region, self._rank, took_s, where))

    def _leave(self, words: str) -> Never:
        self._given_up = True
        self._script.spoil(words)
        raise Unwind(words)
