"""Messages between an exchange and its launcher, one in each packet of a pair of unix sockets; and
as the frames of what exchanges say to each other.
"""

import socket
from typing import cast, get_args

from rendezvous.bays.packets import Closed
from rendezvous.protocol.codec import Schemas, decode_known, encode
from rendezvous.protocol.exchange_messages import ExchangeMessage

PACKET_BYTES = 1 << 17

KNOWN = Schemas(get_args(ExchangeMessage))


def framed(message: ExchangeMessage) -> bytes:
    return encode(message, KNOWN)


def read(frame: bytes) -> ExchangeMessage:
    """Raises RemoteProtocolError."""
    return cast(ExchangeMessage, decode_known(frame, KNOWN))


def say(line: socket.socket, message: ExchangeMessage) -> None:
    """Raises Closed; BlockingIOError where the other side does not read."""
    try:
        line.send(framed(message))
    except (TimeoutError, BlockingIOError):
        raise
    except OSError as error:
        raise Closed(error.strerror or str(error)) from error


def hear(line: socket.socket) -> ExchangeMessage:
    """Raises Closed; RemoteProtocolError; BlockingIOError where nothing comes."""
    try:
        frame = line.recv(PACKET_BYTES)
    except (TimeoutError, BlockingIOError):
        raise
    except OSError as error:
        raise Closed(error.strerror or str(error)) from error
    if not frame:
        raise Closed("the other side has ended")
    return read(frame)
