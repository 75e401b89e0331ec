"""What is executed as another rank may neither end this process nor hold it for ever.

Ends that the code asks for are refused (`exits`), exceptions that would end a script end the
execution, and so does a time limit (`patience`). What is left are signals: who dies of one has
left in its shared memory at which microbatch it was (`remnants`), and others judge by that
(`deaths`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Never

from recoverrun.hooks import places
from recoverrun.hooks.clones import NotReplayable
from recoverrun.hooks.exits import Interrupts, refused
from recoverrun.hooks.patience import Patience
from recoverrun.hooks.runtime import ScriptRuntime, Unwind

RAISED = "{}: executed as rank {}, the script's code raised {!r}{}"
ENDS = "{}: executed as rank {}, the script's code would end this process by {}{}"
LATE = "{}: executed as rank {}, the script's code had not ended after {:.0f} s; it was{}"
SOMEWHERE = " in a library"


class GivenUp(NotReplayable):
    """That microbatch is not tried again, by nobody."""


class Custody:
    """Around code of another rank; `region` is the loop that it belongs to."""

    def __init__(self, runtime: ScriptRuntime) -> None:
        self.patience = Patience()
        self._runtime = runtime
        self._interrupts = Interrupts()
        self._region = ""
        self._given_up = False

    @contextmanager
    def of(self, region: str, limit_s: float) -> Iterator[None]:
        """Code within is ended by Unwind, and then `failure` tells why."""
        self._region, self._given_up = region, False
        own = self._runtime.own_modules
        with self._interrupts.noted(), refused(self._refuse, own):
            with self.patience.within(limit_s, self._interrupt):
                yield

    def failure(self) -> NotReplayable:
        """What became of an execution that was left by Unwind, and is no microbatch."""
        return (GivenUp if self._given_up else NotReplayable)(self._runtime.spoiled)

    def asked_by_user(self, error: BaseException) -> bool:
        """True if it is the user who interrupts this process, and not the code within."""
        return isinstance(error, KeyboardInterrupt) and self._interrupts.came

    def raised(self, error: BaseException) -> NotReplayable:
        """An exception of the script's, as the reason why nothing came of the execution."""
        where = places.of_error(error, self._runtime.own_modules)
        words = RAISED.format(self._region, self._runtime.acting_rank, error, where)
        return NotReplayable(words) if isinstance(error, Exception) else GivenUp(words)

    def late(self, thread: int, limit_s: float) -> str:
        """In words, where the script's thread is that cannot be interrupted."""
        where = places.of_thread(thread, self._runtime.own_modules) or SOMEWHERE
        return LATE.format(self._region, self._runtime.acting_rank, limit_s, where)

    def _refuse(self, name: str, frame: FrameType) -> Never:
        where = places.of_frame(frame, self._runtime.own_modules)
        words = ENDS.format(self._region, self._runtime.acting_rank, name, where)
        self._leave(words)

    def _interrupt(self, frame: FrameType | None, limit_s: float) -> Never:
        where = places.of_frame(frame, self._runtime.own_modules) or SOMEWHERE
        self._leave(LATE.format(self._region, self._runtime.acting_rank, limit_s, where))

    def _leave(self, words: str) -> Never:
        self._given_up = True
        self._runtime.spoil(words)
        raise Unwind(words)
