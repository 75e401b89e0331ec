"""A keeper in a process of its own: what it holds outlives whoever is killed."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rendezvous.bays import packets
from rendezvous.bays.client import KeeperClient, SnapshotLost, SnapshotMissed
from rendezvous.protocol.incarnations import incarnation
from rendezvous.protocol.keeper_messages import Attach, Custody, Dismiss, Fetch, Unavailable
from rendezvous.protocol.snapshot_messages import Keep
from tests.unit.keepers import KeeperProcess, listening

pytestmark = pytest.mark.rest

MIB = 1 << 20
NEXT = incarnation(1, 0)

Place = tuple[str, socket.socket]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with listening(tmp_path) as found:
        yield found


@pytest.fixture
def keeper(place: Place) -> Iterator[KeeperProcess]:
    keeper = KeeperProcess(place[1], 1, linger_s=0.0)
    keeper.inherit({})
    keeper.holding()
    yield keeper
    keeper.close()


def _fill(client: KeeperClient, step: int, nbytes: int = MIB, attempt: int = 0) -> bytes:
    """Write this rank's part of snapshot (attempt, step); the bytes that were written."""
    bay = client.reserve(nbytes, notes=4096)
    content = bytes([step + 1, client.rank + 1]) * (nbytes // 2)
    bay.memory[:] = content
    bay.seal(attempt, step, b"table", b"image %d" % step)
    return content


def _fill_both(client: KeeperClient, keeper: KeeperProcess) -> None:
    """Steps 1 and 2 are in the two bays of this rank, and the launcher has heard of them."""
    for step in (1, 2):
        _fill(client, step)
        keeper.holding(*((0, 0, one) for one in range(1, step + 1)))


def _read(client: KeeperClient, step: int, nbytes: int = MIB) -> bytes:
    kept = client.open(0, step)
    into = bytearray(nbytes)
    kept.read(0, memoryview(into))
    assert (kept.table, kept.image) == (b"table", b"image %d" % step)
    kept.close()
    return bytes(into)


WORKER = """
import os, sys
from rendezvous.bays.client import KeeperClient
client = KeeperClient(sys.argv[1], 0, 0, 1)
for step in (3, 5):
    bay = client.reserve(1 << 20, notes=4096)
    bay.memory[:] = bytes([step]) * (1 << 20)
    if step == 3:
        bay.seal(0, 3, b"table", b"image 3")
print(flush=True)
sys.stdin.read()
"""


def test_a_killed_worker_leaves_what_was_whole_and_nothing_torn(
    place: Place, keeper: KeeperProcess
) -> None:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", WORKER, place[0]]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        worker.kill()
    keeper.holding((0, 0, 3))
    successor = KeeperClient(place[0], 0, NEXT, 1)

    assert _read(successor, 3) == bytes([3]) * MIB
    with pytest.raises(SnapshotLost, match="no snapshot of step 5"):
        successor.open(0, 5)
    successor.close()


def test_memory_that_is_written_to_in_two_parts_is_a_part_of_a_snapshot_as_any(
    place: Place, keeper: KeeperProcess
) -> None:
    client = KeeperClient(place[0], 0, 0, 1)
    _fill_both(client, keeper)
    bay = client.reserve(MIB, notes=4096, opened=100)  # that of step 1, which was closed
    bay.memory[:100] = bytes(100)
    bay.open()
    bay.memory[100:] = bytes([7]) * (MIB - 100)
    bay.seal(0, 3, b"table", b"image 3")
    keeper.holding((0, 0, 2), (0, 0, 3))

    assert _read(client, 3) == bytes(100) + bytes([7]) * (MIB - 100)
    client.close()


def test_what_a_keeper_held_outlives_it_with_the_launcher(
    place: Place, keeper: KeeperProcess
) -> None:
    client = KeeperClient(place[0], 0, 0, 1)
    content = _fill(client, 3)
    keeper.holding((0, 0, 3))
    keeper.kill()
    assert keeper.ended()
    second = KeeperProcess(place[1], 2, linger_s=0.0)
    second.inherit(keeper.bays)
    second.holding((0, 0, 3))

    assert _read(client, 3) == content
    _fill(client, 4)
    second.holding((0, 0, 3), (0, 0, 4))
    client.close()
    second.close()


def test_a_bay_that_nobody_had_summed_counts_once_the_next_keeper_has(
    place: Place, keeper: KeeperProcess
) -> None:
    client = KeeperClient(place[0], 0, 0, 1)
    bay = client.reserve(MIB)
    keeper.kill(signal.SIGSTOP)
    bay.seal(0, 3, b"table", b"image 3")
    keeper.kill()
    assert keeper.ended()
    keeper.drain()
    second = KeeperProcess(place[1], 2, linger_s=0.0)
    second.inherit(keeper.bays)
    second.holding((0, 0, 3))
    client.close()
    second.close()


def test_what_a_launcher_leaves_the_next_one_takes_over(place: Place) -> None:
    keeper = KeeperProcess(place[1], 1, linger_s=120.0)
    keeper.inherit({})
    keeper.holding()
    client = KeeperClient(place[0], 0, 0, 1)
    content = _fill(client, 3)
    keeper.holding((0, 0, 3))
    keeper.line.close()  # all that a keeper sees of a launcher's end
    keeper.line = packets.make_socket()
    keeper.line.settimeout(30)
    keeper.line.connect(place[0])
    packets.say(keeper.line, Custody())
    keeper.holding((0, 0, 3))

    assert len(keeper.bays) == 2  # the same memory came again, in another descriptor
    assert _read(client, 3) == content
    packets.say(keeper.line, Dismiss())
    assert keeper.ended()
    client.close()
    keeper.close()


def test_a_keeper_ends_with_its_launcher_and_the_memory_with_both(
    place: Place, keeper: KeeperProcess
) -> None:
    client = KeeperClient(place[0], 0, 0, 1)
    _fill(client, 3)
    keeper.holding((0, 0, 3))
    client.close()
    keeper.line.close()

    assert keeper.ended()


def test_a_stopped_keeper_costs_a_bounded_time_and_a_snapshot(
    place: Place, keeper: KeeperProcess
) -> None:
    client = KeeperClient(place[0], 0, 0, 1)
    _fill(client, 3)
    keeper.holding((0, 0, 3))
    keeper.kill(signal.SIGSTOP)
    with pytest.raises(SnapshotMissed, match="does not answer"):
        client.reserve(MIB)
    with pytest.raises(SnapshotMissed, match="did not answer"):  # at once
        client.reserve(MIB)
    keeper.kill(signal.SIGCONT)
    client.close()


def test_the_newest_safe_snapshot_is_never_written_over(
    place: Place, keeper: KeeperProcess
) -> None:
    client = KeeperClient(place[0], 0, 0, 1)
    content = _fill(client, 3)
    keeper.holding((0, 0, 3))
    packets.say(keeper.line, Keep(order=(0, 1, (0, 3), (-1, -1))))
    for step in (4, 5, 6):
        _fill(client, step)
        keeper.holding((0, 0, 3), (0, 0, step))

    assert _read(client, 3) == content
    client.close()


def test_a_larger_state_gets_a_larger_bay_while_the_old_snapshot_stands(
    place: Place, keeper: KeeperProcess
) -> None:
    client = KeeperClient(place[0], 0, 0, 1)
    content = _fill(client, 3)
    keeper.holding((0, 0, 3))
    packets.say(keeper.line, Keep(order=(0, 1, (0, 3), (-1, -1))))
    _fill(client, 4)
    keeper.holding((0, 0, 3), (0, 0, 4))
    larger = _fill(client, 5, 8 * MIB)
    keeper.holding((0, 0, 3), (0, 0, 5))

    assert _read(client, 5, 8 * MIB) == larger
    assert _read(client, 3) == content
    client.close()


def test_a_flipped_bit_is_found(place: Place, keeper: KeeperProcess) -> None:
    client = KeeperClient(place[0], 0, 0, 1)
    _fill(client, 3)
    keeper.holding((0, 0, 3))
    _, fd = next(iter(keeper.bays.values()))
    middle = os.fstat(fd).st_size // 2
    os.pwrite(fd, bytes([os.pread(fd, 1, middle)[0] ^ 1]), middle)

    with pytest.raises(SnapshotLost, match="damaged"):
        client.open(0, 3).read(0, memoryview(bytearray(MIB)))
    client.close()


def test_a_damaged_part_is_nobodys_any_more(place: Place, keeper: KeeperProcess) -> None:
    client = KeeperClient(place[0], 0, 0, 1)
    older = _fill(client, 3)
    keeper.holding((0, 0, 3))
    _fill(client, 4)
    keeper.holding((0, 0, 3), (0, 0, 4))
    newest = list(keeper.bays.values())[1][1]
    os.pwrite(newest, b"damage", os.fstat(newest).st_size // 2)

    with pytest.raises(SnapshotLost, match="part 0 of a kept snapshot is damaged"):
        client.open(0, 4)
    keeper.holding((0, 0, 3))
    keeper.kill()
    assert keeper.ended()
    second = KeeperProcess(place[1], 2, linger_s=0.0)
    second.inherit(keeper.bays)
    second.holding((0, 0, 3))

    assert _read(client, 3) == older
    client.close()
    second.close()


def test_who_waits_for_its_part_asks_the_next_keeper(place: Place) -> None:
    path, listener = place
    client = KeeperClient(path, 0, 0, 1)
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(client.open, 0, 3)
        for answer in (None, Unavailable(reason="the second one says so")):
            line, _ = listener.accept()
            with line:
                assert packets.hear(line)[0] == Attach(rank=0, incarnation=0)
                assert packets.hear(line)[0] == Fetch(attempt=0, step=3)
                if answer is not None:
                    packets.say(line, answer)

        with pytest.raises(SnapshotLost, match="the second one says so"):
            asking.result(60)
    client.close()


def test_nobody_can_change_the_size_of_a_bay(place: Place, keeper: KeeperProcess) -> None:
    client = KeeperClient(place[0], 0, 0, 1)
    _fill(client, 3)
    keeper.holding((0, 0, 3))
    _, fd = next(iter(keeper.bays.values()))

    for size in (0, 1 << 30):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)
    client.close()


def test_a_process_that_was_replaced_is_not_heard(place: Place, keeper: KeeperProcess) -> None:
    former, newer = KeeperClient(place[0], 0, 0, 1), KeeperClient(place[0], 0, NEXT, 1)
    bay = former.reserve(MIB)
    _fill(newer, 9, attempt=1)
    keeper.holding((0, 1, 9))
    bay.memory[:] = b"x" * MIB
    bay.seal(0, 10, b"", b"")  # a line that is cut says nothing

    with pytest.raises(SnapshotMissed):
        former.reserve(MIB)
    assert newer.open(1, 9).nbytes == MIB
    former.close()
    newer.close()


@pytest.mark.parametrize("said", [b"", b"junk", b"\x81\xa1k\xa4Stop"])
def test_a_stranger_is_let_go_and_nobody_else_is_disturbed(
    place: Place, keeper: KeeperProcess, said: bytes
) -> None:
    with packets.make_socket() as stranger:
        stranger.connect(place[0])
        stranger.settimeout(30)
        stranger.send(said)
        assert not stranger.recv(1)
    client = KeeperClient(place[0], 0, 0, 1)
    _fill(client, 3)
    keeper.holding((0, 0, 3))
    client.close()


def test_a_snapshot_that_does_not_fit_is_had_from_no_keeper_any_more(
    place: Place, keeper: KeeperProcess
) -> None:
    client = KeeperClient(place[0], 0, 0, 1)
    _fill_both(client, keeper)

    packets.say(keeper.line, Keep(order=(0, 1, (0, 2), (-1, -1)), unfit=((0, 2),)))

    keeper.holding((0, 0, 1))
    keeper.child.signal(signal.SIGKILL)
    keeper.drain()
    successor = KeeperProcess(place[1], 2, linger_s=0.0)
    successor.inherit(keeper.bays)
    successor.holding((0, 0, 1))
    successor.close()
    client.close()
