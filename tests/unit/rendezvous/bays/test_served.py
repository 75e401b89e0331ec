"""A keeper without its process: its answer where there is no memory, and whom it tells when."""

import errno
import os
import socket
from collections.abc import Callable
from contextlib import suppress

import pytest

from rendezvous.bays import memory, packets, share_memory
from rendezvous.bays.allowance import USUAL, Allowance
from rendezvous.bays.served import KeptBays
from rendezvous.bays.share_memory import OF_NO_RANK, SharePlan
from rendezvous.protocol.keeper_messages import (
    Attach,
    BayMade,
    Custody,
    KeeperMessage,
    Reserve,
    Room,
    Unavailable,
)
from rendezvous.protocol.snapshot_messages import Holding
from rendezvous.snapshots.exchange_work import ShareId

MIB, GIB = 1 << 20, 1 << 30
ATTACH = Attach(rank=0, incarnation=0)
SHARE = ShareId(0, 3, 2, 1, 0, ((0, 1), (1, 1)))


class NoDisk:
    """Nothing is written or read here."""

    def ask(self, task: Callable[[], Callable[[], None]]) -> None:
        raise AssertionError("nobody asks for a disk")


class Pair:
    """A keeper in this process, and the line of one caller; a rank unless it says otherwise."""

    def __init__(
        self,
        allowance: Allowance = USUAL,
        bays: KeptBays | None = None,
        first: KeeperMessage = ATTACH,
    ) -> None:
        self.bays = bays or KeptBays(1, NoDisk(), allowance)
        self.line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        caller = self.bays.welcome(theirs)
        assert caller is not None
        self._caller = caller
        self.tell(first)

    def tell(self, message: KeeperMessage, fd: int | None = None) -> None:
        self.bays.take(self._caller, message, fd)

    def told(self) -> list[KeeperMessage]:
        """All that it has been told since it was last asked."""
        self.line.setblocking(False)
        found = []
        with suppress(BlockingIOError):
            while True:
                message, fd = packets.hear(self.line)
                found.append(message)
                if fd is not None:
                    os.close(fd)
        return found

    def reserve(self, nbytes: int, turn: int) -> KeeperMessage:
        self.tell(Reserve(nbytes=nbytes, turn=turn))
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
        reason="too little memory: 2.0 GiB are needed on this node, 0.1 GiB are to spare", full=True
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

    assert refused == Unavailable(
        reason=f"no memory for a snapshot: {os.strerror(code)}", full=True
    )
    assert isinstance(served, Room)


@pytest.mark.parametrize("kind", ["share", "bay"])
def test_who_counts_on_memory_has_its_descriptor_first(kind: str) -> None:
    """A keeper that is killed between the two would take with it what is held to be safe."""
    if kind == "share":
        made = share_memory.make(SharePlan(SHARE, ((), ((1, 100, 50),)), 2))
        made.write(0, 1, b"abc")
        made.finish()
        fd, rank = os.dup(made.fd), OF_NO_RANK
        made.close()
    else:
        fd, rank = memory.make(MIB), 0
    giver = Pair(first=Custody())
    other = Pair(bays=giver.bays, first=Custody())
    giver.told(), other.told()

    giver.tell(BayMade(rank=rank, owner=-1, nbytes=os.fstat(fd).st_size), fd)
    heard = other.told()
    other.line.close()
    giver.close()

    assert isinstance(heard[0], BayMade)
    assert [isinstance(one, Holding) for one in heard[1:]] == [True] * (kind == "share")
