"""What a fresh process keeps of its own where nobody knows what its slot had."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recoverrun.worker.arrival import placing
from recoverrun.worker.arrival.contents import Parcel
from recoverrun.worker.context.slot_context import Key
from recoverrun.worker.errors import NotReachable


def apart(*keys: Any) -> Parcel:
    return Parcel({"apart": list(keys)}, [])


def kept_through(parcel: Parcel, visible: dict[str, Any], change: Any) -> None:
    """Values of others are put in place between."""
    own: dict[Key, Any] = placing.own_values(parcel, visible)
    change()
    placing.put_values(visible, own, visible.__setitem__)


def test_what_ranks_had_otherwise_stays_its_own() -> None:
    loader = SimpleNamespace(position=64, step=0)
    visible: dict[str, Any] = {"loader": loader, "offset": 3, "noise": torch.ones(2)}

    def others() -> None:
        loader.position, loader.step = 0, 7
        visible["offset"] = 0
        visible["noise"] = torch.zeros(2)

    kept_through(apart(["loader", "position"], "offset", "noise"), visible, others)

    assert (loader.position, loader.step) == (64, 7)
    assert visible["offset"] == 3
    assert torch.equal(visible["noise"], torch.ones(2))


def test_a_container_is_filled_where_it_lies() -> None:
    seen = [1, 2]
    visible: dict[str, Any] = {"reader": SimpleNamespace(seen=seen)}

    def others() -> None:
        seen[:] = [5, 6, 7]

    kept_through(apart(["reader", "seen"]), visible, others)

    assert visible["reader"].seen is seen
    assert seen == [1, 2]


def test_what_is_not_there_and_marks_of_large_data_are_left_alone() -> None:
    visible: dict[str, Any] = {"x": 1}

    kept_through(apart("x#", "gone", ["nothing", "here"]), visible, lambda: None)

    assert visible == {"x": 1}


EMA = {f"average.ema.vars._modules['{n}'].bias": torch.full((2,), float(n)) for n in (0, 1)}


def left(*, mine: tuple[str, ...] = (), late: tuple[str, ...] = ()) -> set[str]:
    theirs = {**EMA, "teacher.bias": torch.ones(2)}
    here = {name: torch.zeros(2) for name in ("teacher.bias", *mine)}
    return set(placing.without_own(here, theirs, frozenset(late)))


def test_a_module_that_the_donor_alone_has_made_before_training_is_its_own() -> None:
    assert left() == {"teacher.bias"}


def test_what_was_made_later_or_is_there_in_part_is_everybody_s() -> None:
    first, second = EMA

    assert left(late=(second,)) == {"teacher.bias", second}
    assert left(mine=(first,)) == {"teacher.bias", first, second}


@pytest.mark.parametrize(
    ("mine", "theirs", "words"),
    [
        ((), ("ema.bias",), "rank 3 has ema.bias, and this process has none"),
        (("ema.bias",), (), "this process has ema.bias, and rank 3 has none"),
    ],
)
def test_who_lacks_a_module_is_named(
    mine: tuple[str, ...], theirs: tuple[str, ...], words: str
) -> None:
    with pytest.raises(NotReachable, match=f"untrained modules: {words}"):
        placing._fill(
            "untrained modules",
            {name: torch.zeros(2) for name in mine},
            {name: torch.zeros(2) for name in theirs},
            3,
        )
