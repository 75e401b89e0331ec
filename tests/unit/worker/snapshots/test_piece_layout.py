"""A layout is kept as long as it is right: no other tensors, shapes, kinds or names."""

from collections.abc import Callable

import pytest
import torch

from recoverrun.worker.snapshots.piece_layout import Layouts, PieceLayout
from recoverrun.worker.snapshots.piece_table import RankImage, packed_table, placed
from recoverrun.worker.snapshots.unchanged_tensors import SMALL_BYTES

WAITS = frozenset({"weight", "bias", "nothing"})


def image(weight: torch.Tensor | None = None, name: str = "weight") -> RankImage:
    large = torch.zeros(128, SMALL_BYTES // 512) if weight is None else weight
    return RankImage({}, [torch.zeros(4), large], ["bias", name])


def test_what_is_large_and_waits_is_copied_later() -> None:
    one = image()

    layout = Layouts().of(one, WAITS)

    assert (layout.at_once, layout.later) == ([0], [1])
    places, nbytes, first = placed(one, {1})
    assert layout == PieceLayout(places, [0], [1], nbytes, first, packed_table(places))


def test_the_same_tensors_with_other_elements_have_the_same_layout() -> None:
    layouts = Layouts()

    first, second = (layouts.of(image(), WAITS) for _ in range(2))

    assert first is second


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda one: one.view(-1), id="shape"),
        pytest.param(lambda one: one.view(torch.int32), id="kind"),
        pytest.param(lambda one: one.t().contiguous().t(), id="order in memory"),
        pytest.param(lambda one: torch.complex(one, one).imag, id="no memory of its own"),
    ],
)
def test_another_tensor_has_another(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    layouts, other = Layouts(), image(change(image().tensors[1]))
    before = layouts.of(image(), WAITS)

    after = layouts.of(other, WAITS)

    assert after is not before and after == Layouts().of(other, WAITS)


def test_another_name_or_others_that_wait_have_another() -> None:
    layouts = Layouts()
    before = layouts.of(image(), WAITS)

    assert layouts.of(image(name="moments"), WAITS).later == []
    assert layouts.of(image(), WAITS) == before
    assert layouts.of(image(), frozenset()).later == []
