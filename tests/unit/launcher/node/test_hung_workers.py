"""A worker that hangs is ended, and its stacks are kept before."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from recoverrun.launcher.node import py_spy
from recoverrun.launcher.node.hung_workers import COPIES, DUMP_S, KEPT, LOOK_S, HungWorkers
from recoverrun.launcher.node.process import Child
from recoverrun.launcher.node.progress_watch import LINGERS_S
from recoverrun.launcher.node.supervisor import EndOrder, KillOrder
from recoverrun.launcher.node.worker_messages import Worker
from rendezvous.protocol.hang_messages import Inspect
from rendezvous.protocol.messages import Kill
from rendezvous.protocol.progress_page import (
    ProgressWriter,
    dump_beside,
    page_beside,
    stacks_beside,
)

KILL = Kill(generation=2, ranks=(0, 1), births=(0, 0), reason="it hangs", hung=(1,))

# Writes its stacks when it is told to, as workers do, and says so.
ARMED = """
import faulthandler, os, signal, sys, time
file = open(sys.argv[1], "w")
faulthandler.register(signal.SIGRTMIN, file=file, all_threads=True)
print("ready", flush=True)
while not os.fstat(file.fileno()).st_size:
    time.sleep(0.01)
print("told", flush=True)
signal.pause()
"""


class Node:
    """Worker 1, a real process, and the folder of the run."""

    def __init__(self, folder: Path) -> None:
        self.run_dir = folder
        context = str(folder / "context")
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", ARMED, dump_beside(context)],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        ProgressWriter(page_beside(context))
        self.worker = Worker(
            rank=1, incarnation=0, child=Child(self.process), context=context, error_file=""
        )
        self.hung = HungWorkers({1: self.worker}, folder, "run")

    def line(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """Without py-spy, whatever is installed here."""
    monkeypatch.setattr(py_spy, "find", lambda: "")
    node = Node(tmp_path)
    assert node.line() == b"ready\n"
    yield node
    os.killpg(node.process.pid, signal.SIGKILL)
    node.process.wait()
    assert node.process.stdout is not None
    node.process.stdout.close()


def test_one_that_could_not_show_its_stacks_writes_them_before_it_is_ended(node: Node) -> None:
    node.hung.inspect(Inspect(hang=3, look=1, ranks=(1,), stacks=True))

    assert node.hung.defers(KILL, 10.0)
    assert node.line() == b"told\n"
    assert node.hung.deadline() == 10.0 + DUMP_S
    assert not node.hung.due(10.0)
    assert node.hung.due(10.0 + DUMP_S) == [KILL]
    _copied()
    assert "<string>" in (node.run_dir / "hangs" / "3" / "rank1.stack").read_text()
    assert node.worker.hung
    assert not node.hung.defers(KILL, 11.0), "the second time it is carried out"
    assert node.hung.deadline() is None


def test_one_that_has_shown_its_stacks_is_ended_at_once(node: Node) -> None:
    node.hung.inspect(Inspect(hang=3, look=1, ranks=(1,), stacks=True))
    node.worker.shown = 3

    assert not node.hung.defers(KILL, 10.0)
    assert node.worker.hung


def test_stacks_of_an_older_suspicion_are_not_enough(node: Node) -> None:
    node.worker.shown = 2
    node.hung.inspect(Inspect(hang=3, look=1, ranks=(1,), stacks=True))

    assert node.hung.defers(KILL, 10.0)


def test_a_stopped_process_is_not_waited_for(node: Node) -> None:
    node.hung.inspect(Inspect(hang=3, look=1, ranks=(1,), stacks=False))
    os.kill(node.process.pid, signal.SIGSTOP)
    os.waitpid(node.process.pid, os.WUNTRACED)

    assert not node.hung.defers(KILL, 10.0)
    assert node.worker.hung


def test_what_py_spy_reads_is_kept_also_of_a_stopped_process(node: Node, tmp_path: Path) -> None:
    program = tmp_path / "py-spy"
    program.write_text('#!/bin/sh\necho "asked: $*"\n')
    program.chmod(0o755)
    node.hung = HungWorkers({1: node.worker}, node.run_dir, "run", spy=str(program))
    node.hung.inspect(Inspect(hang=3, look=1, ranks=(1,), stacks=True))
    os.kill(node.process.pid, signal.SIGSTOP)
    os.waitpid(node.process.pid, os.WUNTRACED)

    assert node.hung.defers(KILL, 10.0)
    assert node.hung.deadline() == 10.0 + LOOK_S
    _copied()
    assert node.hung.due(10.0 + LOOK_S) == [KILL], "as soon as py-spy is done"
    _copied()
    kept = (node.run_dir / "hangs" / "3" / "rank1.stack").read_text()
    assert f"asked: dump --nonblocking --pid {node.process.pid}" in kept


def test_a_py_spy_that_does_not_answer_is_not_waited_for_long(node: Node, tmp_path: Path) -> None:
    program, pipe = tmp_path / "py-spy", tmp_path / "pipe"
    os.mkfifo(pipe)
    both = os.open(pipe, os.O_RDWR)
    program.write_text(f"#!/bin/sh\nread answer < {pipe}\n")
    program.chmod(0o755)
    node.hung = HungWorkers({1: node.worker}, node.run_dir, "run", spy=str(program))
    node.hung.inspect(Inspect(hang=3, look=1, ranks=(1,), stacks=True))

    assert node.hung.defers(KILL, 10.0)
    assert node.hung.deadline() == 10.0 + DUMP_S, "faulthandler needs that long"
    assert not node.hung.due(10.0 + DUMP_S)
    assert node.hung.deadline() == 10.0 + DUMP_S + LOOK_S
    assert node.hung.due(10.0 + py_spy.WITHIN_S) == [KILL]
    os.write(both, b"\n")
    os.close(both)
    _copied()


@pytest.mark.parametrize("hung", [(), (7,)])
def test_who_is_lost_with_another_is_ended_at_once(node: Node, hung: tuple[int, ...]) -> None:
    node.hung.inspect(Inspect(hang=3, look=1, ranks=(1,), stacks=True))
    kill = Kill(generation=2, ranks=(1,), births=(0,), reason="a mate hangs", hung=hung)

    assert not node.hung.defers(kill, 10.0)
    assert not node.worker.hung, "its own microbatch is not to blame"


def test_stacks_that_cannot_be_kept_let_the_rank_be_ended(tmp_path: Path, node: Node) -> None:
    (tmp_path / "hangs").touch()
    node.hung.inspect(Inspect(hang=3, look=1, ranks=(1,), stacks=True))
    node.hung.defers(KILL, 10.0)

    assert node.hung.due(11.0) == [KILL]


def test_a_process_that_does_not_end_is_asked_to_and_then_ended(node: Node) -> None:
    node.worker.farewell = True
    orders = [node.hung.lingering(number * LINGERS_S) for number in range(4)]

    assert orders[0] == []
    assert [type(order) for (order,) in orders[1:]] == [EndOrder, KillOrder, KillOrder]
    assert orders[1][0].ranks == (1,) and "30 s ago" in orders[1][0].reason


def test_the_newest_suspicions_keep_their_stacks(node: Node) -> None:
    Path(stacks_beside(node.worker.context)).write_text("a stack")

    for hang in (1, 2, KEPT + 1):
        node.hung.shown(node.worker, hang)
        _copied()

    assert sorted(path.name for path in (node.run_dir / "hangs").iterdir()) == ["2", str(KEPT + 1)]
    assert (node.run_dir / "hangs" / "2" / "rank1.stack").read_text() == "run run\na stack"


def test_one_that_is_being_ended_shows_nothing_more(node: Node) -> None:
    Path(stacks_beside(node.worker.context)).write_text("a stack")
    node.worker.hung = True

    node.hung.shown(node.worker, 3)

    assert node.worker.shown == 0
    assert not (node.run_dir / "hangs").exists()


def _copied() -> None:
    for thread in threading.enumerate():
        if thread.name == COPIES:
            thread.join(10.0)


def test_a_kill_that_waits_is_not_for_the_process_that_follows(node: Node) -> None:
    node.hung.inspect(Inspect(hang=3, look=1, ranks=(1,), stacks=True))
    assert node.hung.defers(KILL, 10.0)
    assert node.line() == b"told\n"

    node.hung.replaced(node.worker)

    (kill,) = node.hung.due(10.0 + DUMP_S)
    assert (kill.ranks, kill.hung) == ((0,), ()), "its mate, which has not ended, is still meant"
    _copied()
    assert "<string>" in (node.run_dir / "hangs" / "3" / "rank1.stack").read_text()


@pytest.mark.usefixtures("no_threads")
def test_without_a_thread_a_worker_is_ended_whose_stacks_are_not_kept(node: Node) -> None:
    node.hung.inspect(Inspect(ranks=(1,), hang=4, look=1, stacks=True))
    assert node.hung.defers(KILL, 10.0)

    assert node.hung.due(10.0 + py_spy.WITHIN_S + DUMP_S) == [KILL]
