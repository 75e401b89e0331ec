"""What of the script's iterators is told to a newcomer."""

import sys
from collections.abc import Iterator
from typing import Any

from recoverrun.worker.arrival.contents import Parcel
from recoverrun.worker.arrival.iterator_places import HeldIterator
from recoverrun.worker.arrival.parcel import _iterators
from recoverrun.worker.arrival.placing import put_iterators
from tests.unit.worker.arrival.test_iterator_places import a_loader_iterator, advanced, ahead

OWN = frozenset({__name__})


class Trainer:
    def __init__(self, batches: Iterator[Any]) -> None:
        self.batches = batches


def test_a_generator_that_an_attribute_holds_is_told_by_its_path_and_brought_there() -> None:
    trainer = Trainer(advanced(ahead(a_loader_iterator(5)), 2))
    told = [one for one in _iterators(sys._getframe(), OWN) if one[0] == ["trainer", "batches"]]
    held: list[tuple[HeldIterator, Any]] = []

    def hold(one: HeldIterator, present: Any, visible: Any) -> Any:
        held.append((one, present))
        return present

    put_iterators(Parcel({"iterators": [told]}, []), [sys._getframe()], hold)

    assert [(one.over, one.given, present) for one, present in held] == [(5, 3, trainer.batches)]
