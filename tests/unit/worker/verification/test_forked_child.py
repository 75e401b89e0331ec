"""A child in which anything may be done: nothing of it reaches the parent but its answer."""

import mmap
import os
import random
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from recoverrun.worker.rng.streams import read_streams
from recoverrun.worker.verification import forked_child
from recoverrun.worker.verification.forked_child import ChildFailed, run

pytestmark = [
    pytest.mark.usefixtures("streams_put_back"),
    pytest.mark.skipif(sys.platform != "linux", reason="/proc is read"),
]

WITHIN_S = 20.0
SOON_S = 0.3


def in_child(work: Callable[[], Any]) -> Any:
    return run(lambda: {"found": work()}, WITHIN_S)["found"]


# --------------------------------------------------------------------------- what comes back


def test_plain_values_come_back() -> None:
    value = {"text": "λ", "bytes": b"\x00", "list": [1, 2.5, None, True], "long": "x" * 300_000}

    assert run(lambda: value, WITHIN_S) == value


def test_an_error_is_an_answer() -> None:
    def work() -> dict[str, Any]:
        raise LookupError("no such batch")

    assert run(work, WITHIN_S) == {"failed": "LookupError: no such batch"}


@pytest.mark.parametrize("request_", [SystemExit(3), KeyboardInterrupt()])
def test_who_would_leave_is_kept(request_: BaseException) -> None:
    def work() -> dict[str, Any]:
        raise request_

    assert run(work, WITHIN_S)["failed"].startswith(type(request_).__name__)


def test_what_is_no_plain_value_is_an_error_of_it() -> None:
    assert "TypeError" in run(lambda: {"found": object()}, WITHIN_S)["failed"]


@pytest.mark.parametrize(
    "end", [lambda: os._exit(0), lambda: os.kill(os.getpid(), signal.SIGSEGV)], ids=["exit", "segv"]
)
def test_one_that_is_ended_without_a_word_is_told(end: Callable[[], Any]) -> None:
    with pytest.raises(ChildFailed, match="was ended by it"):
        in_child(end)


def test_one_that_waits_for_a_thread_that_it_has_not_runs_into_the_bound() -> None:
    event = threading.Event()

    with pytest.raises(ChildFailed, match="did not end within 0 s"):
        run(lambda: {"found": event.wait()}, SOON_S)


def test_where_no_process_can_be_made_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(os, "fork", fork)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(ChildFailed, match="Cannot allocate memory"):
        in_child(lambda: 1)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_where_no_file_can_be_opened_that_is_told() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(ChildFailed, match="Too many open files"):
            in_child(int)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_too_much_shared_memory_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked_child, "MOST_SHARED_BYTES", 1)
    with mmap.mmap(-1, mmap.PAGESIZE):
        assert "MiB of writable memory" in run(lambda: {"found": 1}, WITHIN_S)["failed"]


def test_no_process_and_no_file_is_left_behind() -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    pids = [in_child(os.getpid) for _ in range(3)]

    assert sorted(os.listdir("/proc/self/fd")) == before
    assert all(not Path(f"/proc/{pid}").exists() for pid in pids)


def test_what_it_begins_ends_with_it() -> None:
    """A loader's worker process, say, which waits for its next batch."""

    def work() -> int:
        pid = os.fork()
        if not pid:
            while True:
                signal.pause()
        return pid

    began = time.monotonic()
    pid = in_child(work)
    took = time.monotonic() - began

    assert took < WITHIN_S / 2, "its answer is there"
    with _reaped(pid) as gone:
        assert gone


class _reaped:
    """True if a process that is no child of ours is gone or a zombie, soon."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def __enter__(self) -> bool:
        until = time.monotonic() + WITHIN_S
        while time.monotonic() < until:
            try:
                state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                return True
            if state == "Z":
                return True
            os.sched_yield()
        return False

    def __exit__(self, *_: object) -> None: ...


# --------------------------------------------------------------------------- what stays as it is


def test_iterators_and_variables_of_the_parent_do_not_move() -> None:
    numbers, seen = iter(range(9)), list[int]()

    def work() -> int:
        seen.append(next(numbers))
        return next(numbers)

    assert in_child(work) == 1
    assert (next(numbers), seen) == (0, [])


def test_it_begins_where_the_streams_of_the_parent_stand() -> None:
    random.seed(3)
    torch.manual_seed(4)
    before = read_streams()
    drawn = in_child(lambda: [random.random(), torch.rand(1).item()])

    assert read_streams() == before
    assert drawn == [random.random(), torch.rand(1).item()]


def test_gradients_are_computed_as_in_the_parent() -> None:
    weight = torch.nn.Parameter(torch.arange(6.0).view(2, 3))

    def work() -> list[Any]:
        (torch.sin(weight) * weight).sum().backward()
        assert weight.grad is not None
        return weight.grad.flatten().tolist()

    found = in_child(work)

    assert weight.grad is None
    assert found == work()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Any]:
    path = tmp_path / "rows.txt"
    path.write_bytes(b"one\ntwo\nthree\n")
    with open(path, "rb", buffering=0) as opened:
        yield opened


def test_a_file_that_is_read_stands_where_it_stood(file: Any) -> None:
    assert file.read(4) == b"one\n"

    assert in_child(lambda: file.read(4)) == b"two\n"

    assert file.read(4) == b"two\n"


def test_a_file_that_was_deleted_is_still_read(file: Any) -> None:
    os.unlink(file.name)

    assert in_child(lambda: file.read(4)) == b"one\n"
    assert file.tell() == 0


def test_what_is_written_goes_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    with open(path, "w", buffering=1) as log:
        log.write("parent\n")

        def work() -> int:
            os.write(1, b"to the terminal")
            return log.write("child\n")

        assert in_child(work) == 6
        log.write("parent again\n")

    assert path.read_text() == "parent\nparent again\n"


def test_what_the_parent_has_not_written_yet_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    with open(path, "w") as log:
        log.write("kept back\n")
        in_child(lambda: log.flush() or 0)

    assert path.read_text() == "kept back\n"


def test_a_pipe_to_another_process_is_closed() -> None:
    reader, writer = os.pipe()
    try:
        os.write(writer, b"for the parent")

        assert (
            "Bad file descriptor" in run(lambda: {"found": os.read(reader, 3)}, WITHIN_S)["failed"]
        )
        assert (
            "Bad file descriptor" in run(lambda: {"n": os.write(writer, b"x")}, WITHIN_S)["failed"]
        )

        assert os.read(reader, 99) == b"for the parent"
    finally:
        os.close(reader)
        os.close(writer)


def test_memory_that_processes_share_is_a_copy_of_it() -> None:
    with mmap.mmap(-1, 3 * mmap.PAGESIZE) as shared:
        shared[:6] = b"parent"

        def work() -> bytes:
            found = bytes(shared[:6])
            shared[:6] = b"child!"
            return found + bytes(shared[:6])

        assert in_child(work) == b"parentchild!"
        assert bytes(shared[:6]) == b"parent"


def test_memory_that_is_kept_out_of_children_is_none_that_is_copied() -> None:
    with mmap.mmap(-1, 3 * mmap.PAGESIZE) as kept:
        kept.madvise(mmap.MADV_DONTFORK)

        assert in_child(lambda: "here") == "here"


def test_tensors_that_workers_share_are_copies_too() -> None:
    shared = torch.zeros(5).share_memory_()

    assert in_child(lambda: shared.add_(1).tolist()) == [1.0] * 5
    assert shared.tolist() == [0.0] * 5


def test_its_signals_are_none_of_the_parent_s() -> None:
    caught: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda *_: caught.append(1))
    try:
        with pytest.raises(ChildFailed, match="was ended by it"):
            in_child(lambda: os.kill(os.getpid(), signal.SIGTERM))
    finally:
        signal.signal(signal.SIGTERM, before)

    assert caught == []
    assert in_child(os.getpgrp) != os.getpgrp()
    assert in_child(lambda: os.nice(0)) > os.nice(0)


@pytest.mark.parametrize(
    ("number", "calls"), [(signal.SIGUSR1, []), (signal.SIGALRM, [signal.SIGALRM])]
)
def test_handlers_of_the_script_are_called_in_the_parent_alone(
    number: signal.Signals, calls: list[int]
) -> None:
    """Whoever signals all processes of a job means the parent; timers are the child's own."""
    called: list[int] = []
    before = signal.signal(number, lambda number, _: called.append(number))

    def work() -> dict[str, Any]:
        signal.raise_signal(number)
        return {"called": called}

    try:
        assert in_child(work) == {"called": calls}
    finally:
        signal.signal(number, before)


def test_parents_that_wait_for_any_child_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script's handler of SIGCHLD may have taken the child's exit status."""
    wait = os.waitpid

    def waitpid(pid: int, options: int) -> tuple[int, int]:
        wait(pid, options)
        raise ChildProcessError(10, "No child processes")

    monkeypatch.setattr(os, "waitpid", waitpid)

    assert in_child(lambda: 7) == 7
