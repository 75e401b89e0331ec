"""Values beyond those of Python's own scalars: queues, sets, and what numpy computes."""

import enum
import math
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

import msgpack
import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recoverrun.worker.context.fingerprints import FEW, SMALL_ARRAY_BYTES, is_bulk, mark_of, marks
from recoverrun.worker.context.slot_context import values_of
from recoverrun.worker.context.values import (
    DEPTH,
    LONG_SEQUENCE,
    bits,
    copied,
    is_kept,
    is_simple,
    pack,
    put,
    same,
    unpack,
)
from tests.unit.parameter_ids import without_address


class Color(enum.Enum):
    """Members that say to be the same, under one name."""

    RED = (1, 0.5)
    BLUE = (2, 0.5)

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "a color"


class Level(enum.IntEnum):
    LOW = 1


class Ways(enum.Flag):
    LEFT = 1
    RIGHT = 2


def _made_in_a_function() -> Any:
    class Color(enum.Enum):
        RED = 1

    return Color.RED


def through(value: Any) -> Any:
    return unpack(msgpack.unpackb(msgpack.packb(pack(value)), strict_map_key=True))


NAN_WITH_A_PAYLOAD = numpy.frombuffer(struct.pack("<Q", 0x7FF8_0000_0000_0007), "<f8")[0]

VALUES: dict[str, Any] = {
    "queue": deque([1, 2.5, "x"]),
    "bounded queue": deque([1, 2], maxlen=3),
    "empty bounded queue": deque([], maxlen=0),
    "queue of queues": deque([deque([1], 1), (2, [3])]),
    "set": {1, "a", (2, None)},
    "empty set": set(),
    "array": numpy.arange(6, dtype=numpy.int32).reshape(2, 3),
    "turned": numpy.arange(6.0).reshape(2, 3).T,
    "every other": numpy.arange(10)[::2],
    "fortran": numpy.asfortranarray(numpy.arange(6.0).reshape(2, 3)),
    "big end first": numpy.array([1, 2], ">i4"),
    "no elements": numpy.empty((0, 3), numpy.int8),
    "no dimensions": numpy.array(1.5),
    "number": numpy.float32(0.1),
    "count": numpy.int64(-(1 << 63)),
    "unsigned": numpy.uint64((1 << 64) - 1),
    "flag": numpy.bool_(True),
    "complex": numpy.complex64(1 - 2j),
    "half": numpy.float16(0.1),
    "no number": numpy.float64("nan"),
    "another one": NAN_WITH_A_PAYLOAD,
    "minus nothing": numpy.float32(-0.0),
    "numbers in a queue": deque([numpy.float64(2.5), numpy.arange(2)], 2),
    "set of numbers": {numpy.int8(1), numpy.float32(0.5)},
    "member": Color.RED,
    "members within": [(Color.RED, {Level.LOW, 1}, {(Color.BLUE, 2)}), deque([Color.BLUE])],
    "one of flags": Ways.LEFT,
    "tensor in a queue": [deque([torch.ones(2)])],
}
values = pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
simple = pytest.mark.parametrize(
    "value", [v for n, v in VALUES.items() if "tensor" not in n], ids=list(VALUES)[:-1]
)


# --------------------------------------------------------------------------- travel


@values
def test_a_value_travels_with_its_kind(value: Any) -> None:
    arrived = through(value)

    assert same(value, arrived) and bits(value) == bits(arrived)
    assert getattr(arrived, "maxlen", None) == getattr(value, "maxlen", None)
    assert getattr(arrived, "dtype", None) == getattr(value, "dtype", None)
    assert getattr(arrived, "shape", None) == getattr(value, "shape", None)


@simple
def test_a_value_is_captured_and_the_script_may_change_its_own(value: Any) -> None:
    (kept,) = values_of({"value": value}).values()

    assert is_kept(type(value)) and same(kept, value)


@pytest.mark.parametrize("dtype", "?bBhHiIqQefdFD")
def test_what_arrives_can_be_written_to(dtype: str) -> None:
    arrived = through(numpy.zeros(3, dtype))

    arrived += numpy.ones(3, dtype)

    assert arrived.all()


leaves = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 63), (1 << 63) - 1), st.floats(), st.text(),
    st.integers(-128, 127).map(numpy.int8), st.floats(width=32).map(numpy.float32),
)  # fmt: skip
nested = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.lists(inner, max_size=4).map(deque),
        st.lists(inner, max_size=4).map(lambda ones: deque(ones, 4)),
    ),
    max_leaves=8,
)


@given(nested)
def test_values_within_values_travel_and_are_copied(value: Any) -> None:
    assert same(through(value), value)
    assert same(copied(value), value)


@pytest.mark.parametrize(
    "body",
    [
        {"s": [[1]]}, {"s": 3}, {"d": 3}, {"d": [1]}, {"d": ["x", []]}, {"d": [-1, []]},
        {"n": ["O", [1], b"x" * 8]}, {"n": ["<U1", [1], b"x" * 4]}, {"n": ["f4,f4", [1], b"x" * 8]},
        {"n": ["<f4", [2], b"x" * 4]}, {"n": ["<f4", [1], b"x" * 3]}, {"n": ["<f4", None, b""]},
        {"n": ["nonsense", [1], b"x"]}, {"n": [5, [1], b"x"]}, {"n": ["<f4", [1], "text"]}, {},
        {"e": [__name__, "Color", "GREEN"]}, {"e": [__name__, "Color", "__init__"]}, {"e": []},
        {"e": [__name__, "Colour", "RED"]}, {"e": ["not_loaded", "Color", "RED"]}, {"e": 3},
        {"e": [__name__, "through", "RED"]}, {"e": ["enum", "Enum", "RED"]}, {"e": [[], "C", "R"]},
        {"n": ["|i1", [1 << 62], 1 << 62]}, {"T": ["int8", [1 << 62], 1 << 62]},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_value_is_an_error_that_a_context_expects(body: Any) -> None:
    with pytest.raises((ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)):
        unpack(body)


# --------------------------------------------------------------------------- what is captured


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = deque([value])
    return value


@pytest.mark.parametrize(
    ("value", "captured"),
    [
        (deque(range(LONG_SEQUENCE)), True), (deque(range(LONG_SEQUENCE + 1)), False),
        (set(range(LONG_SEQUENCE)), True), (set(range(LONG_SEQUENCE + 1)), False),
        (deep(DEPTH), True), (deep(DEPTH + 1), False), ({b"x"}, False), (deque([{}]), False),
        (frozenset({1}), False), ({1 << 64}, False),
        (numpy.zeros(SMALL_ARRAY_BYTES, numpy.int8), True),
        (numpy.zeros(SMALL_ARRAY_BYTES + 1, numpy.int8), False),
        (numpy.array([None]), False), (numpy.array(["x"]), False),
        (numpy.array(["2020-01-01"], "M8[D]"), False), (numpy.datetime64(0, "s"), False),
        (Ways.LEFT | Ways.RIGHT, False), (_made_in_a_function(), False),
        (numpy.zeros(1, "i4,f4"), False), (numpy.ma.array([1]), False), (numpy.str_("x"), False),
    ],
    ids=lambda value: f"{type(value).__name__} {str(value)[:20]}",
)  # fmt: skip
def test_what_would_not_come_back_is_not_captured(value: Any, captured: bool) -> None:
    assert bool(values_of({"value": value})) == captured
    assert is_simple(value) == captured


# --------------------------------------------------------------------------- comparison


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (deque([1]), [1]), (deque([1]), deque([True])), (deque([1, 2]), deque([1])),
        ({1}, [1]), ({1}, {2}), ({1}, {1, 2}),
        (numpy.float64(1), 1.0), (numpy.float64(1), numpy.float32(1)),
        (numpy.array(1.0), numpy.float64(1)), (numpy.array([1]), numpy.array([[1]])),
        (numpy.array([1], "i4"), numpy.array([1], "u4")),
        (numpy.float64(0.0), numpy.float64(-0.0)),
        (numpy.float64("nan"), NAN_WITH_A_PAYLOAD),
        ([numpy.array([1, 2])], [numpy.array([1, 3])]),
        ({1}, {True}),
        ({1}, {1.0}),
        (Color.RED, Color.BLUE), (Level.LOW, 1), ([Color.RED], [Color.BLUE]),
        ({Color.RED}, {Color.BLUE}), ({(Color.RED, 1)}, {(Color.BLUE, 1)}),
        pytest.param(
            deque([1], 1), deque([1], 2),
        ),
    ],
    ids=repr,
)  # fmt: skip
def test_what_only_looks_the_same_is_not(one: Any, other: Any) -> None:
    assert not same(one, other) and not same(other, one)


def test_a_set_with_a_nan_is_the_same_as_itself_on_another_rank() -> None:
    assert same({math.nan}, through({math.nan}))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (deque([1], 1), deque([1], 2)), ({1}, {2}), ({1}, {True}),
        (Color.RED, Color.BLUE), ({Color.RED}, {Color.BLUE}), ([Color.RED], [Color.BLUE]),
        (numpy.float32(1), numpy.float32(2)), (numpy.array([1, 2]), numpy.array([2, 1])),
        pytest.param(
            [numpy.array([0.1])], [numpy.array([0.1 + 1e-12])],
        ),
        pytest.param(
            (numpy.zeros(2000, "i1"),), (numpy.bincount([1000], minlength=2000).astype("i1"),),
        ),
    ],
    ids=lambda value: repr(value)[:30],
)  # fmt: skip
def test_digests_tell_apart_what_is_not_the_same(one: Any, other: Any) -> None:
    assert bits(one) != bits(other)


def test_digests_of_a_set_are_those_of_its_elements_in_whatever_order() -> None:
    one, other = {"a", "b", 8, 0}, set[Any]()
    for element in (0, 8, "b", "a"):
        other.add(element)

    assert bits(one) == bits(other)


# --------------------------------------------------------------------------- what is put


@pytest.mark.parametrize(
    ("value", "change"),
    [
        (deque([1], 2), lambda one: one.append(2)),
        (deque([[1]]), lambda one: one[0].append(2)),
        ({1}, lambda one: one.add(2)),
        (numpy.zeros(2), lambda one: one.fill(1)),
        (numpy.array(1.0), lambda one: one.fill(2)),
        ([numpy.zeros(2)], lambda one: one[0].fill(1)),
        ((deque([1]),), lambda one: one[0].clear()),
    ],
    ids=without_address,
)
def test_what_is_put_may_change_without_changing_what_was_captured(
    value: Any, change: Callable[[Any], None]
) -> None:
    before, names = through(value), dict[str, Any]()

    put(names, "value", value)
    assert same(names["value"], value)
    change(names["value"])

    assert same(value, before) and not same(names["value"], before)


def test_a_copy_of_a_queue_is_as_long_as_it_may_be() -> None:
    assert copied(deque([1, 2], 2)).maxlen == 2


# --------------------------------------------------------------------------- marks


@pytest.mark.parametrize(
    "make",
    [
        lambda start: deque(range(start, start + FEW + 1)),
        lambda start: {f"{key}": key for key in range(start, start + FEW + 1)},
        lambda start: dict.fromkeys(range(start, start + FEW + 1), "same"),
        lambda start: dict.fromkeys(range(FEW + 1), start),
        lambda start: numpy.arange(start, start + SMALL_ARRAY_BYTES),
    ],
    ids=["queue", "entries", "keys", "values of entries", "array"],
)
def test_long_data_have_marks_that_tell_others_apart(make: Callable[[int], Any]) -> None:
    found = marks({"data": make(0)}, SMALL_ARRAY_BYTES)

    assert found == {"data#": mark_of(make(0))} and found["data#"]
    assert mark_of(make(1)) != found["data#"]
    assert values_of({"data": make(0)}) == {}


def test_kinds_are_told_apart_by_their_marks() -> None:
    assert mark_of(deque(range(FEW + 1))) != mark_of(list(range(FEW + 1)))


@pytest.mark.parametrize(
    "value",
    [
        deque(range(FEW)), dict.fromkeys(range(FEW)), [1] * FEW,
        numpy.zeros(SMALL_ARRAY_BYTES, numpy.int8), numpy.zeros(()), numpy.float64(1),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_small_data_are_values_and_no_marks(value: Any) -> None:
    assert marks({"data": value}, 1 << 20) == {} and not is_bulk(value, 1 << 20)


@pytest.mark.parametrize("value", [deque([[]] * 99), {n: [] for n in range(99)}], ids=["q", "d"])
def test_long_data_of_other_things_have_no_mark(value: Any) -> None:
    assert marks({"data": value}, 0) == {}


def test_an_array_that_maps_a_file_is_marked_however_small(tmp_path: Any) -> None:
    mapped = numpy.memmap(tmp_path / "rows", numpy.int8, "w+", shape=(4,))

    assert values_of({"rows": mapped}) == {} and "rows#" in marks({"rows": mapped}, 1 << 12)


def test_a_member_that_arrives_is_the_very_one() -> None:
    assert through(Color.BLUE) is Color.BLUE and through(Level.LOW) is Level.LOW
    assert through([Color.BLUE])[0] is Color.BLUE and copied((Color.RED,))[0] is Color.RED


def test_a_class_that_has_taken_the_place_of_another_has_none_of_its_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = Color.RED

    monkeypatch.setitem(globals(), "Color", _made_in_a_function().__class__)

    assert not is_simple(held) and values_of({"value": held}) == {}
