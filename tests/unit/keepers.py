"""Keepers in processes of their own, as a launcher starts them."""

import os
import select
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from recoverrun.launcher.node.process import Child, spawn
from rendezvous.bays import packets
from rendezvous.protocol.keeper_messages import BayMade, Custody, KeeperMessage, Serve
from rendezvous.protocol.snapshot_messages import Holding

ANSWER_S = 30.0


class KeeperProcess:
    """One keeper, and the launcher's end of the line to it."""

    def __init__(self, listener: socket.socket, number: int, linger_s: float) -> None:
        self.line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.line.settimeout(ANSWER_S)
        fds = listener.fileno(), theirs.fileno()
        names = map(str, (*fds, number, linger_s, "40%"))
        command = [sys.executable, "-m", "recoverrun.keeper", *names]
        self.child: Child = spawn(command, os.environ, handed=fds, outlives=True)
        theirs.close()
        self.bays: dict[int, tuple[BayMade, int]] = {}  # by descriptor
        packets.say(self.line, Custody())

    def inherit(self, bays: dict[int, tuple[BayMade, int]]) -> None:
        for made, fd in bays.values():
            packets.say(self.line, made, fd)
        packets.say(self.line, Serve())

    def hear(self, kind: type[KeeperMessage]) -> KeeperMessage:
        """The next message of this kind; bays that come before are taken."""
        while True:
            message, fd = packets.hear(self.line)
            if isinstance(message, BayMade) and fd is not None:
                self.bays[fd] = message, fd
            if isinstance(message, kind):
                return message

    def drain(self) -> None:
        """Take the bays that it had told of before it ended."""
        try:
            while True:
                self.hear(Holding)
        except packets.Closed:
            pass

    def holding(self, *held: tuple[int, int, int]) -> None:
        """Wait until these (rank, attempt, step) are whole, and nothing else."""
        while True:
            message = self.hear(Holding)
            assert isinstance(message, Holding)
            if tuple((rank, *of) for *of, _, rank, _ in message.held) == held:
                return

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        self.child.signal(number)

    def ended(self, within_s: float = ANSWER_S) -> bool:
        return bool(select.select([self.child.pidfd], [], [], within_s)[0])

    def close(self) -> None:
        self.child.signal(signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.child.pid, 0)
        self.child.close()
        self.line.close()
        for _, fd in self.bays.values():
            os.close(fd)


@contextmanager
def listening(folder: Path) -> Iterator[tuple[str, socket.socket]]:
    """A socket as a launcher makes it for its keepers."""
    path = str(folder / "k")
    with packets.make_socket() as listener:
        listener.bind(path)
        listener.listen(16)
        yield path, listener
