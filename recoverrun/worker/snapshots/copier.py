"""A thread that copies tensors into mapped memory while the script's own thread trains.

It takes the memory of tensors part by part; nothing of Python is held meanwhile. What it is asked
to do it does in the order in which it was asked.
"""

import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

PART_BYTES = 4 << 20

Task = Callable[[], None]


@dataclass(frozen=True, slots=True)
class MemoryCopy:
    """`nbytes` from `source`, a contiguous tensor on the CPU, to the address `target`."""

    source: torch.Tensor
    target: int

    @property
    def nbytes(self) -> int:
        return self.source.nbytes


class CopyThread:
    """The thread begins with the first task, and ends with the process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tasks: deque[Task] = deque()
        self._busy = False
        self._thread: threading.Thread | None = None
        self._failed: BaseException | None = None
        self.worked_s = 0.0  # processor time of the thread

    def ask(self, task: Task) -> None:
        """Let the thread do it after all that it was asked before."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="recoverrun-snapshots", daemon=True
                )
                self._thread.start()
            self._tasks.append(task)
            self._changed.notify_all()

    def rest(self, within_s: float | None = None) -> bool:
        """Wait until nothing is left to do; False if that takes longer. Raises what a task did."""
        with self._changed:
            rests = self._changed.wait_for(lambda: not (self._tasks or self._busy), within_s)
            failed, self._failed = self._failed, None
        if failed is not None:
            raise failed
        return rests

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: bool(self._tasks))
                task, self._busy = self._tasks.popleft(), True
            try:
                task()
            except BaseException as error:  # the script's thread hears of it
                with self._changed:
                    self._failed = self._failed or error
            self.worked_s = time.thread_time()


def copy_all(copies: Sequence[MemoryCopy], on_half: Callable[[], None] = lambda: None) -> None:
    """`on_half` hears when half of the parts are there."""
    parts = [(one, begin) for one in copies for begin in range(0, max(1, one.nbytes), PART_BYTES)]
    for number, (one, begin) in enumerate(parts):
        if number == len(parts) // 2:
            on_half()
        size = min(PART_BYTES, one.nbytes - begin)
        ctypes.memmove(one.target + begin, one.source.data_ptr() + begin, size)


def address_of(memory: memoryview) -> int:
    """The address of writable `memory`, which must be held while the address is used."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory)) if memory.nbytes else 0
