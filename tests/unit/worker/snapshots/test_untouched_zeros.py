"""Zeros that take no memory are tensors as any."""

import os
from pathlib import Path

import pytest
import torch

from recoverrun.worker.snapshots.unchanged_tensors import SMALL_BYTES
from recoverrun.worker.snapshots.untouched_zeros import untouched_zeros

SIDE = 4096


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    "like",
    [
        torch.ones(4),
        torch.ones(SMALL_BYTES, 2, dtype=torch.bfloat16),
        torch.ones(SMALL_BYTES, 3, dtype=torch.complex64).T,
        torch.ones(SMALL_BYTES, dtype=torch.bool),
    ],
    ids=["small", "half", "transposed", "bool"],
)
def test_they_are_like_any_zeros(like: torch.Tensor) -> None:
    found, usual = untouched_zeros(like), torch.zeros_like(like)

    assert torch.equal(found, usual)
    assert (found.dtype, found.stride()) == (usual.dtype, usual.stride())
    assert not found.requires_grad


def test_they_take_memory_once_they_are_written_to_and_give_it_back() -> None:
    like = torch.empty(SIDE, SIDE)
    before = _resident_bytes()

    found = untouched_zeros(like)
    untouched = _resident_bytes() - before
    found += 1
    written = _resident_bytes() - before
    del found
    after = _resident_bytes() - before

    assert untouched < like.nbytes // 4
    assert written > like.nbytes // 2
    assert after < like.nbytes // 4


def test_a_forked_child_has_zeros_of_its_own() -> None:
    found = untouched_zeros(torch.empty(SMALL_BYTES))

    child = os.fork()
    if child == 0:
        memory = found.numpy()
        memory[0] = 7.0
        os._exit(0)
    os.waitpid(child, 0)

    assert found[0].item() == 0.0
