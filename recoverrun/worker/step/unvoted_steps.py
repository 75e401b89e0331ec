"""Steps as each rank counts them for itself.

A job of one replica has no votes. A job of several votes on transactions, of which there may be
more than updates.

A step ends with an optimizer's update and begins with the next iteration of a loop that trains. All
ranks run the same code, so they count alike.
"""

from collections.abc import Callable
from typing import Any, Protocol

from recoverrun.worker.instrumentation import Loop
from recoverrun.worker.tracking.microbatches import Microbatch, Top


class Tracks(Protocol):
    """Knows where the script is."""

    microbatches: list[Microbatch]
    regions: set[str]

    def note_backward(self) -> Microbatch | None:
        """A backward is done: the microbatch, None if no loop is around it."""

    def trains(self, loop: Loop) -> bool:
        """True if a backward of the script was seen in `loop`."""


class UnvotedSteps:
    """The steps of one worker, counted without a vote."""

    def __init__(
        self,
        runtime: Tracks,
        on_backward: Callable[[Any], None] = lambda losses: None,
        unserved: Callable[[], str] = lambda: "",
    ) -> None:
        """`on_backward` hears of each backward that is about to begin, from its losses. `unserved`
        tells why nothing is copied of this script unless somebody asks for it, "" if it is.
        """
        self._runtime = runtime
        self.on_backward = on_backward
        self.unserved = unserved
        self.index = 0  # number of the present step: iterations with an update so far
        self.updated = False  # an optimizer has stepped since the present step began
        self._trained: dict[int, Any] = {}  # parameters by identity, in the order of updates

    def backward_done(self) -> None:
        """A backward of the script has ended."""
        microbatch = self._runtime.note_backward()
        if microbatch is not None:
            self._runtime.regions.add(microbatch.top.loop.id)
            self._runtime.microbatches.clear()  # without votes no microbatch is executed again

    def trains(self, optimizer: Any) -> None:
        """This optimizer has made an update: `trained` has its parameters from now on."""
        for group in optimizer.param_groups:
            for param in group["params"]:
                self._trained.setdefault(id(param), param)

    @property
    def trained(self) -> list[Any]:
        """The parameters of all that `trains` was told of."""
        return list(self._trained.values())

    def index_at(self, top: Top) -> int:
        """The step to which the iteration at `top` belongs; the next one if that begins there."""
        return self.index + (self.updated and self._runtime.trains(top.loop))

    def begins(self, top: Top) -> bool:
        """True if a step begins with the iteration that begins at `top`."""
        if not self.updated or not self._runtime.trains(top.loop):
            return False
        self.updated = False
        self.index += 1
        return True
