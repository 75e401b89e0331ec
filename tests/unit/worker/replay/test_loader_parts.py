"""The parts of loaders that may be another rank's, and other ones in each pass."""

from functools import partial
from typing import Any

import pytest
from torch.utils.data import ConcatDataset, DataLoader, Dataset, DistributedSampler

from recoverrun.worker.analysis.moving_shares import BOTH, OWN
from recoverrun.worker.replay.loader_parts import moving_part, parts_of

PLACE = [0]
OWN_MODULES = frozenset({__name__})


class Rows(Dataset[int]):
    def __init__(self, rows: list[int], inner: Any = None) -> None:
        self.rows, self.inner = rows, inner

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> int:
        return self.rows[index] + PLACE[0] * len(str(partial))


def row(first: int, index: int) -> int:
    return first + index


class Text:
    """Labels of what the script would have."""

    def __init__(self, **moving: bool) -> None:
        self.moving = moving

    def held(self, kinds: list[str], attribute: str) -> int:
        return self._of(f"{kinds[0]}_{attribute}")

    def changed(self, attribute: str) -> int:
        return self._of(f"later_{attribute}")

    def given(self, kind: str) -> int:
        return self._of(kind)

    def reads(self, filename: str, line: int, name: str, asked: set[str]) -> int:
        assert filename == __file__
        self.asked = asked
        return self._of(name.strip("<>"))

    def methods(self, kinds: list[str], asked: set[str]) -> int:
        assert "PLACE" in asked and "partial" not in asked
        return self._of(f"{kinds[0]}_methods")

    def _of(self, name: str) -> int:
        return OWN | (BOTH if self.moving.get(name) else 0)


def found(loader: Any, *told: Any, **moving: bool) -> str:
    text: Any = Text(**moving)
    return moving_part(loader, OWN_MODULES, text, lambda part: any(part is one for one in told))


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("Rows_rows", "Rows.rows"),
        ("Rows_methods", "Rows"),
        ("row", "row"),
        ("partial", "partial"),
        ("lambda", "<lambda>"),
        ("ConcatDataset", "ConcatDataset"),
    ],
)
def test_the_part_that_moves_is_named(name: str, part: str) -> None:
    data = ConcatDataset([Rows([1]), Rows([2], {"deep": [partial(row, 3)]})])
    loader = DataLoader(data, collate_fn=lambda rows: rows)

    assert found(loader, **{name: True}).rpartition(".")[2] == part.rpartition(".")[2]
    assert not found(loader)


def test_of_what_ranks_have_told_only_what_is_written_later_moves() -> None:
    data = Rows([1])
    loader = DataLoader(data)

    assert found(loader, Rows_rows=True) == "Rows.rows"
    assert not found(loader, data, Rows_rows=True)
    assert found(loader, data, later_rows=True) == "Rows.rows"


def test_a_loader_of_bare_data_is_asked_for_itself() -> None:
    loader = DataLoader([1, 2])  # type: ignore[arg-type]

    assert found(loader, DataLoader=True) == "DataLoader"
    assert not found(loader, loader, DataLoader=True)
    assert not found(DataLoader(Rows([1])), DataLoader=True)


def test_what_samplers_carry_for_a_rank_is_known() -> None:
    data = Rows([1, 2])
    sampler = DistributedSampler(data, num_replicas=2, rank=1)

    parts = list(parts_of(DataLoader(data, sampler=sampler), OWN_MODULES))

    assert data in parts and sampler not in parts


def test_a_function_is_looked_into_for_others() -> None:
    held = Rows([3])
    loader = DataLoader(Rows([1], lambda number: held.rows[number]))

    assert any(part is held for part in parts_of(loader, OWN_MODULES))


def test_of_variables_around_a_function_those_are_asked_for_that_hold_data() -> None:
    first, text = [1], Text()
    loader = DataLoader(Rows([1]), collate_fn=lambda rows: [PLACE, first, row, rows])

    moving_part(loader, OWN_MODULES, text, lambda part: False)  # type: ignore[arg-type]

    assert text.asked == {"PLACE", "first"}
