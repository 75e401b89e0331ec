"""Variables of loops that hold an object which has another name."""

from collections.abc import Iterator
from typing import Any

import msgpack
import pytest

from recoverrun.worker.arrival import other_names
from recoverrun.worker.arrival.frame_variables import FrameVariables
from recoverrun.worker.context.object_graph import holdings

OWN = frozenset({__name__})
LOOPS = ("train.py:7",)


class Meter:
    def __init__(self) -> None:
        self.inner: Any = None


class Another:
    pass


def moved(
    donor: dict[str, Any], newcomer: dict[str, Any], names: tuple[str, ...], *, module: bool = False
) -> dict[str, Any]:
    """The variables `names` of loops in a newcomer, as told of a donor."""

    def look(variables: dict[str, Any]) -> Any:
        last = frozenset(names)
        return holdings([variables], OWN, idle_hooks=False, last=last), [("<main>", variables)]

    held = {name: donor[name] for name in names}
    read = FrameVariables(LOOPS, {} if module else held, held if module else {})
    told = other_names.told([read], *look(donor), frozenset(names))
    told = msgpack.unpackb(msgpack.packb(told), raw=False)
    (found,) = other_names.found(told, *look(newcomer))

    assert found.loops == LOOPS
    assert (found.local if module else found.module) == {}
    return found.module if module else found.local


def meters() -> dict[str, Any]:
    first, second = Meter(), Meter()
    second.inner = Meter()
    return {"meters": [first, {"at": second}], "best": Meter(), "meter": None}


@pytest.mark.parametrize("module", [False, True])
@pytest.mark.parametrize(
    "place",
    [
        lambda there: there["meters"][0],
        lambda there: there["meters"][1]["at"],
        lambda there: there["meters"][1]["at"].inner,
        lambda there: there["best"],
    ],
)
def test_it_holds_what_lies_in_the_same_place(place: Any, module: bool) -> None:
    donor, newcomer = meters(), meters()
    donor["meter"] = place(donor)

    found = moved(donor, newcomer, ("meter",), module=module)

    assert found["meter"] is place(newcomer)


def test_where_an_object_of_another_class_lies_it_is_left_as_it_is() -> None:
    donor, newcomer = meters(), meters()
    donor["meter"], newcomer["best"] = donor["best"], Another()

    assert moved(donor, newcomer, ("meter",)) == {}


def test_what_only_variables_of_loops_hold_is_not_told() -> None:
    donor, newcomer = meters(), meters()
    donor["meter"] = donor["last"] = Meter()

    assert moved(donor, newcomer, ("last", "meter")) == {}


def test_iterators_and_values_have_ways_of_their_own() -> None:
    def numbers() -> Iterator[int]:
        yield 1

    donor: dict[str, Any] = {"kept": numbers(), "sizes": [1, 2]}
    donor |= {"batches": donor["kept"], "size": donor["sizes"], "one": 1}

    assert moved(donor, dict(donor), ("batches", "size", "one")) == {}
