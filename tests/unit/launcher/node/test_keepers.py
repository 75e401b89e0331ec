"""The launcher's side of a keeper, with a real one."""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from recoverrun.config.snapshot_options import SnapshotOptions
from recoverrun.launcher.node.keepers import STARTS, NodeKeeper
from recoverrun.launcher.node.snapshot_dir import SnapshotDir
from rendezvous.bays.client import KeeperClient, SnapshotMissed
from rendezvous.protocol.formation_messages import Start
from rendezvous.protocol.messages import Message
from rendezvous.protocol.records import Record
from rendezvous.protocol.snapshot_messages import Holding, Persist, Persisted
from rendezvous.snapshots.identity import NONE
from rendezvous.transport.station import Station

pytestmark = pytest.mark.rest

PATIENCE_S = 60.0


class Node:
    def __init__(self, folder: Path, directory: SnapshotDir | None = None) -> None:
        self.records: list[Record] = []
        self.up: list[Message] = []
        self.station = Station()
        self.keeper = NodeKeeper(
            str(folder / "k"),
            watch=self.station.watch,
            unwatch=self.station.unwatch,
            record=self.records.append,
            directory=directory,
        )

    def until(self, condition: Callable[[], object]) -> None:
        give_up_at = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < give_up_at, (self.records, self.up)
            ready = {item for item in self.station.wait(0.02) if isinstance(item, int)}
            self.up += self.keeper.read(ready)
            self.keeper.tick(time.monotonic())

    def holds(self, *steps: int) -> Callable[[], bool]:
        return lambda: tuple(held[1] for held in self.keeper.holding.held) == steps

    def events(self) -> list[str]:
        return [record.event for record in self.records]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.keeper.end()
    node.station.close()


def _fill(client: KeeperClient, step: int) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while True:
        try:
            bay = client.reserve(1 << 16)
        except SnapshotMissed:
            assert time.monotonic() < give_up_at
            continue
        bay.memory[:4] = step.to_bytes(4, "little")
        return bay.seal(0, step, b"", b"")


@pytest.mark.quick
def test_what_a_killed_keeper_held_is_held_by_the_next(node: Node) -> None:
    client = KeeperClient(node.keeper.path, 0, 0, 1)
    _fill(client, 1)
    node.until(node.holds(1))
    node.keeper.keep((0, 1, (0, 1), (-1, -1)))
    (pid,) = node.keeper.pids
    os.kill(pid, signal.SIGKILL)
    node.until(lambda: node.events().count("keeper.spawn") == 2 and node.keeper.holding.keeper == 2)
    for step in (2, 3):
        _fill(client, step)
        node.until(node.holds(1, step))

    assert node.keeper.pids != {pid}
    assert isinstance(node.up[-1], Holding)
    client.close()


def test_a_keeper_that_does_not_stay_is_given_up(node: Node) -> None:
    for number in range(STARTS):
        node.until(lambda number=number: node.events().count("keeper.spawn") == number + 1)
        (pid,) = node.keeper.pids
        os.kill(pid, signal.SIGKILL)
        node.until(lambda number=number: node.events().count("keeper.exit") == number + 1)

    assert not node.keeper.pids
    assert "not started again" in node.records[-1].reason


def test_a_keeper_that_does_not_answer_is_replaced(node: Node) -> None:
    node.until(lambda: node.keeper.holding.keeper == 0 and node.keeper.pids)
    (pid,) = node.keeper.pids
    os.kill(pid, signal.SIGSTOP)
    node.keeper.tick(time.monotonic() + 1000.0)  # so much later
    node.until(lambda: "keeper.exit" in node.events())

    assert node.keeper.pids not in ({pid}, frozenset())


def test_no_start_takes_a_snapshot_that_did_not_fit(tmp_path: Path) -> None:
    wanted = SnapshotOptions(tmp_path / "kept", "auto")
    node = Node(tmp_path, SnapshotDir(wanted, "x.py", ""))
    node.keeper.begin(
        Start(
            generation=1, attempt=0, number=1, node_rank=0, nnodes=1, first_rank=0, nproc=1,
            world_size=1, restore="", master_addr="", nodes=("a",),
        )
    )  # fmt: skip
    client = KeeperClient(node.keeper.path, 0, 0, 1)
    _fill(client, 1)
    node.until(node.holds(1))
    node.keeper.persist(Persist(attempt=0, step=1, start=1))
    node.until(lambda: any(isinstance(one, Persisted) for one in node.up))
    written = SnapshotDir(wanted, "x.py", "").held

    node.keeper.keep((0, 1, NONE, NONE), unfit=((0, 1),))
    node.keeper.end()

    assert [one[1] for one in written] == [1]
    assert SnapshotDir(wanted, "x.py", "").held == ()
    client.close()
    node.station.close()


def test_nothing_is_left_of_it_at_the_end(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    node = Node(tmp_path)
    client = KeeperClient(node.keeper.path, 0, 0, 1)
    _fill(client, 1)
    node.until(node.holds(1))
    (pid,) = node.keeper.pids
    client.close()
    node.keeper.end()
    node.station.close()

    assert not Path(f"/proc/{pid}").exists()
    assert len(set(os.listdir("/proc/self/fd")) - before) == 0
    with (
        pytest.raises(OSError, match="refused"),
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line,
    ):
        line.connect(str(tmp_path / "k"))
