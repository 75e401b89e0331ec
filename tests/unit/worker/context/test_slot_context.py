"""Contexts: what is captured, how it travels, and what differs between two of them."""

import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import msgpack
import numpy
import pytest
import torch

from recoverrun.worker.context import slot_context
from recoverrun.worker.context.slot_context import Context, values_of
from recoverrun.worker.context.values import put, same
from recoverrun.worker.data.iterator_origin import Origin
from recoverrun.worker.replay.known_state import differing
from recoverrun.worker.rng import object_generators
from recoverrun.worker.rng.streams import read_streams
from tests.unit.contexts import at


def through(names: dict[str, Any]) -> dict[str, Any]:
    return Context.unpack(at(3, names=names).pack()).names


VALUES = {
    "nothing": None,
    "flag": True,
    "count": -(1 << 63),
    "real": 0.1,
    "infinite": math.inf,
    "text": "λ",
    "pair": (1, ("a", None)),
    "list": [1, [2.5, False]],
    "empty": (),
}

TENSORS = {
    "float": torch.randn(2, 3),
    "turned": torch.randn(2, 3).t(),
    "scalar": torch.tensor(3),
    "none": torch.empty(0, 4, dtype=torch.int16),
    "half": torch.randn(5).to(torch.bfloat16),
    "bits": torch.tensor([True, False]),
    "complex": torch.randn(2, dtype=torch.complex64).conj(),
    "sliced": torch.arange(10)[::3],
}


# --------------------------------------------------------------------------- travel


def test_simple_values_travel_with_their_types() -> None:
    arrived = through(values_of(VALUES))

    assert arrived == VALUES
    assert all(type(arrived[name]) is type(VALUES[name]) for name in VALUES)


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_travel_bit_for_bit(name: str) -> None:
    arrived = through(values_of(TENSORS))[name]

    assert arrived.dtype == TENSORS[name].dtype
    assert torch.equal(arrived, TENSORS[name])


@pytest.mark.parametrize("kind", slot_context.KINDS)
def test_a_context_travels_whole(kind: slot_context.Kind) -> None:
    sent = at(
        7,
        2,
        kind,
        4,
        names={"seen": 3},
        attributes={("loader", "position"): 7, ("a", "b", "c"): (1, 2)},
        generators={"train.py:3#0": b"state"},
        loaders={
            4: Origin(streams=read_streams(), generators=(b"x",), subset_rows=(range(9),), rows=9)
        },
        alone_at=frozenset({"train.py:9"}),
    )

    arrived = Context.unpack(sent.pack())

    assert arrived == sent
    assert arrived.point == (7, 2, slot_context.KINDS.index(kind), 4)


def test_points_grow_as_a_transaction_goes_on() -> None:
    """Iterations that trained nothing, a microbatch, its backward, the next one, the next step."""
    course = [
        at(3, 0), at(3, 0, attempt=1), at(3, 0, "after"), at(3, 1), at(3, 1, "after"), at(4, 0)
    ]  # fmt: skip

    points = [one.point for one in course]

    assert points == sorted(set(points))


def test_values_are_variables_and_attributes_and_others_can_stand_in_their_place() -> None:
    mine = at(3, names={"rank": 0}, attributes={("loader", "at"): 3})
    assert mine.values == {"rank": 0, ("loader", "at"): 3}

    theirs = mine.with_values({"rank": 1, "more": 2, ("loader", "at"): 4})

    assert theirs.names == {"rank": 1, "more": 2}
    assert theirs.attributes == {("loader", "at"): 4}
    assert (theirs.point, theirs.streams) == (mine.point, mine.streams)
    assert mine.names == {"rank": 0}


def _legacy(bits: Any) -> Any:
    """With a normal number kept for later."""
    made = numpy.random.RandomState(bits)
    made.normal()
    return made


GENERATORS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "torch": (torch.Generator().manual_seed(5), lambda g: torch.rand(9, generator=g).tolist()),
    "python": (random.Random(6), lambda g: [g.gauss(0, 1) for _ in range(3)]),
    **{
        name: (numpy.random.Generator(bits(7)), lambda g: g.choice(99, 9, replace=False).tolist())
        for name, bits in {
            "PCG64": numpy.random.PCG64,
            "PCG64DXSM": numpy.random.PCG64DXSM,
            "MT19937": numpy.random.MT19937,
            "Philox": numpy.random.Philox,
            "SFC64": numpy.random.SFC64,
        }.items()
    },
    "half a word": (
        numpy.random.default_rng(8),
        lambda g: g.integers(0, 9, 3, dtype=numpy.uint32).tolist(),
    ),
    "legacy": (_legacy(None), lambda g: g.normal(size=3).tolist()),
    "legacy over Philox": (_legacy(numpy.random.Philox(9)), lambda g: g.normal(size=3).tolist()),
    "bits": (numpy.random.Philox(10), lambda g: g.random_raw(3).tolist()),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_generators_travel_as_their_state(name: str) -> None:
    generator, draw = GENERATORS[name]
    draw(generator)  # the next may be in the middle of something
    sent = at(3, generators={"train.py:3#0": object_generators.state_of(generator)})
    arrived = Context.unpack(sent.pack()).generators["train.py:3#0"]
    expected = draw(generator)

    object_generators.put_state(generator, arrived)

    assert draw(generator) == expected


def test_a_generator_is_not_given_the_state_of_another_kind() -> None:
    kinds = ("torch", "python", "PCG64", "MT19937", "legacy over Philox")
    for one, other in itertools.permutations(kinds, 2):
        state = object_generators.state_of(GENERATORS[other][0])
        with pytest.raises(ValueError):
            object_generators.put_state(GENERATORS[one][0], state)


def test_generators_are_no_values() -> None:
    """The registry knows them, wherever they are kept."""
    assert values_of({name: one for name, (one, _) in GENERATORS.items()}) == {}


def test_a_generator_without_a_state_is_none() -> None:
    assert not object_generators.is_generator(random.SystemRandom())
    assert all(object_generators.is_generator(one) for one, _ in GENERATORS.values())


def test_what_would_not_come_back_as_it_was_is_not_captured() -> None:
    names = {
        "bytes": b"x",
        "big": 1 << 64,
        "dictionary": {"a": 1},
        "mixed": [1, {"a": 1}],
        "undecodable": "\udc80",
        "grad": torch.ones(1, requires_grad=True),
        "sparse": torch.eye(2).to_sparse(),
        "meta": torch.empty(2, device="meta"),
        "large": torch.empty(slot_context.ATTRIBUTE_TENSOR_BYTES // 4 + 1),
        "__name__": "x",
    }

    assert values_of(names) == {}


def test_a_list_that_holds_itself_is_not_captured() -> None:
    endless: list[Any] = []
    endless.append(endless)

    assert values_of({"endless": endless}) == {}


def test_a_capture_does_not_change_with_the_script() -> None:
    losses, metric = [[1.0]], torch.zeros(2)
    kept = values_of({"losses": losses, "metric": metric})

    losses[0].append(2.0)
    metric += 1

    assert kept["losses"] == [[1.0]] and kept["metric"].tolist() == [0.0, 0.0]


def test_what_is_put_may_change_without_changing_the_context() -> None:
    value, names = [1.0], {}
    put(names, "losses", value)

    names["losses"].append(2.0)

    assert value == [1.0]


# --------------------------------------------------------------------------- hostile input


def _hostile() -> dict[str, bytes]:
    good = msgpack.unpackb(at(3, names={"t": torch.ones(2)}).pack())

    def with_name(value: Any) -> bytes:
        return bytes(msgpack.packb({**good, "names": {"t": value}}))

    deep: Any = 1
    for _ in range(600):
        deep = [deep]
    return {
        "nothing": b"",
        "half": at(3).pack()[:-3],
        "more": at(3).pack() + b"\x00",
        "text": b"hello",
        "number": msgpack.packb(7),
        "list": msgpack.packb([1, 2]),
        "bad unicode": b"\xa2\xff\xff",
        "no point": msgpack.packb({"loop": "train.py:1"}),
        "endless step": bytes(msgpack.packb({**good, "point": [math.inf, 0, 0, 0]})),
        "worded step": bytes(msgpack.packb({**good, "point": ["x", 0, 0, 0]})),
        "kind": bytes(msgpack.packb({**good, "point": [3, 0, 2, 0]})),
        "short point": bytes(msgpack.packb({**good, "point": [3, 0]})),
        "names": bytes(msgpack.packb({**good, "names": [1]})),
        "names of bytes": bytes(msgpack.packb({**good, "names": {b"x": 1}})),
        "streams": bytes(msgpack.packb({**good, "streams": 3})),
        "attributes": bytes(msgpack.packb({**good, "attributes": {"a": 1}})),
        "loaders": bytes(msgpack.packb({**good, "loaders": [[1, 2, 3]]})),
        "unmarked": with_name({"x": 1}),
        "deep": with_name(deep),
        "no dtype": with_name({"T": ["ones", [2], b"x" * 8]}),
        "dtype": with_name({"T": [5, [2], b"x" * 8]}),
        "shape": with_name({"T": ["float32", [3], b"x" * 8]}),
        "size": with_name({"T": ["float32", [2], b"x" * 7]}),
        "huge": with_name({"T": ["float32", [1 << 40], b""]}),
        "text for bytes": with_name({"T": ["float32", [2], "x" * 8]}),
        "two parts": with_name({"T": ["float32", [2]]}),
    }


@pytest.mark.parametrize("name", _hostile())
def test_what_is_no_context_is_a_value_error(name: str) -> None:
    with pytest.raises(ValueError):
        Context.unpack(_hostile()[name])


# --------------------------------------------------------------------------- differences


@pytest.mark.parametrize("value", [math.nan, (math.nan, 1), [math.nan], torch.tensor([math.nan])])
def test_a_nan_is_the_same_as_itself(value: Any) -> None:
    arrived = through(values_of({"value": value}))["value"]

    assert same(value, arrived)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True), (1, 1.0), ((1,), [1]), ((1, True), (True, 1)), (0, None),
        (torch.ones(1), torch.ones(1, dtype=torch.int64)), (torch.ones(2), torch.ones(1, 2)),
        (torch.ones(1), 1),
    ],
)  # fmt: skip
def test_what_only_looks_the_same_is_not(one: Any, other: Any) -> None:
    assert not same(one, other)


def test_what_differs_is_what_both_have_and_do_not_share() -> None:
    mine = at(
        3,
        names={"rank": 0, "step": 5, "mine": 1, "local_rank": 0, "device_id": 0},
        attributes={("loader", "at"): 3, ("loader", "gpu"): 0, ("loader", "n"): 8},
    )
    theirs = at(
        3,
        names={"rank": 1, "step": 5, "theirs": 1, "local_rank": 1, "device_id": 1},
        attributes={("loader", "at"): 4, ("loader", "gpu"): 1, ("loader", "n"): 8},
    )

    assert differing(theirs, mine) == {"rank": 1, ("loader", "at"): 4}
