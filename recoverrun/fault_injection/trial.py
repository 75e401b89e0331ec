"""One run of the launcher as a process of its own, watched to its end: what demo and inject use.

A trial is judged by what the run left behind, its exit code and its journal. From the output only
the script's own figures are taken, lines such as `step 12 loss 2.3456 lr 3.00e-04`.

Whoever ends the trial ends the run: a signal is passed on to the launcher, which ends its workers,
and where this process is killed, the kernel tells the launcher. The launcher has a process group of
its own, so that Ctrl-C reaches it once, by our hand.
"""

import os
import re
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Protocol

from recoverrun.errors import RecoverrunError
from recoverrun.launcher.node.process import end_with_parent
from recoverrun.launcher.node.signals import STOPPERS
from recoverrun.reports.history import History, history
from recoverrun.reports.proof import Proof, prove
from recoverrun.reports.steps_back import StepBack
from rendezvous.journal.reader import read_run
from rendezvous.protocol.exit_codes import SIGNALLED, ExitCode


class Process(Protocol):
    """The interface that a trial needs of a launcher; `subprocess.Popen` has it."""

    pid: int
    returncode: int | None

    @property
    def stdout(self) -> IO[bytes] | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def communicate(self, *, timeout: float | None = None) -> object: ...
    def send_signal(self, sig: int) -> None: ...
    def kill(self) -> None: ...


Starter = Callable[[Sequence[str], Mapping[str, str]], Process]
"""Starts a launcher in a process group of its own; both of its streams go into the pipe."""

TAIL_LINES = 30
STOP_AFTER_S = 20.0
"""What a launcher gets to end its workers before it is killed."""

_NUMBER = r"(-?[0-9.]+(?:e[-+]?[0-9]+)?)"
_STEP = re.compile(rf"\bstep ([0-9]+)\b.*?\bloss {_NUMBER}(?:.*?\blr {_NUMBER})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A run that is over."""

    run_dir: Path
    exit_code: int
    wall_s: float
    history: History
    proof: Proof
    losses: Mapping[int, float]  # of the script's log, by step
    rates: Mapping[int, float]  # learning rate, by step
    tail: tuple[str, ...]  # the last lines of its output
    notices: tuple[str, ...] = ()  # what its workers had to tell
    start_s: float = 0.0  # until its log named a step, 0 unknown

    @property
    def weakened(self) -> str:
        """The notice by which a run came down from exact-samples, or ""."""
        return self.history.weakened or self.history.steered

    @property
    def goes_back(self) -> bool:
        """True of a run of which no step outlives a loss: nobody votes on them."""
        return self.history.promise == "rollback"

    @property
    def ways_back(self) -> tuple[StepBack, ...]:
        """The returns of all ranks to a snapshot."""
        return tuple(self.history.steps_back.found)

    @property
    def steps(self) -> int:
        return len({commit.step for commit in self.history.commits})


def launch(
    options: Sequence[str],
    *,
    run_dir: Path,
    inject: str = "",
    witness: Path | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    on_line: Callable[[str], None] = lambda line: None,
    start: Starter | None = None,
) -> Trial:
    """Run `recoverrun OPTIONS` to its end; `on_line` sees each line of its output.

    `start` starts the process: a new one of Python where there is none.

    Raises RecoverrunError where it outlives `timeout_s`, and Stopped where a signal ends it. The
    run is over then, as at any exception. Main thread only.
    """
    env = {**os.environ, **(environment or {})}
    command = [sys.executable, "-m", "recoverrun", f"--run-dir={run_dir}", f"--inject={inject}"]
    command += [f"--finals={witness.absolute()}"] if witness else []
    command += options
    began = time.monotonic()
    losses: dict[int, float] = {}
    rates: dict[int, float] = {}
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    start_s = 0.0
    with stoppable() as stop, _started(start or _new, command, env) as process:
        for line in _lines(process, timeout_s, stop):
            tail.append(line)
            if found := figures(line):
                start_s = start_s or time.monotonic() - began
                step, losses[found[0]], rate = found
                if rate is not None:
                    rates[step] = rate
            on_line(line)
        code = process.wait(timeout=STOP_AFTER_S)
    log = read_run(run_dir)
    facts = history(log)
    return Trial(
        run_dir=run_dir,
        exit_code=code if code >= 0 else SIGNALLED - code,
        wall_s=time.monotonic() - began,
        history=facts,
        proof=prove(facts, log),
        losses=losses,
        rates=rates,
        tail=tuple(tail),
        notices=tuple(entry.reason for entry in log.of("notice.give")),
        start_s=start_s,
    )


def figures(line: str) -> tuple[int, float, float | None] | None:
    """Return step, loss and learning rate that a line of a training log names."""
    found = _STEP.search(line)
    if found is None:
        return None
    try:
        return int(found[1]), float(found[2]), float(found[3]) if found[3] else None
    except ValueError:
        return None  # Something like "1.2.3", which is no figure.


def step_of(line: str) -> int | None:
    """Return the step that a line of a training log speaks of."""
    found = figures(line)
    return found[0] if found else None


def _lines(process: Process, timeout_s: float | None, stop: "StopSignals") -> Iterator[str]:
    """Yield the output line by line until its end.

    Raises RecoverrunError at the time limit, and Stopped.
    """
    assert process.stdout is not None, "the process was started with a pipe"
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    fd = process.stdout.fileno()
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        selector.register(stop.fd, selectors.EVENT_READ)
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            ready = selector.select(left) if left is None or left > 0 else []
            stop.look()
            if not ready:
                sentence = f"the run did not end within {timeout_s:.0f} s"
                raise RecoverrunError(sentence, ExitCode.HANG)
            chunk = os.read(fd, 1 << 16)
            *lines, rest = (rest + chunk).split(b"\n")
            yield from (line.decode(errors="replace").rstrip("\r") for line in lines)
            if not chunk:
                break
    if rest:
        yield rest.decode(errors="replace")


class Stopped(RecoverrunError):
    """This process was sent a signal that ends what it does."""

    def __init__(self, number: signal.Signals) -> None:
        sentence = f"{number.name} was sent to this trial: the run is ended with it"
        super().__init__(sentence, SIGNALLED + number)
        self.number = number


class StopSignals:
    """The signal that wants this process to end, until `close`.

    It is raised where it comes, and kept: what is raised in a finalizer or a callback, Python drops
    with a warning.
    """

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        """Readable once a signal has come."""
        self._first: signal.Signals | None = None

    def take(self, number: int, _frame: FrameType | None) -> None:
        """The handler. Raises Stopped."""
        if self._first is None:
            self._first = signal.Signals(number)
            os.write(self._write_fd, b"!")
        raise Stopped(signal.Signals(number))

    def look(self) -> None:
        """Raise Stopped if a signal has come, whatever became of it then."""
        if self._first is not None:
            raise Stopped(self._first)

    def close(self) -> None:
        """No handler is ours any more."""
        os.close(self.fd)
        os.close(self._write_fd)


@contextmanager
def stoppable() -> Iterator[StopSignals]:
    """Signals that end a process raise Stopped, but those that are ignored; at the end of the block
    at the latest. Only the main thread can be told of signals: in another one nothing is changed.
    """
    stop, main = StopSignals(), threading.current_thread() is threading.main_thread()
    taken = [one for one in sorted(STOPPERS) if signal.getsignal(one) != signal.SIG_IGN]
    former = {number: signal.signal(number, stop.take) for number in taken if main}
    try:
        yield stop
        stop.look()
    finally:
        for number, handler in former.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        stop.close()


def _new(command: Sequence[str], env: Mapping[str, str]) -> Process:
    return subprocess.Popen(
        command,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,
        preexec_fn=end_with_parent,
    )


@contextmanager
def _started(start: Starter, command: Sequence[str], env: Mapping[str, str]) -> Iterator[Process]:
    """A launcher, which is gone with its workers when the block is left."""
    process = start(command, env)
    try:
        yield process
    except Stopped as stopped:
        _end(process, stopped.number)
        raise
    finally:
        _end(process, signal.SIGTERM)


def _end(process: Process, number: signal.Signals) -> None:
    """See the launcher gone: it ends its workers itself when it is told to leave.

    A second signal to us kills it, and what guards its workers ends them.
    """
    assert process.stdout is not None, "the process was started with a pipe"
    if process.stdout.closed:
        return
    if process.poll() is None:
        process.send_signal(number)
        try:
            process.communicate(timeout=STOP_AFTER_S)  # Nobody may wait for us to read.
        except (subprocess.TimeoutExpired, Stopped):
            process.kill()
            process.wait(timeout=STOP_AFTER_S)
    process.stdout.close()
