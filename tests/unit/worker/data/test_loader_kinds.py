"""The kinds of what loaders are made of."""

from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, Subset

from recoverrun.worker.data.loader_kinds import SEEDED, kinds_of

ROWS = list(range(8))
LOADER = "a loader of torch.utils.data.dataloader.DataLoader"


class Order:
    def __iter__(self) -> Any:
        return iter(ROWS)


def collated(first: int, rows: Any) -> Any:
    return [first, *rows]


def test_what_torch_alone_makes_has_no_kind_but_the_loader_and_its_data() -> None:
    assert kinds_of(DataLoader(ROWS, 4, shuffle=True)) == {
        LOADER: "DataLoader",
        "a loader of builtins.list": "list",
    }


def test_a_sampler_that_carries_a_rank_has_none_and_another_one_has() -> None:
    plain = kinds_of(DataLoader(ROWS)).keys()
    ranked = DistributedSampler(ROWS, 2, 1)  # type: ignore[arg-type, var-annotated]

    assert kinds_of(DataLoader(ROWS, sampler=ranked)).keys() == plain
    own = kinds_of(DataLoader(ROWS, sampler=Order()))
    assert own[f"a loader of {__name__}.Order"] == "Order"
    assert kinds_of(DataLoader(ROWS, sampler=[3, 5])).keys() == plain, "a list, as the data are"


def test_subsets_functions_and_generators_have_each_its_own() -> None:
    plain = kinds_of(DataLoader(ROWS))

    def more(data: Any = ROWS, **options: Any) -> list[str]:
        found = kinds_of(DataLoader(data, **options))
        return [found[kind] for kind in found.keys() - plain.keys()]

    assert more(Subset(ROWS, [1, 2])) == ["Subset"]  # type: ignore[arg-type]
    assert more(collate_fn=partial(collated, 1)) == ["DataLoader"], "to which it is given"
    assert more(shuffle=True, generator=torch.Generator()) == [SEEDED]
