"""Memory without a file: made by a keeper, filled by a worker, held by a launcher as well.

It exists as long as one of them has a descriptor or maps it, and no longer. Nobody can change its
size. Whoever maps it keeps it out of core dumps and of forked children.
"""

import ctypes
import errno
import fcntl
import mmap
import os

from rendezvous.snapshots.bay_header import (
    HEADER_BYTES,
    NO_HEADER,
    PAGE,
    BayHeader,
    parse,
    parse_sums,
    sums_bytes,
)

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

STRIDE = 32 << 20
"""Bytes whose protection is changed at once."""

POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE, from Linux 5.14 on."""


def make(nbytes: int) -> int:
    """The descriptor of fresh memory of so many bytes, none of which is taken yet.

    Raises OSError where the system does not allow it.
    """
    fd = os.memfd_create("recoverrun-bay", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    except OSError:
        os.close(fd)
        raise
    return fd


def is_sealed(fd: int) -> bool:
    """True if nobody can change the size of this memory, so that reading it is never a SIGBUS."""
    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALS == SEALS
    except OSError:
        return False  # It is a file of another kind.


def number_of(fd: int) -> int:
    """The number that tells this memory from all other that exists on this machine."""
    return os.fstat(fd).st_ino


def header_of(fd: int) -> BayHeader | None:
    """The header in this bay, None if it has none."""
    return parse(os.pread(fd, HEADER_BYTES, 0), os.fstat(fd).st_size)


def sums_of(fd: int, header: BayHeader) -> list[int] | None:
    """The checksums of its parts, None if they are not there."""
    return parse_sums(os.pread(fd, sums_bytes(header.content), PAGE), header)


def take_header(fd: int) -> None:
    """Take the header away: from now on the bay has no content."""
    os.pwrite(fd, NO_HEADER, 0)


def map_to_write(fd: int) -> mmap.mmap:
    """Map all of it. Raises OSError."""
    mapped = mmap.mmap(fd, os.fstat(fd).st_size)
    mapped.madvise(mmap.MADV_DONTDUMP)
    mapped.madvise(mmap.MADV_DONTFORK)
    return mapped


def map_to_read(fd: int) -> mmap.mmap:
    """Map all of it. Raises OSError."""
    mapped = mmap.mmap(fd, os.fstat(fd).st_size, prot=mmap.PROT_READ)
    mapped.madvise(mmap.MADV_DONTDUMP)
    mapped.madvise(mmap.MADV_DONTFORK)
    return mapped


def read(fd: int, offset: int, into: memoryview) -> None:
    """Fill `into` from there on, while other threads of Python run. Raises OSError."""
    left = into.cast("B")
    while left.nbytes:
        done = os.preadv(fd, [left], offset)
        if not done:
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
        left, offset = left[done:], offset + done


def touch(fd: int, mapped: mmap.mmap) -> None:
    """Take all pages now, for this process: the first use of memory is what costs.

    Raises OSError where there are not so many.
    """
    os.posix_fallocate(fd, 0, len(mapped))
    try:
        mapped.madvise(POPULATE_WRITE)
    except OSError:
        pass  # An older kernel: pages are mapped as they are written to.


def allow_writing(mapped: mmap.mmap, *, allowed: bool, most: int | None = None) -> None:
    """Let this process write there or not: then a stray write is a fault where it happens. The
    first `most` bytes, and what else is in their last page; None: all of it.

    Takes 35 ms of CPU for each GB whose pages are there. What other threads map meanwhile waits for
    one STRIDE of it at most.
    """
    prot = mmap.PROT_READ | (mmap.PROT_WRITE if allowed else 0)
    first = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    libc = ctypes.CDLL(None, use_errno=True)
    end = len(mapped) if most is None else min(most, len(mapped))
    for begin in range(0, end, STRIDE):
        size = ctypes.c_size_t(min(STRIDE, end - begin))
        if libc.mprotect(ctypes.c_void_p(first + begin), size, prot) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
