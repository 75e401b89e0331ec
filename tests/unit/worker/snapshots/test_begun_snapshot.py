"""Tensors that may change before the fence are copied at once, however they lie in memory; the
keeper is asked for a bay by the thread.
"""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from recoverrun.worker.arrival.state_source import Piece
from recoverrun.worker.snapshots.begun_snapshot import MOST_APART, BegunSnapshot, copy_now
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


class Keeper:
    """Gives a bay to whoever asks for it."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, ...]] = []
        self.memory = bytearray(1 << 10)

    def reserve(self, *wanted: int, opened: int | None = None) -> Any:
        self.asked.append(wanted)
        return SimpleNamespace(memory=memoryview(self.memory), open=lambda: None)


def begun(*, learns: bool) -> BegunSnapshot:
    return BegunSnapshot(7, (88, 100, 3), b"", b"", learns=learns)


@pytest.mark.parametrize("learns", [False, True])
def test_the_script_waits_for_the_keeper_only_where_all_is_copied_at_once(learns: bool) -> None:
    keeper, taking = Keeper(), begun(learns=learns)
    row = ROWS[0].clone()

    taking.early(cast(Any, keeper), 64)[:4] = b"abcd"
    asked = list(keeper.asked)
    taking.add("row", row, 64)
    taking.copy(cast(Any, keeper), lambda: None)

    assert asked == ([(88, 100, 3)] if learns else [])
    assert keeper.asked == [(88, 100, 3)]
    assert keeper.memory[:4] == b"abcd" and keeper.memory[64:76] == row.numpy().tobytes()
    assert not taking.moved() and len(taking.bay.memory) == len(keeper.memory)


def test_much_that_is_copied_at_once_has_no_second_place() -> None:
    keeper, taking = Keeper(), begun(learns=False)

    taking.early(cast(Any, keeper), MOST_APART + 1)

    assert keeper.asked and not taking.apart
