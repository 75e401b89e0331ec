"""Outlets of events: a command, an address. Each outlet has a thread and a bounded queue.

A command that hangs, or an address that does not answer, costs events, which are counted, and
nothing else.
"""

import json
import os
import queue
import signal
import subprocess
import threading
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

from recoverrun.companion.told_events import ToldEvent
from recoverrun.version import __version__

COMMAND_S = 30.0
POST_S = 5.0
TRIES = 3
AGAIN_S = 1.0
WAITING_MOST = 256


Item = TypeVar("Item")


class EventOutlet(Generic[Item]):
    """Gives events to `deliver`, one after another, in a thread of its own."""

    def __init__(self, name: str, deliver: Callable[[Item], None]) -> None:
        self._deliver = deliver
        self._waiting: queue.Queue[Item | None] = queue.Queue(WAITING_MOST)
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, item: Item) -> None:
        """Have an event delivered, unless too many wait."""
        try:
            self._waiting.put_nowait(item)
        except queue.Full:
            self.dropped += 1

    def finish(self, within_s: float) -> bool:
        """Deliver what waits, for so long at most. True if nothing is left."""
        with suppress(queue.Full):
            self._waiting.put(None, timeout=within_s)
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            self._deliver(item)


class CommandOutlet:
    """Runs a command for each event, with the record as JSON on its standard input."""

    def __init__(self, command: str, log: Path) -> None:
        """`log`: the file to whose end the output goes."""
        self._command = command
        self._log = log
        self._running: subprocess.Popen[bytes] | None = None

    def deliver(self, told: ToldEvent) -> None:
        content = json.dumps(told.payload()).encode()
        try:
            with self._log.open("ab") as log:
                running = self._running = subprocess.Popen(
                    self._command,
                    shell=True,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # So it is ended with all that it has started.
                )
                try:
                    running.communicate(content, COMMAND_S)
                except subprocess.TimeoutExpired:
                    self.end()
                    log.write(f"ended after {COMMAND_S:g} s: {self._command}\n".encode())
        except OSError as error:
            with suppress(OSError), self._log.open("ab") as log:
                log.write(f"{self._command}: {error}\n".encode())

    def end(self) -> None:
        """Kill a command that still runs."""
        running = self._running
        if running is None or running.poll() is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()


class PostOutlet:
    """Posts each event as JSON, with a `text` that chat programs show."""

    def __init__(self, url: str, log: Path) -> None:
        self._url = url
        self._log = log
        self._pause = threading.Event()

    def deliver(self, told: ToldEvent) -> None:
        request = urllib.request.Request(
            self._url,
            data=json.dumps(told.payload()).encode(),
            headers={
                "Content-Type": "application/json",
                "User-Agent": f"recoverrun/{__version__}",
            },
        )
        for number in range(1, TRIES + 1):
            try:
                with urllib.request.urlopen(request, timeout=POST_S):
                    return
            except (OSError, ValueError) as error:  # URLError is an OSError
                trouble = str(error)
            if number < TRIES:
                self._pause.wait(AGAIN_S * number)
        with suppress(OSError), self._log.open("a") as log:
            log.write(f"--notify-url: {told.record['id']} was not accepted: {trouble}\n")
