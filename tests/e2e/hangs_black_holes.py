"""Connections between ranks that swallow what is sent: neither side hears of an error.

As with a firewall that has forgotten a connection: a filter of the kernel is put onto the sockets
of a worker, from outside, and drops whatever arrives. Needs the right to trace the workers.
"""

import ctypes
import os
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

PIDFD_GETFD = 438
"""The system call, which Python does not have; the same number on all architectures."""

SO_ATTACH_FILTER = 26
DROP = struct.pack("HBBI", 0x06, 0, 0, 0)
"""A program of classic BPF: return 0 bytes of the packet."""


def swallow(pids: Iterable[int], others: Iterable[int], *, new: bool = False) -> int:
    """Drop what arrives at the workers `pids` from workers `others` over connections of now.

    `new`: also over any that will be made to them. Return the number of connections.
    """
    sent_from = {port for pid in others for port in _ports(pid)}
    many = 0
    for one in [one for pid in pids for one in _sockets(pid)]:
        with one:
            if _listens(one):
                if new:  # connections that it accepts have its filter
                    _drop_all(one)
            elif _peer(one) in sent_from:
                _drop_all(one)
                many += 1
    return many


def _ports(pid: int) -> Iterator[int]:
    for one in _sockets(pid):
        with one:
            yield int(one.getsockname()[1])


def _sockets(pid: int) -> Iterator[socket.socket]:
    """Copies of the TCP sockets that a process has."""
    libc = ctypes.CDLL(None, use_errno=True)
    process = os.pidfd_open(pid)
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # it has been closed
                if not os.readlink(entry).startswith("socket:"):
                    continue
            fd = libc.syscall(PIDFD_GETFD, process, int(entry.name), 0)
            if fd < 0:
                raise OSError(ctypes.get_errno(), "pidfd_getfd")
            one = socket.socket(fileno=fd)
            if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
                yield one
            else:
                one.close()
    finally:
        os.close(process)


def _listens(one: socket.socket) -> bool:
    return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _peer(one: socket.socket) -> int:
    try:
        return int(one.getpeername()[1])
    except OSError:
        return -1  # it is not connected


def _drop_all(one: socket.socket) -> None:
    program = ctypes.create_string_buffer(DROP, len(DROP))
    told = struct.pack("HxxxxxxP", 1, ctypes.addressof(program))
    one.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, told)
