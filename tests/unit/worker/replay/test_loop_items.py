"""Items of a loop that no source of data has given are another rank's as long as they are those
that ranks told each other of.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.replay.loop_items import LoopItems

REGION = "train.py:9"


def item_of(items: LoopItems, *, told: bool, proves: bool = False, fresh: bool = False) -> Any:
    top: Any = SimpleNamespace(item=[["a"]], draws=[], ahead=[], loop=SimpleNamespace(id=REGION))
    return items.of(top, 1, told=told, proves=proves, fresh=fresh)


def test_items_that_were_made_anew_are_nobody_s_that_is_known() -> None:
    items = LoopItems()
    item_of(items, told=True, proves=True)

    assert item_of(items, told=True) == [["a"]]
    assert item_of(items, told=False, fresh=True) == [["a"]]
    with pytest.raises(NotReplayable, match=f"^the loop at {REGION} goes through data that were"):
        item_of(items, told=False)


def test_items_that_are_alike_on_all_ranks_may_be_made_anew() -> None:
    items = LoopItems()
    item_of(items, told=False, proves=True)

    assert item_of(items, told=False) == item_of(items, told=True) == [["a"]]
