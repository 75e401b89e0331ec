"""Values that a script changes in place are told wherever it keeps them, and put there again."""

import copy
from array import array
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from recoverrun.worker.arrival import loose_values, plain_values
from recoverrun.worker.arrival.packing import Packing, unpack
from recoverrun.worker.context.object_graph import holdings
from recoverrun.worker.errors import NotReachable

OWN = frozenset[str]()


class Script:
    """A function's variables, as a process has them before it trains."""

    def __init__(self, **variables: Any) -> None:
        self.variables = variables
        self.before = loose_values.marks(*self._seen())

    def _seen(self) -> tuple[Any, Any]:
        return holdings([self.variables], OWN), [("<train>", self.variables)]

    def told(self, *bound: str) -> bytes:
        self.packing = Packing([])
        there, spaces = self._seen()
        found = loose_values.told(there, spaces, self.before, frozenset(bound), self.packing)
        return bytes(msgpack.packb(found))

    def put(self, other: "Script", packed: bytes) -> None:
        """Put what `other` has told."""
        tensors = [one.clone() for one in other.packing.tensors]
        told = msgpack.unpackb(packed, raw=False)
        there, spaces = self._seen()
        values = [(path, name, unpack(plain, tensors)) for path, name, plain in told]
        loose_values.put(there, spaces, values)

    def changed_in_place(self, *bound: str, data: frozenset[int] = frozenset()) -> bytes:
        self.packing = Packing([])
        there, spaces = self._seen()
        found = loose_values.changed_in_place(
            there,
            spaces,
            before=self.before,
            bound=frozenset(bound),
            data=data,
            packing=self.packing,
        )
        return bytes(msgpack.packb(found))

    def put_in_place(self, other: "Script", packed: bytes) -> None:
        there, spaces = self._seen()
        told = msgpack.unpackb(packed, raw=False)
        values = [(path, name, unpack(one, other.packing.tensors)) for path, name, one in told]
        loose_values.put_in_place(there, spaces, values)


def train(script: Script) -> None:
    held = script.variables
    held["mean"].add_(1)
    held["averages"]["weight"].mul_(2)
    held["past"][3] = 7
    held["kept"]["rows"][5] = 9
    held["history"].extend((step, 0.5) for step in range(3000))


def fresh() -> Script:
    return Script(
        mean=torch.ones(5), averages={"weight": torch.ones(5000)}, past=np.zeros(40),
        kept={"rows": np.zeros(2000)}, history=[], data=torch.randn(5000), args={},
    )  # fmt: skip


def test_all_of_it_is_as_it_was() -> None:
    first, second = fresh(), fresh()
    train(first)
    mean = second.variables["mean"]

    second.put(first, first.told())

    there, here = first.variables, second.variables
    assert here["mean"] is mean and torch.equal(mean, there["mean"])
    assert torch.equal(here["averages"]["weight"], there["averages"]["weight"])
    assert (here["past"] == there["past"]).all() and here["past"][3] == 7
    assert (here["kept"]["rows"] == there["kept"]["rows"]).all()
    assert here["history"] == there["history"] and len(here["history"]) == 3000


def test_what_stands_still_is_not_told() -> None:
    script = fresh()

    assert msgpack.unpackb(script.told()) == []


def test_a_dict_that_was_not_there_is_made() -> None:
    first, second = fresh(), fresh()
    first.variables["args"]["best"] = {"weight": torch.full((5000,), 3.0)}

    second.put(first, first.told())

    assert torch.equal(second.variables["args"]["best"]["weight"], torch.full((5000,), 3.0))


def test_a_dict_of_another_kind_that_was_not_there_has_it() -> None:
    first, second = fresh(), fresh()
    first.variables["args"]["best"] = defaultdict(list, weight=torch.full((5000,), 3.0))

    second.put(first, first.told())

    best = second.variables["args"]["best"]
    assert torch.equal(best["weight"], torch.full((5000,), 3.0)) and best["other"] == []


def test_the_kind_of_what_loops_bind_comes_with_it() -> None:
    script = fresh()
    script.variables["best"] = OrderedDict(weight=torch.full((5000,), 3.0))

    assert msgpack.unpackb(script.told("best")) == []


def test_a_list_in_a_dict_that_was_not_there_is_put_once_the_dict_is_made() -> None:
    first, second = Script(found={}), Script(found={})
    before = plain_values.digests(holdings([first.variables], OWN))
    first.variables["found"]["late"] = {"losses": [0.5]}
    changed = plain_values.changed(holdings([first.variables], OWN), before)
    values = msgpack.unpackb(msgpack.packb(plain_values.pack(changed, Packing([]))), raw=False)
    packed = first.told()
    with pytest.raises(NotReachable, match="found.late"):
        second.put(first, packed)

    plain_values.put(values, [], holdings([second.variables], OWN))
    second.put(first, packed)

    assert second.variables["found"] == {"late": {"losses": [0.5]}}


def test_what_loops_bind_comes_by_itself() -> None:
    script = fresh()
    script.variables["batch"] = [torch.randn(5000), torch.randn(5000)]
    script.variables["x"] = torch.randn(5000)

    assert msgpack.unpackb(script.told("batch", "x")) == []


def test_what_others_have_told_is_not_told_twice() -> None:
    script = fresh()
    weight = script.variables["averages"]["weight"].add_(1)
    there, spaces = script._seen()
    packing = Packing([weight])

    assert not loose_values.told(there, spaces, script.before, frozenset(), packing)


def test_lists_within_a_list_come_with_it() -> None:
    script, other = (Script(found={"a": [], "b": [[], []]}) for _ in range(2))
    script.variables["found"]["a"].extend([step, 0.5] for step in range(12))
    script.variables["found"]["b"][1].extend(range(9))

    other.put(script, script.told())

    assert other.variables == script.variables


def test_a_list_under_a_name_of_any_kind_is_put_there() -> None:
    script, other = (Script(found={}) for _ in range(2))
    script.variables["found"].update({"loss/train": [[1, 0.5]], 3: [4, 5], "of.all": [6]})

    other.put(script, script.told())

    assert other.variables == script.variables


def test_a_list_within_a_tuple_comes_with_it_or_the_loss_is_told() -> None:
    script = Script(found={})
    script.variables["found"]["pair"] = ([1.0], [2.0])
    lacking, other = Script(found={}), Script(found={"pair": ([1.0], [2.0])})

    other.put(script, script.told())
    assert other.variables == script.variables
    with pytest.raises(NotReachable, match=r"found.pair\[0\].* is not there"):
        lacking.put(script, script.told())


def test_lists_that_are_told_as_plain_values_are_not_told_again() -> None:
    script = Script(found={"a": []})
    before = plain_values.digests(script._seen()[0])
    script.variables["found"]["a"].extend([step, 0.5] for step in range(12))
    there, spaces = script._seen()
    whole: set[str] = set()
    told = list(plain_values.changed(there, before, whole=whole))

    found = loose_values.told(there, spaces, script.before, frozenset(), Packing([]), whole=whole)

    assert [one.place for one in told] == [("found.a", None)]
    assert found == []


def test_a_history_of_things_that_cannot_travel_is_no_snapshot() -> None:
    script = fresh()
    script.variables["history"].append(object())

    with pytest.raises(NotReachable, match="history has changed since the run began, and"):
        script.told()


def test_a_view_of_a_graph_is_left_alone() -> None:
    base = torch.randn(6000, requires_grad=True) * 1
    script = Script(held={"view": base.unbind(0)[0]})
    with torch.no_grad():
        base.add_(1)

    assert msgpack.unpackb(script.told()) == []


def test_another_rank_gets_the_tensors_that_have_changed() -> None:
    """An average of weights, of any size and however it is kept, and nothing that is data."""
    first, second = averaging(), averaging()
    held = first.variables
    held["mean"].add_(1)
    held["average"]["weight"] = 2 * held["average"]["weight"]
    held["shadow"][1].mul_(3)
    held["batch"].add_(5)
    held["batches"]["x"].add_(5)

    data = frozenset({id(held["batches"]["x"])})
    second.put_in_place(first, first.changed_in_place("batch", data=data))

    here = second.variables
    assert torch.equal(here["mean"], torch.full((5,), 2.0))
    assert torch.equal(here["average"]["weight"], torch.full((200_000,), 2.0))
    assert [float(one[0]) for one in here["shadow"]] == [1, 3]
    assert float(here["batch"][0]) == float(here["batches"]["x"][0]) == 1


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda: np.zeros(3), lambda one: np.add(one, 1, out=one)),
        (lambda: np.zeros(70_000), lambda one: np.add(one, 1, out=one)),
        (lambda: np.array(["none"] * 600), lambda one: one.fill("some")),
        (lambda: bytearray(3), lambda one: one.extend(b"abc")),
        (lambda: array("d", [1]), lambda one: one.append(2)),
    ],
)
def test_another_rank_gets_the_arrays_that_have_changed(make: Any, change: Any) -> None:
    first, second = (Script(alone=make(), held=[{"rows": make()}], kept=make()) for _ in range(2))
    change(first.variables["alone"])
    change(first.variables["held"][0]["rows"])
    second.variables["kept"] = kept = object()  # of this rank, and the donor's has not changed

    there, _ = first._seen()
    entries = plain_values.changed(there, plain_values.digests(second._seen()[0]))
    told = plain_values.pack(entries, packing := Packing([]))
    second.put_in_place(first, first.changed_in_place())
    plain_values.put(told, packing.tensors, second._seen()[0])

    here = second.variables
    assert list(here["alone"]) == list(first.variables["alone"])
    assert list(here["held"][0]["rows"]) == list(first.variables["held"][0]["rows"])
    assert here["kept"] is kept


def paired() -> Script:
    return Script(pairs=[("first", torch.zeros(3)), ("second", torch.zeros(5000))])


@pytest.mark.parametrize("all_of_it", [True, False])
def test_a_tensor_in_a_tuple_has_its_elements_put_where_it_lies(all_of_it: bool) -> None:
    there, here = paired(), paired()
    for _, momentum in there.variables["pairs"]:
        momentum += 1
    kept = list(here.variables["pairs"])

    if all_of_it:
        here.put(there, there.told())
    else:
        here.put_in_place(there, there.changed_in_place())

    assert all(one is other for one, other in zip(here.variables["pairs"], kept, strict=True))
    assert [one.mean().item() for _, one in kept] == [1.0, 1.0]


def test_a_tensor_that_this_rank_has_not_made_is_left_out() -> None:
    first, second = averaging(), averaging()
    first.variables["average"]["weight"].mul_(2)
    del second.variables["average"]

    second.put_in_place(first, first.changed_in_place())

    assert "average" not in second.variables


def averaging() -> Script:
    return Script(
        mean=torch.ones(5), average={"weight": torch.ones(200_000)}, batch=torch.ones(5000),
        shadow=[torch.ones(200_000), torch.ones(5000)], batches={"x": torch.ones(5000)},
    )  # fmt: skip


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("size", [3, 5000])
def test_averages_of_a_sharded_model_come(mesh: DeviceMesh, size: int) -> None:
    def sharded() -> Script:
        means = [distribute_tensor(torch.ones(size), mesh, [Shard(0)]) for _ in range(3)]
        return Script(means=means[:2], by_name={"bias": means[2]})

    first, second = sharded(), sharded()
    there, here = first.variables, second.variables
    there["means"][0].to_local().add_(1)
    torch._foreach_lerp_([there["means"][1]], [there["means"][1] * 3], 0.5)
    there["by_name"]["bias"].add_(1)

    second.put_in_place(first, first.changed_in_place())

    found = [*here["means"], here["by_name"]["bias"]]
    assert [one.to_local().unique().tolist() for one in found] == [[2], [2], [2]]


class Rows(list[Any]):
    """A list of the script's own kind."""


CHANGES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "tensor": (torch.zeros(3000), lambda one: one.data.add_(1)),
    "tensor_as_array": (torch.zeros(3000), lambda one: one.numpy().__setitem__(7, 2.0)),
    "bytes": (bytearray(9), lambda one: one.extend(b"12")),
    "array": (array("l", [1, 2]), lambda one: one.append(7)),
    "texts": (np.array(["a", "b"]), lambda one: one.__setitem__(1, "c")),
    "dates": (np.zeros(3, "datetime64[s]"), lambda one: one.__setitem__(1, 5)),
    "records": (np.zeros(2, [("a", "i4"), ("b", "f8")]), lambda one: one["b"].__setitem__(1, 2.5)),
    "longer": (Rows([1, 2]), lambda one: one.extend([3])),
    "shorter": (Rows([1, 2]), lambda one: one.pop(0)),
    "emptied": (Rows([1, 2]), lambda one: one.clear()),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_nobody_counts_is_told_where_it_has_changed(name: str) -> None:
    first, change = CHANGES[name]
    one, other = (Script(kept={name: copy.deepcopy(first), "it": [0]}) for _ in range(2))
    there = other.variables["kept"][name]
    change(one.variables["kept"][name])

    other.put(one, one.told())

    found = other.variables["kept"][name]
    assert type(found) is type(first)
    assert list(found) == list(one.variables["kept"][name])
    assert found is there, "other names see it, too"


def test_an_array_of_another_size_takes_the_place_of_the_one_before() -> None:
    one, other = Script(kept={"names": np.array(["a"])}), Script(kept={"names": np.array(["a"])})
    one.variables["kept"]["names"] = np.array(["long", "er"])

    other.put(one, one.told())

    assert other.variables["kept"]["names"].tolist() == ["long", "er"]


def test_a_sparse_tensor_that_is_another_one_is_no_snapshot() -> None:
    script = Script(kept={"graph": torch.eye(2).to_sparse()})
    script.told()
    script.variables["kept"]["graph"] = torch.eye(2).to_sparse()

    with pytest.raises(NotReachable, match="graph.* has changed since the run began"):
        script.told()


def test_a_list_of_objects_may_have_the_name_of_an_argument_by_now() -> None:
    calls = [object(), object()]
    script = Script(calls=calls)
    script.variables = {"given": calls, **script.variables}

    assert msgpack.unpackb(script.told()) == []
