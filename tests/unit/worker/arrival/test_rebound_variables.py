"""Variables that functions rebind while the script trains, in a process in a lost rank's place."""

import sys
from types import ModuleType
from typing import Any

import msgpack
import torch

from recoverrun.worker.arrival import rebound_variables
from recoverrun.worker.arrival.loose_values import spaces_of
from recoverrun.worker.arrival.packing import Packing

NAME = "a_script_that_counts"


def _module(**variables: Any) -> ModuleType:
    module = ModuleType(NAME)
    vars(module).update(variables)
    sys.modules[NAME] = module
    return module


def _told(module: ModuleType, before: dict[Any, int], *, bound: str = "", apart: str = "") -> Any:
    spaces = [(f"<{NAME}>", vars(module))]
    told = rebound_variables.changed(spaces, before, {bound}, {apart}, packing=Packing([]))
    return msgpack.unpackb(msgpack.packb(told), raw=False)


def test_a_counter_of_a_module_is_what_it_is_on_a_survivor() -> None:
    survivor = _module(done=0, rank=0, name="run", losses=[0.5])
    before = rebound_variables.digests([(f"<{NAME}>", vars(survivor))])
    vars(survivor).update(done=24, losses=[0.5, 0.4])
    told = _told(survivor, before)
    newcomer = _module(done=0, rank=1, name="another", losses=[0.5])
    try:
        rebound_variables.put(told, [], spaces_of([], frozenset({NAME})), [])
    finally:
        del sys.modules[NAME]

    assert (newcomer.done, newcomer.rank, newcomer.name) == (24, 1, "another")
    assert newcomer.losses == [0.5]  # a list comes by another way


def test_a_tuple_of_tensors_is_what_it_is_there() -> None:
    variables = {"state": (torch.zeros(2), 0)}
    spaces = [(f"<{NAME}>", variables)]
    before = rebound_variables.digests(spaces)
    variables["state"] = (torch.ones(2), 7)
    packing = Packing([])
    told = rebound_variables.changed(spaces, before, (), packing=packing)
    variables["state"] = (torch.zeros(2), 0)

    rebound_variables.put(told, packing.tensors, spaces, [])

    assert variables["state"][0].tolist() == [1.0, 1.0] and variables["state"][1] == 7


def test_a_dict_in_place_of_none_is_there() -> None:
    variables: dict[str, Any] = {"best": None, "rows": None, "kept": {"a": 1}}
    spaces = [(f"<{NAME}>", variables)]
    before = rebound_variables.digests(spaces)
    variables.update(best={"weights": torch.ones(2)}, rows=[1], kept={"a": 2})
    packing = Packing([])
    told = rebound_variables.containers(spaces, before, {"rows"}, packing)
    variables.update(best=None, rows=None)

    rebound_variables.put(told, packing.tensors, spaces, [])

    assert variables["best"]["weights"].tolist() == [1.0, 1.0]
    assert variables["rows"] is None and len(told) == 1


def test_what_loops_bind_what_ranks_differ_in_and_what_is_new_is_left_out() -> None:
    module = _module(done=0, offset=3)
    before = rebound_variables.digests([(f"<{NAME}>", vars(module))])
    vars(module).update(done=24, offset=27, later=1)
    del sys.modules[NAME]

    assert _told(module, before, apart="offset") == [[f"<{NAME}>", "done", 24]]
    assert _told(module, before, bound="done", apart="offset") == []


def test_a_variable_of_a_function_around_changes_for_the_functions_in_it() -> None:
    def outer() -> int:
        done = 0

        def count() -> None:
            nonlocal done
            done += 1

        frame = sys._getframe()
        space = f"<{frame.f_code.co_qualname}>"
        rebound_variables.put([[space, "done", 24]], [], spaces_of([frame], frozenset()), [frame])
        count()
        return done

    assert outer() == 25
