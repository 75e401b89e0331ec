"""An exchange has the memory of a keeper by descriptors, and hands it what it has made."""

import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest

from rendezvous.bays import packets, share_memory
from rendezvous.bays.client import KeeperClient
from rendezvous.bays.exchanged_memory import KeeperMemory
from rendezvous.bays.share_memory import SharePlan
from rendezvous.protocol.keeper_messages import BayMade
from rendezvous.protocol.snapshot_messages import Holding, Keep
from rendezvous.snapshots.exchange_work import KeptSnapshot, ShareId
from rendezvous.snapshots.identity import NONE
from rendezvous.snapshots.member_stream import stream_bytes
from rendezvous.snapshots.parity_code import PART_BYTES
from tests.unit.keepers import KeeperProcess, listening

pytestmark = pytest.mark.rest

MIB = 1 << 20
OF = KeptSnapshot(0, 3, 2)
SHARE = ShareId(*OF, 1, 0, ((0, 1), (1, 1)))
CONTENT = os.urandom(MIB)


class Node:
    """A keeper, and an exchange's view of it."""

    def __init__(self, folder: Path, listener: socket.socket) -> None:
        folder.mkdir(exist_ok=True)
        self.listener, self.path = listener, str(folder.parent / "k")
        self.keeper = KeeperProcess(listener, 1, linger_s=0.0)
        self.keeper.inherit({})
        self.memory = KeeperMemory(self.path)

    def hear(self) -> Holding:
        """The keeper's statement that the exchange hears next."""
        assert self.memory.line is not None
        assert select.select([self.memory.line], [], [], 30)[0]
        found = self.memory.hear()
        return found[-1] if found else self.hear()

    def keep(self) -> None:
        packets.say(self.keeper.line, Keep(order=(0, 1, OF[:2], NONE)))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with listening(tmp_path) as (_, listener):
        node = Node(tmp_path / "x", listener)
        yield node
        node.keeper.close()


def _fill(node: Node, rank: int) -> KeeperClient:
    client = KeeperClient(node.path, rank, 0, 2)
    bay = client.reserve(MIB, notes=4096, within_s=30.0)  # the keeper has only begun
    bay.memory[:] = CONTENT
    bay.seal(OF.attempt, OF.step, b"table", b"image")
    return client


def _stream(node: Node, rank: int) -> tuple[tuple[tuple[int, int, int], ...], bytes]:
    extents = node.memory.extents(OF, (rank, 1))
    data = node.memory.read(OF, rank, 0, stream_bytes(extents))
    assert data is not None
    return extents, data


def test_a_bay_that_is_brought_can_be_read_as_any_other(node: Node, tmp_path: Path) -> None:
    client = _fill(node, 1)
    node.keeper.holding((1, 0, 3))
    assert node.memory.call()
    while not node.memory.extents(OF, (1, 1)):
        node.hear()
    extents, data = _stream(node, 1)
    (tmp_path / "second").mkdir()
    with listening(tmp_path / "second") as (_, listener):
        second = Node(tmp_path / "second" / "x", listener)
        assert second.memory.call()
        second.hear()
        second.keep()
        assert second.memory.begin_bays(OF, extents) == ""
        half = len(data) // 2
        second.memory.write_bay(OF, 1, half, data[half:])
        second.memory.write_bay(OF, 1, 0, data[:half])
        assert second.memory.end_bays(OF, extents) == ""
        made = second.keeper.hear(BayMade)
        assert isinstance(made, BayMade) and made.rank == 1
        other = KeeperClient(second.path, 1, 1 << 16, 2)
        kept = other.open(0, 3)
        into = bytearray(MIB)
        kept.read(0, memoryview(into))
        while not second.memory.extents(OF, (1, 1)):
            second.hear()

        assert bytes(into) == CONTENT
        assert _stream(second, 1)[1] == data
        kept.close()
        other.close()
        second.keeper.close()
    client.close()


def test_a_part_with_a_flipped_bit_is_not_handed_on(node: Node) -> None:
    client = _fill(node, 1)
    node.keeper.holding((1, 0, 3))
    assert node.memory.call()
    while not node.memory.extents(OF, (1, 1)):
        node.hear()
    extents, data = _stream(node, 1)
    assert node.memory.begin_bays(OF, extents) == ""
    node.memory.write_bay(OF, 1, 0, data[:-1] + bytes([data[-1] ^ 1]))

    assert "damaged" in node.memory.end_bays(OF, extents)
    client.close()


def test_a_share_outlives_its_keeper_and_goes_when_it_is_not_kept(node: Node) -> None:
    node.keep()
    assert node.memory.call()
    while node.hear().order[:2] != (0, 1):
        pass
    assert node.memory.begin_share(SHARE, ((), ((1, 100, 50),)), 2) == ""
    node.memory.write_share(SHARE, 0, 1, b"abc", None)
    node.memory.end_share(SHARE)
    while not node.hear().shares:
        pass
    node.keeper.kill()
    assert node.keeper.ended()
    node.keeper.drain()
    second = KeeperProcess(node.listener, 2, linger_s=0.0)
    second.inherit(node.keeper.bays)
    while node.memory.line is not None:
        assert select.select([node.memory.line], [], [], 30)[0]
        node.memory.hear()
    assert node.memory.call()
    while not node.hear().shares:
        pass

    assert node.memory.shares() == (SHARE,)
    assert node.memory.share_extents(SHARE) == ((), ((1, 100, 50),))
    assert node.memory.read_share(SHARE, 0, 0) == bytes(PART_BYTES)
    assert node.memory.read_share(SHARE, 0, 1) == b"abc".ljust(PART_BYTES, b"\0")
    assert node.memory.read_share(SHARE, 1, 0) is None
    packets.say(second.line, Keep(order=(0, 2, NONE, NONE)))
    packets.say(second.line, Keep(order=(0, 3, (0, 9), NONE)))
    while node.hear().shares:
        pass
    assert node.memory.shares() == ()
    second.close()


def test_memory_that_holds_no_whole_share_is_none() -> None:
    made = share_memory.make(SharePlan(SHARE, ((), ()), 1))
    assert share_memory.opened(made.fd) is None
    whole = memoryview(os.urandom(PART_BYTES))
    made.write(0, 0, whole, crc32(whole) ^ 1)
    assert made.read(0, 0) is None, "not what others have sent"
    made.write(0, 0, whole, crc32(whole))
    assert made.read(0, 0) == whole
    made.write(0, 0, b"x")
    made.finish()
    assert share_memory.opened(made.fd) is not None
    os.pwrite(made.fd, b"y", made.plan.begin(0, 0))
    assert made.read(0, 0) is None
    os.pwrite(made.fd, b"\1" * 8, 8)
    assert share_memory.opened(made.fd) is None
    made.close()
