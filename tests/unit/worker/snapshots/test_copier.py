"""A thread copies tensors in the order in which it is asked, and its errors are heard."""

import mmap
import threading

import pytest
import torch

from recoverrun.worker.snapshots.copier import (
    PART_BYTES,
    CopyThread,
    MemoryCopy,
    address_of,
    copy_all,
)


def test_tensors_lie_in_memory_as_they_are() -> None:
    tensors = [torch.randn(PART_BYTES // 4 + 3), torch.arange(5), torch.empty(0)]
    memory = memoryview(mmap.mmap(-1, sum(one.nbytes for one in tensors)))
    first, copies = address_of(memory), []
    for tensor in tensors:
        copies.append(MemoryCopy(tensor, first))
        first += tensor.nbytes
    copier = CopyThread()

    copier.ask(lambda: copy_all(copies))
    assert copier.rest(10.0)

    expected = b"".join(bytes(one.view(torch.uint8).numpy()) for one in tensors)
    assert bytes(memory) == expected


def test_whoever_waits_is_told_that_it_takes_too_long() -> None:
    copier, goes_on = CopyThread(), threading.Event()
    copier.ask(lambda: [None, goes_on.wait(10.0)][0])

    assert not copier.rest(0.01)
    goes_on.set()
    assert copier.rest(10.0)


def test_an_error_is_raised_where_the_script_waits_once() -> None:
    copier = CopyThread()

    def fail() -> None:
        raise OSError("no memory")

    copier.ask(fail)
    with pytest.raises(OSError, match="no memory"):
        copier.rest(10.0)

    assert copier.rest(10.0)


def test_half_of_the_parts_are_there_when_somebody_is_told_so() -> None:
    source = torch.ones(4 * PART_BYTES, dtype=torch.uint8)
    memory = memoryview(mmap.mmap(-1, source.nbytes))
    seen: list[int] = []

    copy_all(
        [MemoryCopy(source, address_of(memory))], lambda: seen.append(sum(memory[::PART_BYTES]))
    )

    assert seen == [2]
