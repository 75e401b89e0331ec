"""Spares are kept, told once what they become, replaced, and ended; nobody ever waits for one."""

import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from recoverrun.launcher.node.process import Child
from recoverrun.launcher.node.processes import Processes
from recoverrun.launcher.node.spares import ROOM_BYTES, Spares
from rendezvous.protocol.records import Record
from rendezvous.protocol.spare_order import SpareOrder, decode, encode
from rendezvous.transport.station import Station

PATIENCE_S = 60.0

# What a spare of ours does, without torch: it says that it is ready, and writes down its order.
STANDS_IN = """
import os, socket, sys
line = socket.socket(fileno=int(sys.argv[2]))
if os.environ["BEHAVES"] == "fails":
    sys.exit(4)
if os.environ["BEHAVES"] == "ready":
    line.send(b"\\n")
data = b""
while not data.endswith(b"\\n"):
    new = line.recv(1 << 16)
    if not new:
        os._exit(0)
    data += new
open(os.environ["WRITES"], "wb").write(data)
"""


class Node:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.station = Station()
        self.records: list[Record] = []
        self.spares = Spares(2, self.station, self.records.append)

    def keep(self, behaves: str) -> None:
        environ = {"BEHAVES": behaves, "WRITES": str(self.folder / "order")}
        self.spares.keep([sys.executable, "-S", "-c", STANDS_IN], environ)

    def until(self, condition: Callable[[], object]) -> None:
        give_up_at = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < give_up_at
            self.spares.reap({fd for fd in self.station.wait(0.02) if isinstance(fd, int)})

    def take(self, order: SpareOrder) -> Child:
        taken: list[Child] = []

        def took() -> bool:
            child = self.spares.take(order)
            taken.extend([child] if child is not None else [])
            return bool(taken)

        self.until(took)
        return taken[0]


ORDER = SpareOrder(
    environ={"A": "1", "ODD": "\udcff\n"}, arguments=("train.py", "a b"), stdout="/x", stderr=""
)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.spares.end()
    node.station.close()


def test_one_that_is_used_has_its_order_and_is_replaced(node: Node) -> None:
    node.keep("ready")
    before = node.spares.pids

    child = node.take(ORDER)

    assert child.pid in before
    assert len(node.spares.pids) == 2 and child.pid not in node.spares.pids
    os.waitid(os.P_PIDFD, child.pidfd, os.WEXITED | os.WNOWAIT)
    assert child.reap() == 0
    assert decode((node.folder / "order").read_bytes()) == ORDER


def test_nobody_waits_for_one_that_is_not_ready(node: Node) -> None:
    assert node.spares.take(ORDER) is None, "none is kept yet"
    node.keep("slow")

    assert node.spares.take(ORDER) is None
    assert len(node.spares.pids) == 2


def test_an_order_that_is_too_large_costs_the_spare_and_no_time(node: Node) -> None:
    node.keep("ready")
    huge = SpareOrder(environ={"A": "x" * 8 * ROOM_BYTES}, arguments=(), stdout="", stderr="")
    before = node.spares.pids
    node.until(lambda: node.spares.take(huge) is None and before - node.spares.pids)

    assert len(node.spares.pids) == 2, "it is replaced"
    assert not (node.folder / "order").exists()


def test_one_that_ends_by_itself_is_told_of_and_not_replaced(node: Node) -> None:
    node.keep("fails")

    node.until(lambda: not node.spares.pids)

    assert "a spare process has ended with code 4" in node.records[0].reason


def test_all_of_them_end_with_the_job(node: Node) -> None:
    node.keep("ready")
    pidfds = [os.pidfd_open(pid) for pid in node.spares.pids]

    node.spares.end()

    for pidfd in pidfds:
        ended = select.poll()  # it may have been reaped already
        ended.register(pidfd, select.POLLIN)
        assert ended.poll(10_000)
        os.close(pidfd)
    assert not node.spares.pids and node.spares.take(ORDER) is None


def test_spares_are_known_processes_and_no_workers(node: Node) -> None:
    processes = Processes(node.spares)
    node.keep("ready")

    assert processes.known == node.spares.pids and not processes.pids


def test_an_order_is_one_line(node: Node) -> None:
    data = encode(ORDER)

    assert data.count(b"\n") == 1 and json.loads(data)["arguments"] == ["train.py", "a b"]
