"""Work done in a forked child, which can touch nothing of its parent, and what comes of it.

The child has a copy of all memory: iterators, queues and generators of the script may be moved
there as one likes. Files that are open for reading get descriptors and places of their own, what is
written goes nowhere (`discarded_writes`), memory that processes share is copied, and all else is
closed. There are no other threads but those that it begins, as pools do (`renewed_pools`); who
waits for another one runs into the bound of time. Whatever the
child is caught in, it ends with it, and so do the processes that it begins. It may ask its parent,
which waits for it, for what it cannot do itself.
"""

import ctypes
import fcntl
import functools
import gc
import mmap
import os
import select
import signal
import socket
import stat
import struct
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgpack
import torch

from recoverrun.worker.replay.exit_calls import TIMERS
from recoverrun.worker.rng.streams import Streams, read_streams, restore_streams
from recoverrun.worker.verification import renewed_pools
from recoverrun.worker.verification.discarded_writes import lead_nowhere
from recoverrun.worker.verification.unheard_ends import unheard_ends

MOST_SHARED_BYTES = 1 << 30
"""Writable memory shared with other processes, of which the child gets a copy."""

LENGTH = struct.Struct("<Q")  # of what is said, before it

Plain = dict[str, Any]
Ask = Callable[[Plain], Plain]

ENDED = "a copy of this process was ended by it"
LATE = "it did not end within {:.0f} s in a copy of this process"

ASKED = "asked"  # what the child says has it where it is no answer

NICE = 5
OOM_SCORE = "1000"  # where memory is short it goes first, not the rank that it is a copy of
PR_SET_PDEATHSIG = 1


NO_CUDA = "a copy of this process, in which it would be tried, cannot use CUDA"


class ChildFailed(Exception):
    """Nothing came of the child; the text says why."""


class ChildLate(ChildFailed):
    """The child did not come to its end in time."""


def hindrance() -> str:
    """The reason why the script's code cannot run in a child at all, or ""."""
    return NO_CUDA if torch.cuda.is_initialized() else ""


def run(work: Callable[[], Plain], within_s: float) -> Plain:
    """The result of `work` in a child, as plain values. Raises ChildFailed."""
    return run_asking(lambda _: work(), within_s, _refusing)


def run_asking(work: Callable[[Ask], Plain], within_s: float, answering: Ask) -> Plain:
    """The same, of `work` that asks for what `answering` gives it here, in the parent.

    Raises also what `answering` raises.
    """
    with unheard_ends():
        return _run_asking(work, within_s, answering)


def _run_asking(work: Callable[[Ask], Plain], within_s: float, answering: Ask) -> Plain:
    pid, ours = forked(work)
    try:
        return _answer(ours.fileno(), within_s, answering)
    finally:
        end(pid)  # first: one that cannot answer any more would go on as the script
        ours.close()


def forked(work: Callable[[Ask], Plain]) -> tuple[int, socket.socket]:
    """The pid of a child that does this work, and the line on which it says what comes of it.
    Raises ChildFailed.
    """
    streams, parent = read_streams(), os.getpid()
    with ExitStack() as ends:
        try:
            ours, its = map(ends.enter_context, socket.socketpair())
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
                pid = os.fork()
        except OSError as problem:  # no memory, no descriptor, no more processes
            raise ChildFailed(f"no process could be forked ({problem.strerror})") from None
        ends.pop_all()
    if not pid:
        _work(work, its.fileno(), parent, streams)
    its.close()
    return pid, ours


def _refusing(_: Plain) -> Plain:
    raise ChildFailed("a copy of this process asked for what nobody gives it")


def _answer(reader: int, within_s: float, answering: Ask) -> Plain:
    """The answer of the child, whoever else still holds its end. Raises ChildFailed."""
    until = time.monotonic() + within_s
    poll = select.poll()
    poll.register(reader, select.POLLIN | select.POLLHUP)

    def awaited() -> None:
        left = until - time.monotonic()
        if left <= 0 or not poll.poll(1000 * left):
            raise ChildLate(LATE.format(within_s))

    while True:
        try:
            said = heard(reader, awaited)
        except ConnectionError:  # it was ended before it heard the answer
            said = None
        if said is None:
            raise ChildFailed(ENDED)
        if ASKED not in said:
            return said
        answer = answering(said[ASKED])
        try:
            _say(reader, answer)
        except ConnectionError:
            raise ChildFailed(ENDED) from None


def heard(reader: int, awaited: Callable[[], None] = lambda: None) -> Plain | None:
    """One thing that was said; None if there is nothing more."""
    said = b""
    while len(said) < LENGTH.size or len(said) < LENGTH.size + LENGTH.unpack_from(said)[0]:
        awaited()
        known = LENGTH.size + (LENGTH.unpack_from(said)[0] if len(said) >= LENGTH.size else 0)
        part = os.read(reader, min(known - len(said), 1 << 16))
        if not part:
            return None
        said += part
    found: Plain = msgpack.unpackb(said[LENGTH.size :], raw=False, strict_map_key=False)
    return found


def _say(writer: int, what: Plain) -> None:
    said = bytes(msgpack.packb(what, use_bin_type=True))
    said = LENGTH.pack(len(said)) + said
    while said:
        said = said[os.write(writer, said) :]


def end(pid: int) -> None:
    """The child is over, with all that it has begun."""
    for kill, whom in ((os.killpg, pid), (os.kill, pid)):
        try:
            kill(whom, signal.SIGKILL)
        except ProcessLookupError:
            continue
        except PermissionError:  # not yet, or no more, a group of its own
            continue
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        return  # The script waits for all children that there are.


# ------------------------------------------------------------------------------- in the child


def _work(
    work: Callable[[Ask], Plain],
    writer: int,
    parent: int,
    streams: Streams,
) -> None:
    """Never returns."""
    try:
        _alone(writer, parent)
        restore_streams(streams)  # Python's `random` seeds itself anew in a child
        _say(writer, work(functools.partial(_ask, writer)))
    except ChildFailed as problem:
        _say(writer, {"failed": str(problem)})
    except BaseException as problem:
        # Nothing may come out of here: above are the script's frames, of which this is a copy.
        words = f"{type(problem).__name__}: {problem}"
        _say(writer, {"failed": words[:400]})
    finally:
        os._exit(0)


def _ask(line: int, what: Plain) -> Plain:
    _say(line, {ASKED: what})
    said = heard(line)
    if said is None:
        raise EOFError("the parent of this copy of a process is gone")
    return said


def _alone(writer: int, parent: int) -> None:
    """Part with everything that the parent or anybody else could notice. Raises ChildFailed."""
    os.setpgid(0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    _leave_signals_to_parent()
    gc.disable()
    os.nice(NICE)
    with suppress(OSError):  # a system without /proc
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)
    for start, end in _shared_writable():
        _copy(libc, start, end - start)
    _part_with_files(writer)
    lead_nowhere()
    renewed_pools.renew()
    torch.set_num_threads(1)  # those of the pool are not here


def _leave_signals_to_parent() -> None:
    """Whoever signals all processes of a job (Slurm does) means the parent: the script's handlers
    may write files. Timers are those of code that is executed here.
    """
    for number in signal.valid_signals().difference(TIMERS.values()):
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)


def _part_with_files(kept: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number in (kept, nowhere):
            continue
        try:
            kind = os.fstat(number).st_mode
        except OSError:
            continue  # that of the listing itself
        if stat.S_ISREG(kind) and number not in (1, 2):
            _reopen(number, nowhere)
        elif number <= 2 or stat.S_ISCHR(kind):
            os.dup2(nowhere, number, inheritable=False)
        elif not stat.S_ISDIR(kind):
            os.close(number)


def _reopen(number: int, nowhere: int) -> None:
    """The same file at the same place, with a place of its own; nowhere if it is only written."""
    mode = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
    made = nowhere
    if mode != os.O_WRONLY:
        try:
            made = os.open(f"/proc/self/fd/{number}", os.O_RDONLY | os.O_CLOEXEC)
            os.lseek(made, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
        except OSError:
            made = nowhere  # it may not be read any more: then nobody will
    os.dup2(made, number, inheritable=False)
    if made != nowhere:
        os.close(made)


def _shared_writable() -> list[tuple[int, int]]:
    """Memory that this process shares with others and may write to: (start, end). What is kept out
    of children, as snapshots are, is not there: so a child has to look for itself.

    Raises ChildFailed if there is too much to be copied.
    """
    found = []
    with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
        for line in maps:
            span, access = line.split(" ", 2)[:2]
            if access.startswith("rw") and access.endswith("s"):
                start, end = (int(part, 16) for part in span.split("-"))
                found.append((start, end))
    total = sum(end - start for start, end in found)
    if total > MOST_SHARED_BYTES:
        raise ChildFailed(f"the process shares {total >> 20} MiB of writable memory with others")
    return found


def _copy(libc: Any, start: int, size: int) -> None:
    """Put private memory of the same content in the place of what is shared."""
    content = ctypes.string_at(start, size)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
    )  # fmt: skip
    fixed = 0x10
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | fixed
    where = libc.mmap(start, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if where != start:
        raise OSError(ctypes.get_errno(), "shared memory could not be copied")
    ctypes.memmove(start, content, size)
