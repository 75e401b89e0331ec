"""Values of all kinds through msgpack and back, tensors beside them; and what is no manifest."""

import math
import os
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import msgpack
import numpy
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from recoverrun.worker.arrival.packing import (
    DEPTH,
    CannotTravel,
    Packing,
    pack,
    unpack,
)
from recoverrun.worker.arrival.sharded_tensors import LocalShard


def through(value: Any) -> Any:
    tensors: list[torch.Tensor] = []
    plain = pack(value, tensors)
    return unpack(msgpack.unpackb(msgpack.packb(plain), strict_map_key=True), tensors)


class Number(int):
    pass


class Tagged(torch.Tensor):
    pass


VALUES: dict[str, Any] = {
    "none": None,
    "flags": [True, False],
    "integers": [0, -1, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1],
    "large integers": [1 << 64, -(1 << 63) - 1, 1 << 5000, -(3**900)],
    "floats": [0.1, -0.0, math.inf, -math.inf],
    "complex": complex(-0.0, math.inf),
    "text": ["", "é", "日本", "\0"],
    "a file's name that is no text": os.fsdecode(b"a\xff"),
    "bytes": b"\0\xff",
    "tuples": ((), (1, [2, (3,)])),
    "dict of all keys": {1: "a", "1": "b", (1, "x"): [], None: {}, b"k": 1, 2.5: 2},
    "order of a dict": {"b": 1, "a": 2, "c": 3},
    "sets": [set(), {1, "a", (2, None)}, frozenset({frozenset({1}), 2})],
    "queue": deque([1, (2,)], maxlen=3),
    "queue without a bound": deque([]),
    "ordered": OrderedDict([("b", 1), ("a", OrderedDict())]),
    "counter": Counter("abca"),
    "defaults": defaultdict(list, {"a": [1]}),
    "no defaults": defaultdict(None, {"a": 1}),
    "size": [torch.Size([2, 3]), torch.Size([])],
    "dtypes": [torch.float32, torch.bfloat16, torch.bool, torch.complex64],
    "devices": [torch.device("cpu"), torch.device("cuda", 3), torch.device("meta")],
    "numpy numbers": [numpy.float32(0.1), numpy.int64(-5), numpy.bool_(True), numpy.float16(2)],
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_value_comes_back_equal_and_of_its_kind(value: Any) -> None:
    arrived = through(value)

    assert arrived == value
    assert kinds(arrived) == kinds(value)


def kinds(value: Any) -> Any:
    if isinstance(value, dict):
        found = [(kinds(key), kinds(one)) for key, one in value.items()]
        return type(value), getattr(value, "default_factory", None), found
    if isinstance(value, list | tuple | deque):
        return type(value), getattr(value, "maxlen", None), [kinds(one) for one in value]
    if isinstance(value, set | frozenset):
        return type(value), sorted(repr(kinds(one)) for one in value)
    return type(value)


def test_no_number_comes_back_as_no_number() -> None:
    assert math.isnan(through(math.nan))


ARRAYS = {
    "matrix": numpy.arange(6, dtype=numpy.int32).reshape(2, 3),
    "turned": numpy.arange(6.0).reshape(2, 3).T,
    "big end first": numpy.array([1, 2], ">i4"),
    "no elements": numpy.empty((0, 3), numpy.int8),
    "no dimensions": numpy.array(1.5),
    "flags": numpy.array([True, False]),
    "complex": numpy.array([1j], numpy.complex128),
}


@pytest.mark.parametrize("value", ARRAYS.values(), ids=ARRAYS)
def test_an_array_of_numpy_comes_back(value: Any) -> None:
    arrived = through({"a": [value]})["a"][0]

    assert type(arrived) is numpy.ndarray and arrived.dtype == value.dtype
    assert arrived.shape == value.shape and arrived.tobytes() == value.tobytes()


def test_arrays_are_refused_by_a_process_without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = pack(numpy.arange(3), [])
    monkeypatch.delitem(sys.modules, "numpy")

    with pytest.raises(ValueError, match="numpy"):
        unpack(plain, [])
    assert unpack(pack([1, (2,)], []), []) == [1, (2,)]


# ------------------------------------------------------------------------- tensors


def test_tensors_stand_beside_the_manifest() -> None:
    weight, tensors = torch.ones(2, 3), []
    plain = pack({"state": {0: {"exp_avg": weight, "step": torch.tensor(3.0)}}}, tensors)

    assert tensors[0] is weight and len(tensors) == 2 and tensors[1].shape == ()
    arrived = unpack(plain, [torch.zeros(2, 3), torch.tensor(4.0)])
    assert torch.equal(arrived["state"][0]["exp_avg"], torch.zeros(2, 3))
    assert arrived["state"][0]["step"] == 4.0


def test_a_tensor_that_is_met_twice_is_one_tensor_on_both_sides() -> None:
    shared, tensors = torch.ones(2), []
    packing = Packing(tensors)
    first, second = packing.pack([shared, (shared,)], "a"), packing.pack(shared, "b")

    assert tensors == [shared]
    one, (other,) = unpack(first, tensors)
    assert one is other is unpack(second, tensors)


def test_what_both_sides_have_is_that_of_the_other_side() -> None:
    """A group of an optimizer holds parameters, and a variable of the script the group."""
    there, here = ([nn.Parameter(torch.full((2,), value)) for _ in "ab"] for value in (1.0, 2.0))
    tensors: list[torch.Tensor] = []
    group = {"params": there, "lr": 0.1, "first": there[0].detach()}

    plain = Packing(tensors, there).pack(group)
    found = unpack(msgpack.unpackb(msgpack.packb(plain)), tensors, here=here)

    assert [id(one) for one in found["params"]] == [id(one) for one in here]
    assert len(tensors) == 1, "memory that is shared is not the same tensor"
    assert torch.equal(found["first"], there[0])


def test_a_list_of_tensors_that_was_begun_goes_on() -> None:
    tensors = [torch.ones(1), torch.ones(2)]

    plain = pack([tensors[1], torch.ones(3)], tensors)

    assert plain == [{"tensor": [1, False]}, {"tensor": [2, False]}] and len(tensors) == 3


def test_a_clone_in_the_place_of_a_tensor_changes_no_number() -> None:
    """A tensor that may move is cloned in the list, and may go; its memory becomes another's."""
    tensors: list[torch.Tensor] = []
    packing = Packing(tensors)
    for number in range(50):
        assert packing.pack(torch.ones(1)) == {"tensor": [number, False]}
        tensors[number] = tensors[number].clone()


def test_names_say_where_a_tensor_was_met() -> None:
    packing = Packing([torch.ones(1)])
    packing.pack({"state": {0: {"exp_avg": torch.ones(1)}}, "x": [(torch.ones(1),)]}, "adam")

    assert packing.names == ["tensor 0", "adam['state'][0]['exp_avg']", "adam['x'][0][0]"]


def test_a_leaf_comes_back_as_one_that_requires_a_gradient() -> None:
    leaf, tensors = torch.nn.Parameter(torch.ones(2)), []
    plain = pack([leaf, leaf], tensors)
    given = torch.zeros(2)
    arrived, again = unpack(plain, [given])

    assert arrived is again and arrived.requires_grad and arrived.is_leaf
    assert arrived.data_ptr() == given.data_ptr() and not given.requires_grad


def test_a_result_comes_back_without_its_graph() -> None:
    loss = torch.ones(2, requires_grad=True).sum()
    tensors: list[torch.Tensor] = []

    assert not unpack(pack(loss, tensors), [torch.zeros(())]).requires_grad
    assert tensors[0] is loss


def test_a_sharded_tensor_is_its_local_part() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        whole = distribute_tensor(torch.arange(4.0), DeviceMesh("cpu", [0]), [Shard(0)])
        tensors: list[torch.Tensor] = []
        arrived = unpack(pack({"w": [whole, whole]}, tensors), tensors)["w"]
    finally:
        dist.destroy_process_group()

    assert len(tensors) == 1 and type(tensors[0]) is torch.Tensor
    assert all(type(one) is LocalShard for one in arrived)
    assert arrived[0].tensor is arrived[1].tensor is tensors[0]


# ------------------------------------------------------------------- what cannot travel


def freed() -> torch.Tensor:
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


REFUSED: dict[str, tuple[Any, str]] = {
    "a generator": ((n for n in ()), "a generator"),
    "torch's generator": (torch.Generator(), "a Generator"),
    "an object": (object(), "an object"),
    "a function": (pack, "a function"),
    "a kind of integer": (Number(1), "a Number"),
    "a named tuple": (torch.ones(2).max(0), "a max"),
    "a module": (torch.nn.ReLU(), "a ReLU"),
    "a sparse tensor": (torch.eye(2).to_sparse(), "a tensor of layout sparse_coo"),
    "a tensor without data": (torch.ones(1, device="meta"), "a tensor on the meta device"),
    "a kind of tensor": (torch.ones(1).as_subclass(Tagged), "a Tagged"),
    "a tensor that was freed": (freed(), "a tensor without memory"),
    "objects of numpy": (numpy.array([None]), "a numpy value of object"),
    "dates of numpy": (numpy.datetime64("2020"), "a numpy value of datetime64[Y]"),
    "a factory": (defaultdict(lambda: 0), "a defaultdict of a factory of its own"),
}


@pytest.mark.parametrize(("value", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_travel_is_named_with_its_place(value: Any, said: str) -> None:
    with pytest.raises(CannotTravel) as caught:
        pack({"exp_avg": [0, 1, 2, (value,)]}, [], "state")

    assert caught.value.kind == said and caught.value.path == "state['exp_avg'][3][0]"
    assert str(caught.value) == f"state['exp_avg'][3][0]: {said} cannot travel"


def test_a_key_that_cannot_travel_is_named_as_one() -> None:
    with pytest.raises(CannotTravel, match=r"^value\['a'\]\.keys\(\): a Number"):
        pack({"a": {Number(1): 1}}, [])


def test_the_path_is_that_of_the_call_after_one_that_failed() -> None:
    packing = Packing([])
    for name in ("one", "two"):
        with pytest.raises(CannotTravel, match=rf"^{name}\[0\]: an object"):
            packing.pack([object()], name)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


def test_a_nest_has_a_greatest_depth_on_both_sides() -> None:
    assert through(nested(DEPTH)) == nested(DEPTH)
    with pytest.raises(CannotTravel, match="without an end"):
        pack(nested(DEPTH + 1), [])
    with pytest.raises(ValueError, match="without an end"):
        unpack({"tuple": [pack(nested(DEPTH), [])]}, [])


def test_a_list_that_holds_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)

    with pytest.raises(CannotTravel, match="without an end"):
        pack(endless, [])


# ---------------------------------------------------------------------- what is no manifest

MALFORMED: dict[str, Any] = {
    "no kind": {"thing": [1]},
    "two kinds": {"tuple": [], "set": []},
    "an empty map": {},
    "no parts": {"tuple": 5},
    "no entries": {"dict": [[1]]},
    "a key that is a list": {"dict": [[[1], 2]]},
    "a set of lists": {"set": [[1]]},
    "a tensor that is not there": {"tensor": [1, False]},
    "a tensor from the end": {"tensor": [-1, False]},
    "a tensor by a flag": {"tensor": [True, False]},
    "a gradient of integers": {"tensor": [0, True]},
    "a shard of nothing": {"shard": {}},
    "one that is not here": {"here": 0},
    "one that is here from the end": {"here": -1},
    "a size of text": {"torch.Size": ["a"]},
    "a function as dtype": {"dtype": "load"},
    "no device": {"device": ["nowhere", 0]},
    "an unknown factory": {"defaultdict": ["eval", []]},
    "an array of objects": {"numpy": {"n": ["|O", [1], b"12345678"]}},
    "an array of code": {"numpy": {"n": ["(1 2", [1], b"1"]}},
    "an array that is too short": {"numpy": {"n": ["<f8", [2], b"12345678"]}},
    "an array of as many bytes as a number says": {"numpy": {"n": ["|i1", [1 << 62], 1 << 62]}},
    "an empty number": {"numpy": {"n": ["<f8", None, b""]}},
    "a tensor in the manifest": {"numpy": {"T": ["float32", [1], b"1234"]}},
    "no number": {"int": "x"},
    "no text": {"str": b"\xff"},
    "an object": object(),
    "a tuple": (1,),
}


@pytest.mark.parametrize("plain", MALFORMED.values(), ids=MALFORMED)
def test_what_is_no_packed_value_is_a_value_error(plain: Any) -> None:
    with pytest.raises(ValueError):
        unpack({"tuple": [plain]}, [torch.ones(1, dtype=torch.int64)])


MARKS = (
    *("tuple", "torch.Size", "set", "frozenset", "dict", "OrderedDict", "Counter", "tensor"),
    *(
        "here",
        "shard",
        "int",
        "str",
        "complex",
        "deque",
        "defaultdict",
        "dtype",
        "device",
        "numpy",
        "n",
    ),
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=4)
    | st.binary(max_size=9)
    | st.sampled_from(["list", "cpu", "float32", "<f8", ">i4", "|b1"])
)
PLAIN = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(MARKS) | st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=20,
)
BODIES = st.dictionaries(st.sampled_from(MARKS), PLAIN, min_size=1, max_size=1)


@settings(max_examples=300, deadline=None)
@given(PLAIN | BODIES)
def test_whatever_arrives_is_a_value_or_a_value_error(plain: Any) -> None:
    try:
        unpack(plain, [torch.ones(2), torch.ones((), dtype=torch.int64)])
    except ValueError:
        pass


VALUE = st.recursive(
    LEAVES | st.integers() | st.complex_numbers(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=4)
        | st.lists(inner, max_size=4).map(deque)
    ),
    max_leaves=20,
)


@settings(max_examples=100, deadline=None)
@given(VALUE)
def test_any_value_comes_back(value: Any) -> None:
    arrived = through(value)

    assert repr(arrived) == repr(value) and kinds(arrived) == kinds(value)
