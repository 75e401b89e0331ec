"""Values that never change come back as what they were, and nothing else is made of them."""

import enum
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import msgpack
import pytest

from recoverrun.worker.arrival.packing import CannotTravel, pack, unpack


class Color(enum.Enum):
    RED = (1, 0.5)


class Level(enum.IntEnum):
    LOW = 1


class Ways(enum.Flag):
    LEFT = 1
    RIGHT = 2


class Point(NamedTuple):
    x: float
    inner: tuple[int, ...] = ()


VALUES: dict[str, Any] = {
    "enums": [Color.RED, Level.LOW, {Color.RED: Level.LOW}, Ways.LEFT | Ways.RIGHT],
    "named tuples": [Point(0.5), Point(1.0, (1, 2))],
    "spans": [timedelta(1, 2, 3), timedelta(-1)],
    "times": [
        datetime(2026, 1, 2, 3, tzinfo=timezone(timedelta(hours=1))), date(2026, 1, 2), time(1, 2),
    ],
    "exact numbers": [Fraction(1, 3), Decimal("0.10")],
    "ranges": [range(0, 9, 2), slice(None, 3)],
    "paths": [Path("a/b"), Path("/"), PurePosixPath("c")],
}  # fmt: skip


def through(value: Any) -> Any:
    return unpack(msgpack.unpackb(msgpack.packb(pack(value, [])), strict_map_key=True), [])


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    arrived = through(value)

    assert arrived == value and list(map(type, arrived)) == list(map(type, value))


MALFORMED: dict[str, Any] = {
    "a call of nothing": {"range": []},
    "a class that is no tuple": {"namedtuple": ["os", "system", [1]]},
    "a module that is not here": {"namedtuple": ["nowhere", "Point", [1]]},
    "a class that is no enum": {"enum": ["collections", "deque", 1]},
    "no member": {"enum": [__name__, "Color", 7]},
}


@pytest.mark.parametrize("plain", MALFORMED.values(), ids=MALFORMED)
def test_what_is_no_such_value_is_a_value_error(plain: Any) -> None:
    with pytest.raises(ValueError):
        unpack(plain, [])


def test_a_class_that_no_module_names_cannot_travel() -> None:
    local = enum.Enum("Local", "ON")

    with pytest.raises(CannotTravel, match="a member of the enum Local"):
        pack(local.ON, [])  # type: ignore[attr-defined]
