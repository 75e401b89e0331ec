"""Tensors that may change before the fence are copied at once, however they lie in memory."""

import pytest
import torch

from recoverrun.worker.arrival.state_source import Piece
from recoverrun.worker.snapshots.begun_snapshot import copy_now
from recoverrun.worker.snapshots.piece_table import Placed

ROWS = torch.arange(6, dtype=torch.float32).reshape(2, 3)


@pytest.mark.parametrize(
    "tensor",
    [
        pytest.param(ROWS, id="as it is"),
        pytest.param(ROWS.t(), id="transposed"),
        pytest.param(torch.complex(ROWS, ROWS).conj(), id="conjugate"),
        pytest.param(torch.nn.Parameter(ROWS[1]), id="a part of another one"),
        pytest.param(torch.zeros(0), id="empty"),
    ],
)
def test_its_elements_are_copied(tensor: torch.Tensor) -> None:
    memory = bytearray(64 + tensor.nbytes)
    place = Placed(Piece("x", "", tuple(tensor.shape), tensor.nbytes), 64)

    copy_now([(place, tensor)], memoryview(memory))

    plain = tensor.detach().resolve_conj().contiguous()
    assert memory[64:] == plain.numpy().tobytes()
    assert not any(memory[:64])


def test_nothing_is_written_behind_the_memory() -> None:
    memory = bytearray(64)
    place = Placed(Piece("x", "float32", (2, 3), ROWS.nbytes), 48)

    with pytest.raises(ValueError):
        copy_now([(place, ROWS)], memoryview(memory))

    assert not any(memory)
