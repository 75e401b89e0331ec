"""Tensors that may change before the fence are copied at once, however they lie in memory; the
keeper is asked for a bay by the thread.
"""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from recoverrun.worker.snapshots.begun_snapshot import MOST_APART, BegunSnapshot, copy_now
from recoverrun.worker.snapshots.piece_layout import Layouts
from recoverrun.worker.snapshots.piece_table import PROOF_BYTES, RankImage
from recoverrun.worker.snapshots.unchanged_tensors import SMALL_BYTES, sum_of

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

    copy_now([(64, tensor)], memoryview(memory))

    plain = tensor.detach().resolve_conj().contiguous()
    assert memory[64:] == plain.numpy().tobytes()
    assert not any(memory[:64])


def test_nothing_is_written_behind_the_memory() -> None:
    memory = bytearray(64)

    with pytest.raises(ValueError):
        copy_now([(48, ROWS)], memoryview(memory))

    assert not any(memory)


class Keeper:
    """Gives a bay to whoever asks for it."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, ...]] = []
        self.memory = bytearray(SMALL_BYTES << 1)

    def reserve(self, *wanted: int, opened: int | None = None) -> Any:
        self.asked.append(wanted)
        return SimpleNamespace(memory=memoryview(self.memory), open=lambda: None)


SMALL = torch.arange(4.0)


def begun(later: torch.Tensor, *, first: torch.Tensor = SMALL) -> BegunSnapshot:
    image = RankImage({"step": 7}, [first, later], ["first", "later"])
    return BegunSnapshot(7, image, Layouts().of(image, frozenset({"later"})), 3)


def large() -> torch.Tensor:
    return torch.randn(SMALL_BYTES // 4)


def test_the_thread_asks_the_keeper_and_packs_what_is_told() -> None:
    keeper, tensor = Keeper(), large()
    taking = begun(tensor)

    taking.begin(cast(Any, keeper))
    asked = list(keeper.asked)
    taking.copy(cast(Any, keeper), lambda: None)

    notes = len(taking.layout.table) + len(taking.told) + PROOF_BYTES
    assert not asked and keeper.asked == [(taking.layout.nbytes, notes, 3)]
    assert taking.told == taking.image.packed()
    assert keeper.memory[:16] == SMALL.numpy().tobytes()
    assert keeper.memory[64 : 64 + tensor.nbytes] == tensor.numpy().tobytes()
    assert not taking.moved() and len(taking.bay.memory) == len(keeper.memory)


def test_much_that_is_copied_at_once_has_no_second_place() -> None:
    keeper = Keeper()
    keeper.memory = bytearray(2 * MOST_APART)
    taking = begun(large(), first=torch.zeros(MOST_APART // 4 + 1))

    taking.begin(cast(Any, keeper))

    assert keeper.asked and not taking.apart


@pytest.mark.parametrize("skipped", [0, 1])  # numbers before it in its memory
@pytest.mark.parametrize("copied_first", [True, False])
def test_a_copy_made_before_the_tensor_changed_is_as_it_was(
    copied_first: bool, skipped: int
) -> None:
    keeper, tensor = Keeper(), torch.randn(SMALL_BYTES // 4 + 1)[skipped:]
    taking, at_top = begun(tensor), sum_of(tensor)
    taking.begin(cast(Any, keeper))

    if copied_first:
        taking.copy(cast(Any, keeper), lambda: None)
    tensor[5] += 1
    if not copied_first:
        taking.copy(cast(Any, keeper), lambda: None)

    assert taking.moved() == ["later"]
    assert taking.is_as_it_was("later", at_top) == copied_first


def test_what_is_written_through_data_is_seen_though_nothing_counts_it() -> None:
    keeper, tensor = Keeper(), large()
    taking = begun(tensor)
    taking.begin(cast(Any, keeper))

    tensor.data.mul_(0.9)

    assert taking.moved() == ["later"]
