"""What a keeper answers where there is no memory: a sentence, and the caller is not let go."""

import errno
import os
import socket
from collections.abc import Callable

import pytest

from rendezvous.bays import memory, packets
from rendezvous.bays.allowance import USUAL, Allowance
from rendezvous.bays.served import KeptBays
from rendezvous.protocol.keeper_messages import Attach, KeeperMessage, Reserve, Room, Unavailable

MIB, GIB = 1 << 20, 1 << 30


class NoDisk:
    """Nothing is written or read here."""

    def ask(self, task: Callable[[], Callable[[], None]]) -> None:
        raise AssertionError("nobody asks for a disk")


class Pair:
    """A keeper in this process, and the line of one rank."""

    def __init__(self, allowance: Allowance = USUAL) -> None:
        self.bays = KeptBays(1, NoDisk(), allowance)
        self.line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        caller = self.bays.welcome(theirs)
        assert caller is not None
        self._caller = caller
        self._tell(Attach(rank=0, incarnation=0))

    def _tell(self, message: KeeperMessage) -> None:
        self.bays.take(self._caller, message, None)

    def reserve(self, nbytes: int, turn: int) -> KeeperMessage:
        self._tell(Reserve(nbytes=nbytes, turn=turn))
        answer, fd = packets.hear(self.line)
        if fd is not None:
            os.close(fd)
        return answer

    def close(self) -> None:
        self.line.close()
        self._caller.line.close()
        self.bays.close()


def test_a_bay_beyond_what_is_allowed_is_refused_before_any_memory_is_taken() -> None:
    pair = Pair(Allowance(most=GIB // 10))
    refused, served = pair.reserve(2 * GIB, 1), pair.reserve(MIB, 2)
    pair.close()

    assert refused == Unavailable(
        reason="too little memory: 2.0 GiB are needed on this node, 0.1 GiB are to spare"
    )
    assert isinstance(served, Room)


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM, errno.ENOMEM])
def test_where_the_system_gives_no_memory_its_own_words_are_the_answer(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """As under a seccomp filter that knows no memfd_create."""

    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    pair = Pair()
    with monkeypatch.context() as patched:
        patched.setattr(memory.os, "memfd_create", refuse)
        refused = pair.reserve(MIB, 1)
    served = pair.reserve(MIB, 2)
    pair.close()

    assert refused == Unavailable(reason=f"no memory for a snapshot: {os.strerror(code)}")
    assert isinstance(served, Room)
