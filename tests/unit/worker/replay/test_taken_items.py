"""Code that takes items for good is not executed as this rank once more."""

from typing import Any

import pytest

from recoverrun.worker.context.iterator_copy import copied_iterator
from recoverrun.worker.replay.taken_items import TakenForGood, require_put_back
from recoverrun.worker.tracking.microbatches import Top
from tests.unit.worker.replay.test_executor import Rank, Waiting

OWN = frozenset({Waiting.__module__})


def _top(rank: Rank, item: Any) -> Top:
    rank.runtime.own_modules = OWN
    rank.script.flat([item], lambda _: rank.backward(0))
    return rank.runtime.microbatches[-1].top


@pytest.mark.parametrize(
    ("rows", "refused"), [(iter([1, 2]), False), ((n for n in range(2)), True)]
)
def test_an_iterator_that_has_a_copy_is_none_of_these(rows: Any, refused: bool) -> None:
    rank = Rank()
    top = _top(rank, 0)
    top.iterators["batches", "rows"] = copied_iterator(rows)

    if not refused:
        require_put_back(top, rank.executor.influence, OWN)
        return
    with pytest.raises(TakenForGood, match=r"from batches\.rows cannot be put back"):
        require_put_back(top, rank.executor.influence, OWN)


@pytest.mark.parametrize("read", [True, False])
def test_a_queue_is_one_if_a_microbatch_reads_it(read: bool) -> None:
    rank = Rank()
    top = _top(rank, Waiting())
    if not read:
        rank.executor.influence.shown(top.loop.id, [("item", "items")])
        require_put_back(top, rank.executor.influence, OWN)
        return

    with pytest.raises(TakenForGood, match=r"from item\.items cannot be put back"):
        require_put_back(top, rank.executor.influence, OWN)
