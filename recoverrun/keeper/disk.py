"""The thread of a keeper that waits for disks: nobody else may."""

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

Outcome = Callable[[], None]
"""What follows, in the keeper's own thread."""

Task = Callable[[], Outcome]


class Disk:
    """A thread that does orders one after the other. `fd` is readable when `take` has something."""

    def __init__(self) -> None:
        """The thread begins with the first task, and ends with the process."""
        self.fd, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._changed = threading.Condition()
        self._tasks: deque[Task] = deque()
        self._open = 0  # tasks that are not done
        self._outcomes: deque[Outcome] = deque()
        self._thread: threading.Thread | None = None

    def ask(self, task: Task) -> None:
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="disk", daemon=True)
                self._thread.start()
            self._tasks.append(task)
            self._open += 1
            self._changed.notify()

    def take(self) -> list[Outcome]:
        """The outcomes of tasks that are done."""
        with suppress(BlockingIOError):
            os.read(self.fd, 1 << 10)
        with self._changed:
            done, self._outcomes = list(self._outcomes), deque()
        return done

    def finish(self, within_s: float) -> None:
        """Wait for what is not done yet, so long at most: this process is about to end."""
        with self._changed:
            self._changed.wait_for(lambda: not self._open, within_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._tasks))
                task = self._tasks.popleft()
            outcome = task()
            with self._changed:
                self._outcomes.append(outcome)
                self._open -= 1
                self._changed.notify_all()
            with suppress(BlockingIOError):  # it is readable already
                os.write(self._write, b"\0")
