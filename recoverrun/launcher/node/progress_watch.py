"""The state of the workers of this node, read from their pages and from /proc, at each beat.

Nothing of a worker runs for it, so it works for one that is stopped, that keeps Python's global
lock, or that the kernel does not let go.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from recoverrun.launcher.node.freezer import is_frozen
from recoverrun.launcher.node.worker_messages import Worker
from rendezvous.protocol.hang_messages import FROZEN, REPLACED, STILL_S, Evidence, Inspect, Progress
from rendezvous.protocol.progress_page import PageReader, ProgressMark, Wait, page_beside

AGAIN_S = 5.0
"""That a worker stands still is said again so often: a message may be lost."""

BLIND_S = 3.0
"""A launcher that has not looked for so long stood still itself, perhaps with its workers: a
suspended job, a paused container. Nobody is blamed for that time."""

BLIND_SPANS = 16
"""So many such times are remembered."""

LINGERS_S = 30.0
"""A process that goes on for so long after its script's end, and computes nothing, is ended."""

IDLE = 0.01
"""A process that computes for less than this part of the time is idle."""

TICKS = os.sysconf("SC_CLK_TCK")

_NO_WAIT = Wait(0, 0, 0, 0, (0, 0, 0), "")


@dataclass(slots=True)
class _Told:
    """The newest message about a worker that stands still."""

    serial: int
    at: float


@dataclass(slots=True)
class _Over:
    """A worker whose script has ended; its time of computing so far."""

    since: float
    cpu_ms: int


class ProgressWatch:
    """The watch over `workers`, by rank."""

    def __init__(
        self, workers: Mapping[int, Worker], clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._workers = workers
        self._clock = clock
        self._told: dict[bytes, _Told] = {}  # by the name of the process
        self._pages: dict[bytes, PageReader] = {}
        self._over: dict[bytes, _Over] = {}
        self._looked_at: float | None = None
        self._blind: deque[tuple[float, float]] = deque(maxlen=BLIND_SPANS)

    def stands(self, now: float) -> Iterator[Progress]:
        """Yield who stands still, and who moves again."""
        if self._looked_at is not None and now > self._looked_at + BLIND_S:
            self._blind.append((self._looked_at, now))
        self._looked_at = now
        for worker in self._alive():
            place = None if worker.farewell else self._page(worker).read()
            if place is None:
                continue
            told, age_s = self._told.get(worker.control), (self._clock() - place.since_ns) / 1e9
            age_s -= self._blind_s(now - age_s)
            if age_s < STILL_S:
                if self._told.pop(worker.control, None) is not None:
                    yield progress(worker, place, age_s)
            elif told is None or told.serial != place.serial or now >= told.at + AGAIN_S:
                self._told[worker.control] = _Told(place.serial, now)
                yield progress(worker, place, age_s)

    def _blind_s(self, since: float) -> float:
        """The time (s) since then in which this launcher stood still itself."""
        return sum(max(0.0, end - max(begin, since)) for begin, end in self._blind)

    def look(self, inspect: Inspect) -> Iterator[Evidence]:
        """Yield what the kernel says of these ranks."""
        for rank in inspect.ranks:
            worker = self._workers.get(rank)
            if worker is None or worker.ended or (place := self._page(worker).read()) is None:
                continue
            state, cpu_ms = state_of(worker.child.pid)
            kernel = _text(f"/proc/{worker.child.pid}/wchan")
            if state and is_frozen(worker.child.pid):
                state = FROZEN
            elif worker.program and program_of(worker.child.pid) not in ("", worker.program):
                state, kernel = REPLACED, _text(f"/proc/{worker.child.pid}/comm").strip()
            yield Evidence(
                rank=rank,
                incarnation=worker.incarnation,
                hang=inspect.hang,
                look=inspect.look,
                stacks=inspect.stacks,
                serial=place.serial,
                state=state,
                cpu_ms=cpu_ms,
                kernel=kernel,
            )

    def lingering(self, now: float) -> Iterator[tuple[Worker, float]]:
        """Yield workers whose process waits for something, and for how long (s) after the end of
        their script; each again after as long.
        """
        for worker in self._alive():
            if not worker.farewell:
                continue
            _, cpu_ms = state_of(worker.child.pid)
            over = self._over.get(worker.control)
            busy = over is not None and cpu_ms - over.cpu_ms > 1000 * IDLE * (now - over.since)
            if over is None or busy:
                self._over[worker.control] = _Over(now, cpu_ms)
            elif now >= over.since + LINGERS_S:
                self._over[worker.control] = _Over(now, cpu_ms)
                yield worker, now - over.since

    def ended(self, worker: Worker) -> None:
        """Close the page of a process that is gone."""
        page = self._pages.pop(worker.control, None)
        if page is not None:
            page.close()

    def _page(self, worker: Worker) -> PageReader:
        page = self._pages.get(worker.control)
        if page is None:
            page = self._pages[worker.control] = PageReader(page_beside(worker.context))
        return page

    def _alive(self) -> Iterator[Worker]:
        return (worker for worker in self._workers.values() if not worker.ended)


def progress(worker: Worker, place: ProgressMark, age_s: float) -> Progress:
    """The message that says where `worker` stands."""
    wait = place.wait or _NO_WAIT
    return Progress(
        rank=worker.rank,
        incarnation=worker.incarnation,
        serial=place.serial,
        age_ms=max(0, int(1000 * age_s)),
        phase=place.phase,
        step=place.step,
        index=place.microbatch,
        waits=place.wait is not None,
        channel=wait.channel,
        number=wait.number,
        generation=wait.generation,
        limit_ms=wait.limit_ms,
        ranks=wait.ranks,
        what=wait.what,
    )


def state_of(pid: int) -> tuple[str, int]:
    """The state of a process ("" if there is none), and the milliseconds that it and all that it
    started have computed.
    """
    state, total = "", 0
    for number, one in enumerate(_tree(pid)):
        # "pid (comm) state ...": the name may hold blanks and brackets.
        fields = _text(f"/proc/{one}/stat").rpartition(") ")[2].split()
        if len(fields) < 15:
            continue
        state = fields[0] if number == 0 else state
        total += sum(int(field) for field in fields[11:15])  # its own, and of reaped children
    return state, total * 1000 // TICKS


def program_of(pid: int) -> str:
    """A name of the program that runs in a process: `exec` changes it, also for the same file. ""
    if the process has ended, or the kernel does not tell.
    """
    fields = _text(f"/proc/{pid}/stat").rpartition(") ")[2].split()
    name = "-".join(fields[23:26])  # its code and its stack lie elsewhere with each exec
    return name if len(fields) > 25 and int(fields[25]) else ""


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for child in _children(pid):
        yield from _tree(child)


def _children(pid: int) -> Iterable[int]:
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            yield from map(int, _text(f"/proc/{pid}/task/{thread}/children").split())


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""  # It has ended, or the kernel does not tell.
