"""The progress of workers as a launcher sees it: in their pages, and of real processes in /proc."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from recoverrun.launcher.node.process import Child
from recoverrun.launcher.node.progress_watch import (
    AGAIN_S,
    LINGERS_S,
    ProgressWatch,
    program_of,
    state_of,
)
from recoverrun.launcher.node.worker_messages import Worker
from rendezvous.protocol.hang_messages import REPLACED, STILL_S, Inspect, Progress
from rendezvous.protocol.progress_page import Phase, ProgressWriter, Wait, page_beside

Start = Callable[[str], subprocess.Popen[bytes]]

SLEEPS = "import signal; print(flush=True); signal.pause()"
SPINS = "print(flush=True)\nwhile True: pass"
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
{SLEEPS}
"""


@pytest.fixture
def start() -> Iterator[Start]:
    """Start Python code; it has begun once it has written a line. Ended with its group."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(code: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", code],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None and process.stdout.readline()
        return process

    yield begin
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        process.stdout.close()


def becomes(pid: int, state: str) -> bool:
    until = time.monotonic() + 30.0
    while state_of(pid)[0] != state and time.monotonic() < until:
        os.sched_yield()
    return state_of(pid)[0] == state


def computes(pid: int, cpu_ms: int) -> bool:
    """True once it and its children have computed so much more."""
    begun, until = state_of(pid)[1], time.monotonic() + 30.0
    while state_of(pid)[1] < begun + cpu_ms and time.monotonic() < until:
        os.sched_yield()
    return state_of(pid)[1] >= begun + cpu_ms


def test_a_process_that_waits_sleeps(start: Start) -> None:
    pid = start(SLEEPS).pid

    assert becomes(pid, "S")


def test_a_stopped_process_is_seen_to_be_stopped(start: Start) -> None:
    process = start(SPINS)
    os.kill(process.pid, signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)

    assert state_of(process.pid)[0] == "T"


def test_a_busy_process_computes(start: Start) -> None:
    assert computes(start(SPINS).pid, 50)


def test_what_its_children_compute_is_its_own(start: Start) -> None:
    pid = start(PARENT).pid

    assert becomes(pid, "S") and computes(pid, 50)


def test_what_reaped_children_have_computed_is_not_forgotten(start: Start) -> None:
    code = "import subprocess, sys; sum(range(10**7))"
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {code!r}])\n{SLEEPS}"

    assert state_of(start(parent).pid)[1] >= 100


def test_there_is_nothing_to_see_of_a_process_that_is_gone(start: Start) -> None:
    process = start(SLEEPS)
    process.kill()
    process.wait()

    assert state_of(process.pid) == ("", 0)


def test_a_name_with_brackets_and_blanks_is_read_over(start: Start) -> None:
    name = "import pathlib; pathlib.Path('/proc/self/comm').write_text(') R 1 (')"

    assert becomes(start(f"{name}\n{SLEEPS}").pid, "S")


def test_a_program_that_takes_the_place_of_another_has_another_name(start: Start) -> None:
    again = f"import os, sys; os.execv(sys.executable, [sys.executable, '-S', '-c', {SLEEPS!r}])"
    process = start(f"print(flush=True); input(); {again}")
    before = program_of(process.pid)

    assert before and program_of(process.pid) == before
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b"\n")
    process.stdin.flush()
    assert process.stdout.readline()  # of the program that follows
    assert program_of(process.pid) not in ("", before)


@dataclass
class Node:
    """One worker, whose process is a small one, and a clock that stands at what it is set to."""

    worker: Worker
    writer: ProgressWriter
    watch: ProgressWatch
    now_ns: int = 10**12

    def stands(self, after_s: float) -> list[Progress]:
        self.now_ns += int(after_s * 1e9)
        return list(self.watch.stands(self.now_ns / 1e9))


@pytest.fixture
def node(start: Start, tmp_path: Path) -> Node:
    context = str(tmp_path / "context")
    worker = Worker(
        rank=4, incarnation=2, child=Child(start(SLEEPS)), context=context, error_file=""
    )
    made: list[Node] = []

    def clock() -> int:
        return made[0].now_ns if made else 10**12

    writer = ProgressWriter(page_beside(context), clock)
    writer.protects()
    made.append(Node(worker, writer, ProgressWatch({4: worker}, clock)))
    return made[0]


def test_a_worker_that_moves_is_not_told_of(node: Node) -> None:
    for _ in range(5):
        node.writer.at(Phase.MICROBATCH)
        assert not node.stands(STILL_S - 0.1)


def test_who_stands_still_is_told_once_and_again_after_some_time(node: Node) -> None:
    node.writer.at(Phase.DATA, 7, 2)

    (told,) = node.stands(STILL_S)
    assert (told.rank, told.incarnation, told.phase, told.step) == (4, 2, Phase.DATA, 7)
    assert told.age_ms == 1000 * STILL_S and not told.waits
    for _ in range(4):
        assert not node.stands((AGAIN_S - 0.1) / 4)
    (again,) = node.stands(0.1)
    assert again.serial == told.serial and again.age_ms > told.age_ms


def test_a_launcher_that_stood_still_itself_blames_nobody_for_that_time(node: Node) -> None:
    """A job that was suspended: its processes do not go on all at the same moment."""
    node.writer.at(Phase.DATA)
    node.stands(0.5)

    assert not node.stands(40.0)
    (told,) = node.stands(STILL_S)
    assert told.age_ms == 1000 * (0.5 + STILL_S)


def test_that_it_moves_again_is_told_once(node: Node) -> None:
    node.stands(STILL_S)
    node.writer.at(Phase.MICROBATCH)

    (told,) = node.stands(0.5)
    assert told.age_ms < 1000 * STILL_S
    node.writer.at(Phase.MICROBATCH)
    assert not node.stands(0.5)


def test_one_that_moved_and_stands_still_elsewhere_is_told_of_at_once(node: Node) -> None:
    (first,) = node.stands(STILL_S)
    node.writer.at(Phase.SETTLE)

    (told,) = node.stands(STILL_S)

    assert told.serial > first.serial and told.age_ms == 1000 * STILL_S


def test_another_program_in_its_place_is_seen_by_a_look(node: Node) -> None:
    inspect = Inspect(hang=1, look=1, ranks=(4,), stacks=False)
    node.worker.program = program_of(node.worker.child.pid)
    (same,) = node.watch.look(inspect)
    node.worker.program = "1-2-3"
    (other,) = node.watch.look(inspect)

    assert same.state != REPLACED and other.state == REPLACED
    assert other.kernel.startswith("python")


def test_what_it_waits_for_is_told(node: Node) -> None:
    node.writer.waits(Wait(5, 6, 7, 8000, (0, 2, 4), "the vote"))

    (told,) = node.stands(STILL_S)

    assert told.waits and told.what == "the vote" and told.ranks == (0, 2, 4)
    assert (told.channel, told.number, told.generation, told.limit_ms) == (5, 6, 7, 8000)


def test_nothing_is_told_of_a_script_that_is_over_or_a_process_that_is_gone(node: Node) -> None:
    node.worker.farewell = True
    assert not node.stands(STILL_S)
    node.worker.farewell, node.worker.ended = False, True
    assert not node.stands(STILL_S)


def test_a_look_shows_where_it_stands_and_what_the_kernel_says(node: Node) -> None:
    assert becomes(node.worker.child.pid, "S")
    inspect = Inspect(hang=3, look=2, ranks=(4, 9), stacks=True)

    (seen,) = node.watch.look(inspect)

    assert (seen.rank, seen.hang, seen.look, seen.stacks) == (4, 3, 2, True)
    assert (seen.serial, seen.state) == (1, "S")


def test_a_process_that_outlives_its_script_and_computes_nothing_is_told_of(node: Node) -> None:
    node.worker.farewell = True
    told = [list(node.watch.lingering(now)) for now in (0.0, LINGERS_S - 1.0, LINGERS_S)]

    assert told == [[], [], [(node.worker, LINGERS_S)]]
    assert not list(node.watch.lingering(2 * LINGERS_S - 1.0))
    assert list(node.watch.lingering(2 * LINGERS_S)), "it is told of again after as long"


def test_one_that_computes_after_its_script_is_let_go_on(node: Node, start: Start) -> None:
    node.worker.child = Child(start(SPINS))
    node.worker.farewell = True
    assert not list(node.watch.lingering(0.0))
    assert computes(node.worker.child.pid, 60)

    assert not list(node.watch.lingering(1.0)), "60 ms of a second are more than idle"
    assert not list(node.watch.lingering(LINGERS_S)), "it counts from when it last computed"


def test_what_was_told_of_the_former_process_of_a_rank_is_not_known_of_the_next(node: Node) -> None:
    node.worker.farewell = True
    assert not list(node.watch.lingering(0.0))
    node.worker.farewell = False
    (first,) = node.stands(STILL_S)
    assert not node.stands(0.1), "it was told"
    node.worker.incarnation += 1

    (told,) = node.stands(0.1)

    assert (told.serial, told.incarnation) == (first.serial, first.incarnation + 1)
    node.worker.farewell = True
    assert not list(node.watch.lingering(LINGERS_S)), "this one's script has just ended"


def test_who_stands_still_is_seen_though_shared_memory_was_cleared(node: Node) -> None:
    node.writer.at(Phase.DATA, 7, 2)
    assert not node.stands(0.1)
    os.unlink(page_beside(node.worker.context))

    (told,) = node.stands(STILL_S)

    assert (told.rank, told.phase, told.step) == (4, Phase.DATA, 7)


def test_pages_of_processes_that_are_gone_are_closed(node: Node) -> None:
    page = os.path.realpath(page_beside(node.worker.context))

    def times_open() -> int:
        files = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
        return files.count(page)

    by_its_writer = times_open()
    node.stands(STILL_S)
    assert times_open() == by_its_writer + 1

    node.watch.ended(node.worker)

    assert times_open() == by_its_writer
