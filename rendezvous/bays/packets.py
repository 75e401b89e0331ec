"""Messages to and from a keeper: one in each packet of a unix socket, with at most one descriptor.

Nothing but messages of ours is taken, and nobody but processes of this user is heard.
"""

import os
import socket
import struct
from typing import cast, get_args

from rendezvous.protocol.codec import RemoteProtocolError, Schemas, decode_known, encode
from rendezvous.protocol.keeper_messages import KeeperMessage

PACKET_BYTES = 1 << 16

KNOWN = Schemas(get_args(KeeperMessage))

_CREDENTIALS = struct.Struct("iII")


class Closed(Exception):
    """The other side is gone."""


def make_socket() -> socket.socket:
    """A socket that is not connected yet."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def say(line: socket.socket, message: KeeperMessage, fd: int | None = None) -> None:
    """Send `message`, with a descriptor of `fd` if there is one.

    Raises Closed; TimeoutError or BlockingIOError where the other side does not read.
    """
    frame = encode(message, KNOWN)
    try:
        if fd is None:
            line.send(frame)
        else:
            socket.send_fds(line, [frame], [fd])
    except (TimeoutError, BlockingIOError):
        raise
    except OSError as error:
        raise Closed(error.strerror or str(error)) from error


def hear(line: socket.socket) -> tuple[KeeperMessage, int | None]:
    """The next message and the descriptor that came with it, which is the caller's to close.

    Raises Closed; RemoteProtocolError; TimeoutError or BlockingIOError where nothing comes.
    """
    try:
        frame, fds, _, _ = socket.recv_fds(line, PACKET_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
    except (TimeoutError, BlockingIOError):
        raise
    except OSError as error:
        raise Closed(error.strerror or str(error)) from error
    for superfluous in fds[1:]:
        os.close(superfluous)
    fd = fds[0] if fds else None
    if not frame and fd is None:
        raise Closed("the other side has ended")
    try:
        return cast(KeeperMessage, decode_known(frame, KNOWN)), fd
    except RemoteProtocolError:
        if fd is not None:
            os.close(fd)
        raise


def peer_of(line: socket.socket) -> tuple[int, int]:
    """Process and user at the other end, as the kernel knows them."""
    packed = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(packed)
    return pid, uid
