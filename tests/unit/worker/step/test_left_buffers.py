"""Buffers that a rank leaves are read by others as they were."""

import threading
from pathlib import Path

import torch

from recoverrun.worker.step.left_buffers import LeftBuffers
from rendezvous.protocol import shared_memory
from rendezvous.protocol.messages import LostContexts

BUFFERS = {
    0: {0: torch.tensor([0.25, -1.0]), 3: torch.tensor(7)},
    2: {1: torch.arange(6, dtype=torch.bfloat16).reshape(2, 3), 2: torch.tensor([True, False])},
    5: {0: torch.ones(3, dtype=torch.complex64), 1: torch.ones(0), 2: torch.ones(2, 3).t()},
}


def left_by(path: Path) -> LostContexts:
    """The message of a launcher about rank 4, which had this memory."""
    packed = shared_memory.newest(shared_memory.buffers_beside(str(path)))
    return LostContexts(generation=2, contexts=((4, ()),), buffers=((4, packed),))


def test_what_one_leaves_another_one_reads(tmp_path: Path) -> None:
    LeftBuffers(str(tmp_path / "context")).leave(8, BUFFERS)
    survivor = LeftBuffers("")

    survivor.hear(left_by(tmp_path / "context"))

    found = survivor.of(4, 8)
    assert found.keys() == BUFFERS.keys()
    for number, values in BUFFERS.items():
        assert found[number].keys() == values.keys()
        for at, value in values.items():
            assert found[number][at].dtype == value.dtype
            assert torch.equal(found[number][at], value)


def test_those_of_another_transaction_are_none(tmp_path: Path) -> None:
    rank = LeftBuffers(str(tmp_path / "context"))
    rank.leave(7, BUFFERS)
    rank.leave(8, {0: {0: torch.zeros(1 << 20)}})  # too many: the older ones stay
    survivor = LeftBuffers("")
    survivor.hear(left_by(tmp_path / "context"))

    assert survivor.of(4, 8) == {}
    assert survivor.of(4, 7)


def test_they_are_waited_for_as_they_come_after_the_view(tmp_path: Path) -> None:
    LeftBuffers(str(tmp_path / "context")).leave(8, BUFFERS)
    survivor = LeftBuffers("")
    message = left_by(tmp_path / "context")
    teller = threading.Thread(target=lambda: survivor.hear(message))

    teller.start()

    assert survivor.of(4, 8).keys() == BUFFERS.keys()
    teller.join()


def test_who_took_part_again_has_left_nothing_yet(tmp_path: Path) -> None:
    LeftBuffers(str(tmp_path / "context")).leave(8, BUFFERS)
    survivor = LeftBuffers("")
    survivor.hear(left_by(tmp_path / "context"))

    survivor.forget(4)
    survivor.hear(LostContexts(generation=3, contexts=((4, ()),)))

    assert survivor.of(4, 8) == {}


def test_nothing_is_left_where_no_file_can_be_made(tmp_path: Path) -> None:
    buffers = LeftBuffers(str(tmp_path / "closed" / "context"))

    buffers.leave(8, BUFFERS)
    (tmp_path / "closed").mkdir()
    buffers.leave(9, BUFFERS)

    assert not list((tmp_path / "closed").iterdir())
