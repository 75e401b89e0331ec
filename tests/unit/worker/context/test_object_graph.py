"""Objects in which a script keeps count: found from its modules, noted, and put back in place."""

import sys
import textwrap
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from recoverrun.worker.context.object_contents import KeptContents
from recoverrun.worker.context.object_graph import LONG, holdings
from recoverrun.worker.context.tensor_attributes import TensorAttributes

MODULE = "counting_script"
TEXT = """
import abc, array, collections, contextvars, ctypes, enum, functools, os, threading, types
import numpy as np
import torch
from torch import nn

class Own:
    def __init__(self): self.seen = 0
class Slotted:
    __slots__ = ("seen", "never")
    def __init__(self): self.seen = 0
class Abstract(abc.ABC):
    seen = 0
class Color(enum.Enum):
    RED = 1
Color.RED.seen = 0
class Careful(dict):
    def __setitem__(self, key, value): raise RuntimeError("nobody writes here")
class Layer(nn.Module):
    seen = 0
    def __init__(self):
        super().__init__()
        self.inner, self.mine = [Own()], 0
def counting():
    seen = 0
    def count():
        nonlocal seen
        seen += 1
        return seen
    return count
def cells(): return closure.__closure__[0].cell_contents
def hooked(gradient): hooked.seen += 1
hooked.seen = 0
@functools.lru_cache
def cached(key): return Own()

context = contextvars.ContextVar("context", default=0)
context.set(0)
local = threading.local()
local.seen = 0
plain, deep, ordered = [0], {"a": {"b": ({"c": [[0]]},)}}, collections.OrderedDict(a=0, b=0)
careful, user = Careful(seen=[0]), collections.UserDict(seen=0)
proxy, space = types.MappingProxyType({"own": Own()}), types.SimpleNamespace(seen=0)
definitions = vars(Abstract)
chain, queue = collections.ChainMap({"seen": 0}), collections.deque()
names, slotted, closure = set(), Slotted(), counting()
raw, whole, text = ctypes.c_long(0), array.array("l", [0]), bytearray()
numbers, objects, tensor = np.zeros((2, 3)), np.array([Own()], dtype=object), torch.zeros(3)
part = functools.partial(print, [0], key={"seen": 0})
layer, weight = Layer(), nn.Parameter(torch.zeros(1))
wrapped = object.__new__(nn.parallel.DistributedDataParallel)
nn.Module.__init__(wrapped)
wrapped.module = Layer()
weight.register_hook(hooked)
cached(1)
os.environ["COUNTING"] = "0"
"""


@pytest.fixture
def script() -> Iterator[Any]:
    module = ModuleType(MODULE)
    sys.modules[MODULE] = module
    exec(textwrap.dedent(TEXT), vars(module))
    yield module
    del sys.modules[MODULE]


def held() -> list[Any]:
    return holdings([], frozenset({MODULE})).objects


def add(owner: Any) -> None:
    owner.seen += 1


def careful(s: Any) -> None:
    dict.__setitem__(s.careful, "more", 1)


COUNTS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "list": (lambda s: s.plain, lambda s: s.plain.append(1)),
    "list deep inside": (
        lambda s: s.deep["a"]["b"][0]["c"][0],
        lambda s: s.deep["a"]["b"][0]["c"][0].append(1),
    ),
    "order of a dict": (lambda s: list(s.ordered), lambda s: s.ordered.move_to_end("a")),
    "dict with methods of its own": (lambda s: dict(s.careful), careful),
    "UserDict": (lambda s: s.user["seen"], lambda s: s.user.update(seen=1)),
    "ChainMap": (lambda s: s.chain["seen"], lambda s: s.chain.update(seen=1)),
    "mapping proxy": (lambda s: s.proxy["own"].seen, lambda s: add(s.proxy["own"])),
    "namespace": (lambda s: s.space.seen, lambda s: add(s.space)),
    "deque": (lambda s: list(s.queue), lambda s: s.queue.append(1)),
    "set": (lambda s: set(s.names), lambda s: s.names.add(1)),
    "slot": (lambda s: s.slotted.seen, lambda s: add(s.slotted)),
    "slot that was empty": (
        lambda s: hasattr(s.slotted, "never"),
        lambda s: setattr(s.slotted, "never", 1),
    ),
    "abstract class": (lambda s: s.Abstract.seen, lambda s: add(s.Abstract)),
    "member of an Enum": (lambda s: s.Color.RED.seen, lambda s: add(s.Color.RED)),
    "class of modules": (lambda s: s.Layer.seen, lambda s: add(s.Layer)),
    "module": (lambda s: s.layer.mine, lambda s: setattr(s.layer, "mine", 1)),
    "list in a module": (lambda s: s.layer.inner[0].seen, lambda s: add(s.layer.inner[0])),
    "wrapped module": (
        lambda s: s.wrapped.module.inner[0].seen,
        lambda s: add(s.wrapped.module.inner[0]),
    ),
    "closure": (lambda s: s.cells(), lambda s: s.closure()),
    "hook of a parameter": (lambda s: s.hooked.seen, lambda s: s.hooked(None)),
    "cache": (lambda s: s.cached(1).seen, lambda s: add(s.cached(1))),
    "arguments of a partial": (lambda s: s.part.args[0], lambda s: s.part.args[0].append(1)),
    "context variable": (lambda s: s.context.get(), lambda s: s.context.set(1)),
    "thread-local": (lambda s: s.local.seen, lambda s: add(s.local)),
    "environment": (
        lambda s: s.os.environ["COUNTING"],
        lambda s: s.os.environ.update(COUNTING="1"),
    ),
    "ctypes": (lambda s: s.raw.value, lambda s: setattr(s.raw, "value", 1)),
    "array": (lambda s: s.whole.tolist(), lambda s: s.whole.append(1)),
    "bytearray": (lambda s: bytes(s.text), lambda s: s.text.extend(b"x")),
    "array of numpy": (lambda s: s.numbers.tolist(), lambda s: s.numbers[:, 1].fill(1)),
    "objects of numpy": (lambda s: s.objects[0].seen, lambda s: add(s.objects[0])),
    "tensor": (lambda s: s.tensor.tolist(), lambda s: s.tensor[1].add_(1)),
}


@pytest.mark.parametrize("place", COUNTS)
def test_what_was_counted_is_found_and_put_back(place: str, script: Any) -> None:
    read, count = COUNTS[place]
    before, kept = read(script), KeptContents(held())
    before = before.copy() if isinstance(before, list | set | dict) else before

    count(script)
    assert read(script) != before
    assert len(kept.changed()) == 1
    kept.put_back()

    assert read(script) == before and not kept.changed()


def test_one_element_of_a_column_is_put_back() -> None:
    column = torch.arange(3.0).view(1, 3)[:, 1]
    kept = KeptContents([column])

    column += 1
    assert kept.changed() == [0]
    kept.put_back()

    assert column.stride() == (3,) and column.item() == 1 and not kept.changed()


def test_what_is_the_same_again_has_not_changed(script: Any) -> None:
    kept = KeptContents(held())

    script.plain[0], script.space.seen = 5 - 5, int("0")
    script.ordered["a"] = 0

    assert kept.changed() == []


def test_what_was_put_in_the_place_of_something_else_goes_again(script: Any) -> None:
    mine, kept = script.layer.inner, KeptContents(held())

    script.layer.inner, script.layer.more = [], 1
    del script.space.seen
    kept.put_back()

    assert script.layer.inner is mine and not hasattr(script.layer, "more")
    assert script.space.seen == 0


def test_a_copy_of_the_process_finds_the_same_in_the_same_order(script: Any) -> None:
    first, second = held()[2:], held()[2:]

    assert [id(_behind(one)) for one in first] == [id(_behind(one)) for one in second]


def _behind(one: Any) -> Any:
    """The dict behind a view of attributes, as each walk makes views of its own; or `one`."""
    return one._held if type(one) is TensorAttributes else one


def test_data_are_left_alone(script: Any) -> None:
    script.rows = [[number] for number in range(LONG + 1)]
    script.large, script.mapped = torch.zeros(1 << 20), script.np.zeros(1 << 20)
    found = {id(one) for one in held()}

    assert id(script.rows) in found, "that it grows is seen"
    assert not found & {id(script.rows[0]), id(script.large), id(script.mapped)}


def test_what_belongs_to_others_is_not_entered(script: Any) -> None:
    script.thread, script.model = __import__("threading").Thread(), torch.nn.Linear(1, 1)
    found = {id(one) for one in held()}

    assert id(vars(script.thread)) not in found and id(vars(torch)) not in found
    assert id(vars(script.model)) in found, "what a script writes on a module"
    assert id(vars(script.wrapped)) not in found, "a wrapper keeps its own books"


def test_holders_have_a_name_and_few_members_as_they_were_at_the_first_look() -> None:
    named, layer = {"step": 1, "parts": [2]}, torch.nn.Linear(1, 1)
    there = holdings([{"named": named, "long": [0] * (LONG + 1), "layer": layer}], frozenset())

    found = {path: (items, objects) for path, _, items, objects in there.holders}
    named["step"] = 2

    assert found["named"] == ([("step", 1), ("parts", [2])], [("parts", [2])])
    assert found["named.parts"] == ([(0, 2)], [])
    assert found["long"] == ([], [])
    assert found["os.environ"] == ([], [])
    assert [name for name, _ in found["layer.vars._parameters"][1]] == ["weight", "bias"]
    assert {path: items for path, _, items, _ in there.holders}["named"] == found["named"][0]
    assert "" not in found


def test_what_hangs_on_the_item_of_a_loop_alone_has_no_name() -> None:
    """Ranks told each other of items, and a process that came later had others."""
    share, batch = [1, 2], {"ids": [3]}
    around = {"rows": [share], "batch": batch, "share": share}

    found = holdings([around], frozenset(), items=[("batch", batch), ("share", share)]).held

    names = {id(one): path for path, one in found}
    assert names[id(share)] == "rows[0]"
    assert names[id(batch)] == names[id(batch["ids"])] == ""


def test_what_torch_notes_on_hooks_is_left_out_as_long_as_there_are_none() -> None:
    layer = torch.nn.Linear(2, 2)

    def notes() -> set[str]:
        there = holdings([{"layer": layer}], frozenset(), idle_hooks=False)
        return {path.rpartition(".")[2] for path, _ in there.held if "_hooks" in path}

    assert notes() == set()

    layer.register_forward_hook(lambda *_: None, with_kwargs=True, always_call=True)

    assert notes() == {
        "_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"
    }  # fmt: skip
