"""The heap of a process that passes on parts of some megabytes, one after the other.

glibc asks the kernel for each block of that size anew and gives it back at once, so every part
begins with a thousand page faults, which cost more than copying it. What is freed is kept for the
next part here, until the process has none for a while. Another C library is left as it is.
"""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
"""Of `mallopt`."""

KEPT_BYTES = 256 << 20
"""So much may lie unused at the end of the heap before it is given back."""

HEAP_BLOCK_BYTES = 32 << 20
"""Blocks up to this size come from the heap: the most that glibc takes."""


def keep_freed() -> None:
    """Keep what is freed, from now on. Called before there are threads: all share one heap, as what
    one of them takes another one frees.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_ARENA_MAX, 1)
        libc.mallopt(M_MMAP_THRESHOLD, HEAP_BLOCK_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def give_back() -> None:
    """Give the kernel back what lies unused."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(ctypes.c_size_t(0))
