"""Iterable data sets that are made anew, of which ranks hold shares."""

from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader, IterableDataset

from recoverrun.worker.data.loader_iterator import LoaderIterator
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.replay.constant_leaves import Leaf, digest_of
from recoverrun.worker.replay.data_set_shares import DataSetShares
from tests.unit.loaders import ORIGINAL_ITER, Play


class Parts(IterableDataset[Any]):
    def __init__(self, files: list[str]) -> None:
        self.files, self.rank, self.inner = files, 0, {"deep": [files]}

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)


def through(data: Parts) -> LoaderIterator:
    return LoaderIterator(loader=DataLoader(data), make=ORIGINAL_ITER, runtime=Play(), number=0)


def apart(held: Any, key: Any, *values: Any) -> Any:
    """A value in `held`, and that of each rank, ours first."""
    leaf = Leaf(str(key), held, key, owner=id(held))
    return leaf, digest_of(values[0]), dict(enumerate(values))


def nobody(name: str) -> bool:
    """No rank owns what an attribute is made of."""
    return False


def learned(data: Parts, *differing: Any) -> DataSetShares:
    shares = DataSetShares()
    shares.learn([through(data)], differing)
    return shares


def test_of_the_same_share_a_new_data_set_is_another_ranks_by_what_that_has_told() -> None:
    data = Parts(["a"])
    shares = learned(data, apart(vars(data), "files", ["a"], ["b"]))

    assert shares.of(1, Parts(["a"]), {"files": ["a"]}, nobody) == {"files": ["b"]}
    assert shares.of(1, data, {"files": ["a"]}, nobody) == {}, "others put these in place"


def test_of_another_share_nobody_knows_another_ranks() -> None:
    data = Parts(["a"])
    shares = learned(data, apart(vars(data), "files", ["a"], ["b"]))

    with pytest.raises(NotReplayable, match="Parts was made anew with another files"):
        shares.of(1, Parts(["c"]), {"files": ["c"]}, nobody)
    with pytest.raises(NotReplayable, match="made anew"):
        shares.of(1, Parts(["c"]), {}, nobody)


def test_a_share_that_lies_deeper_is_not_known_of_a_new_data_set() -> None:
    data = Parts(["a"])
    shares = learned(data, apart(data.inner["deep"], 0, "a", "b"))

    with pytest.raises(NotReplayable, match="another inner"):
        shares.of(1, Parts(["a"]), {"inner": data.inner}, nobody)


def test_a_rank_that_a_data_set_carries_is_replaced_in_each_of_them() -> None:
    data = Parts(["a"])
    shares = learned(data, apart(vars(data), "rank", 0, 1))

    assert shares.of(1, Parts(["a"]), {"rank": 5}, nobody) == {}


def test_ranks_that_were_found_to_hold_the_same_are_taken_to_do_so() -> None:
    data = Parts(["a"])
    shares = learned(data, apart({"x": 1}, "x", 1, 2))

    assert shares.of(1, Parts(["c"]), {"files": ["c"]}, nobody) == {}


@pytest.mark.parametrize("now", [["c"], 7])
def test_what_all_held_alike_and_is_another_now_is_unknown_if_ranks_own_what_it_is_made_of(
    now: Any,
) -> None:
    data = Parts(["a"])
    shares = learned(data)

    assert shares.of(1, Parts(["a"]), {"files": ["a"]}, lambda name: True) == {}
    assert shares.of(1, Parts([]), {"files": now}, nobody) == {}, "it changes alike on all ranks"
    with pytest.raises(NotReplayable, match="with another files"):
        shares.of(1, Parts([]), {"files": now}, lambda name: name == "files")


def test_a_part_of_a_loader_is_known_if_it_was_there_as_ranks_told_each_other() -> None:
    data = Parts(["a"])
    shares = DataSetShares()
    shares.learn([through(data)], [], {__name__})

    assert shares.knows(data) and not shares.knows(Parts(["a"]))
