"""The thread that hears the launcher: it feeds the in-step machine the moment a message arrives.

The script's thread feeds what the script does (`driver`). Both meet at one condition variable,
which communicators share (`fabric`), so that any wait ends when the members change.
"""

import threading
import time
from collections import deque
from collections.abc import Callable

from ft_collectives.step.step_events import (
    Accumulated,
    Decided,
    Effect,
    Event,
    Invited,
    Send,
    Tick,
    Viewed,
)
from recoverrun.worker.step.stack_dump import show
from recoverrun.worker.step.worker_state import WorkerState
from rendezvous.protocol.arrival_messages import Arrival
from rendezvous.protocol.hang_messages import ShowStack
from rendezvous.protocol.messages import Committed, Decision, LostContexts, Message
from rendezvous.protocol.snapshot_messages import Drain
from rendezvous.protocol.views import View

VIEW_WITHIN_S = 60.0
"""How long a worker waits for the coordinator's first word before it calls that an error."""

LISTEN_S, IDLE_S = 0.25, 1.0  # between looks at the machine's deadlines: if it has one, if not


class Control:
    """Hears the launcher, and feeds the machine."""

    def __init__(
        self, worker: WorkerState, inherit: Callable[[LostContexts], None], look: Callable[[], None]
    ) -> None:
        """`inherit` is told what lost ranks left; `look` is called at each turn of the thread."""
        self._worker = worker
        self._inherit = inherit
        self._look = look
        self._agenda: deque[Effect] = deque()
        self._untold: deque[Accumulated] = deque()  # microbatches, which the machine hears of next

    def start(self) -> None:
        threading.Thread(target=self._listen, name="recoverrun-control", daemon=True).start()

    def _listen(self) -> None:
        worker = self._worker
        while True:
            waits = worker.machine is not None and worker.machine.deadline() is not None
            message = worker.link.receive(LISTEN_S if waits else IDLE_S)
            if message is not None:
                self._hear(message)
            if waits:
                self.feed(Tick())
            self._look()

    def _hear(self, message: Message) -> None:
        worker = self._worker
        match message:
            case View():
                worker.hear(message)
                self.feed(Viewed(view=message))
                if worker.fabric is not None:
                    worker.fabric.change(message)
            case Decision():
                self.feed(Decided(decision=message))
            case Arrival(generation=generation, ranks=ranks):
                worker.invited = ranks
                self.feed(Invited(generation=generation))
            case Drain():
                worker.drains = True
            case LostContexts():
                worker.left_buffers.hear(message)
                self._inherit(message)
            case ShowStack():
                joined = worker.fabric.waits.joined() if worker.fabric is not None else ()
                worker.link.send(
                    show(
                        message,
                        worker.env.context,
                        worker.generation,
                        joined,
                        failure=worker.failure,
                    )
                )
            case _:
                ...  # nothing else is meant for a worker

    def await_first_view(self) -> None:
        worker = self._worker
        with worker.changed:
            worker.changed.wait_for(lambda: worker.view is not None, timeout=VIEW_WITHIN_S)
            if worker.view is None:
                raise RuntimeError(f"the coordinator said nothing for {VIEW_WITHIN_S:.0f} s")

    # --------------------------------------------------------------------------- the machine

    def note(self, microbatch: Accumulated) -> None:
        """One of the script's own: the machine hears of it before it hears of anything else."""
        self._untold.append(microbatch)

    def forget(self) -> None:
        """The transaction begins anew: microbatches that were noted are none of it."""
        self._untold.clear()

    def accumulated(self) -> int:
        """The number of the script's own microbatches in the present transaction."""
        machine = self._worker.protection.machine
        with self._worker.changed:
            known = [identity for identity in machine.done if identity[0] == machine.slot]
            return len(known) + len(self._untold)

    def feed(self, event: Event) -> None:
        """Give the machine an event; messages leave at once, work waits for the script's thread."""
        worker = self._worker
        with worker.changed:
            machine = worker.machine
            if machine is None:
                return
            now = time.monotonic()
            while self._untold:
                wanted = machine.step(self._untold.popleft(), now)
                assert not wanted, f"a microbatch of the script's own asks for {wanted}"
            for effect in machine.step(event, now):
                if isinstance(effect, Send):
                    message = effect.message
                    if isinstance(message, Committed):
                        spent_ms = worker.progress.spent_ms() | worker.cpu_waits.spent_ms()
                        message = worker.timing.complete(message, spent_ms)
                    worker.link.send(message)
                else:
                    self._agenda.append(effect)
                    worker.changed.notify_all()

    def next_effect(self) -> Effect:
        """The next order for the script's thread. Superseded if the members change meanwhile."""
        worker = self._worker
        with worker.changed:
            worker.protection.fabric.waits.until_ready(
                worker.changed, lambda: bool(self._agenda), f"step {worker.step}"
            )
            return self._agenda.popleft()
