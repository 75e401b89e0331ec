"""The contexts of a rank in the form in which other nodes keep them, in case its own is lost.

They go there after each step, so they have to be small. Most of a context is random streams, and
several contexts of one rank repeat these: packed they take a third. Whoever takes them over unpacks
them; what a rank left on its own node was never packed, and is told from it by its first byte.
"""

import zlib

from rendezvous.protocol.shared_memory import MOST_BYTES

_LEVEL = 1
"""Half a millisecond for 75 KiB; higher levels take ten times as long and save nothing."""

_FIRST = zlib.compress(b"", _LEVEL)[:1]
"""No list of contexts begins with it."""


def packed(payload: bytes) -> bytes:
    return zlib.compress(payload, _LEVEL)


def unpacked(left: bytes) -> bytes:
    """Return the payload that a rank left, packed or not; b"" if it cannot be had. Never raises."""
    if not left.startswith(_FIRST):
        return left
    unpacker = zlib.decompressobj()
    try:
        payload = unpacker.decompress(left, MOST_BYTES)
    except zlib.error:
        return b""
    return payload if unpacker.eof else b""
