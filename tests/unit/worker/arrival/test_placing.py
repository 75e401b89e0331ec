"""What a fresh process keeps of its own where nobody knows what its slot had."""

from types import SimpleNamespace
from typing import Any

import torch

from recoverrun.worker.arrival import placing
from recoverrun.worker.arrival.contents import Parcel
from recoverrun.worker.context.slot_context import Key


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
