"""Generators of random numbers are known by who made them, wherever the script keeps them."""

import copy
import gc
import pickle
import random
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

from recoverrun.worker.rng.registry import MAX_GENERATORS, REGISTRY, Registry

REAL = {"torch": torch.Generator, "numpy": numpy.random.Generator}


class Watched:
    """Modules whose constructors a registry of our own watches, and a script that uses them."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.random, self.torch = ModuleType("random"), ModuleType("torch")
        self.numpy = ModuleType("numpy.random")

        class Random(random.Random):
            pass

        vars(self.random).update(Random=Random)
        vars(self.torch).update(Generator=torch.Generator)
        for name in ("Generator", "RandomState", "default_rng", "PCG64"):
            setattr(self.numpy, name, getattr(numpy.random, name))
        self.registry.watch_random(self.random)
        self.registry.watch_torch(self.torch)
        self.registry.watch_numpy(self.numpy)

    def run(self, source: str, module: str = "train", **names: Any) -> dict[str, Any]:
        """Execute a script with these modules; its variables."""
        known = {"random": self.random, "torch": self.torch, "np": self.numpy}
        namespace: dict[str, Any] = {"__name__": module, **known, **names}
        exec(compile(source, f"{module}.py", "exec"), namespace)
        return namespace


KINDS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "torch": ("torch.Generator().manual_seed(5)", lambda g: torch.rand(3, generator=g).tolist()),
    "torch for a device": ("torch.Generator(device='cpu')", lambda g: g.get_state().sum().item()),
    "python": ("random.Random(6)", lambda g: g.random()),
    "numpy": ("np.random_generator(7)", lambda g: g.random()),
    "numpy's class": ("np.Generator(np.PCG64(8))", lambda g: g.random()),
    "numpy's legacy": ("np.RandomState(9)", lambda g: g.rand()),
}


def of_kind(kind: str) -> str:
    return KINDS[kind][0].replace("random_generator", "default_rng")


# --------------------------------------------------------------------------- no hiding place

PLACES = {
    "a variable": "kept = {0}",
    "a closure": "def outer():\n    g = {0}\n    return lambda: g\nkept = outer()",
    "a dict": "kept = {{'rng': {0}}}",
    "a slot": "class Own:\n    __slots__ = ('g',)\nkept = Own()\nkept.g = {0}",
    "an argument": "def draw(g={0}):\n    return g\nkept = draw",
    "a generator": "def gen():\n    g = {0}\n    yield\n    yield g\nkept = gen()\nnext(kept)",
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_found_wherever_it_is_kept(kind: str, place: str) -> None:
    watched = Watched()

    names = watched.run(PLACES[place].format(of_kind(kind)))

    assert len(watched.registry.alive()) == 1
    assert names["kept"] is not None


@pytest.mark.parametrize("kind", KINDS)
def test_its_numbers_can_be_put_back(kind: str) -> None:
    watched, draw = Watched(), KINDS[kind][1]
    names = watched.run(f"g = {of_kind(kind)}")
    before = watched.registry.states()
    first = draw(names["g"])

    watched.registry.restore(before)

    assert draw(names["g"]) == first


@pytest.mark.parametrize("kind", KINDS)
def test_one_that_nobody_holds_is_none(kind: str) -> None:
    watched = Watched()
    names = watched.run(f"g = {of_kind(kind)}")
    assert len(watched.registry.alive()) == 1

    del names["g"]
    gc.collect()

    assert watched.registry.alive() == {} == watched.registry.states()


def test_what_another_rank_made_and_this_one_did_not_is_no_matter() -> None:
    watched = Watched()
    watched.run("g = random.Random(1)")

    watched.registry.restore({"train.py:77#0": b"a state"})


# --------------------------------------------------------------------------- by what it is known


def test_it_is_known_by_its_line_and_how_many_were_made_there() -> None:
    watched = Watched()

    names = watched.run("gs = []\nfor seed in range(2):\n    gs.append(random.Random(seed))\n"
                        "g = torch.Generator()")  # fmt: skip

    alive = watched.registry.alive()
    assert list(alive) == ["train.py:3#0", "train.py:3#1", "train.py:4#0"]
    assert alive["train.py:3#1"] is names["gs"][1]


def test_one_that_a_rank_makes_for_itself_does_not_confuse_the_others() -> None:
    source = "a = random.Random(1)\nif rank == 0:\n    b = random.Random(2)\nc = random.Random(3)"
    ranks = []
    for rank in range(2):
        watched = Watched()
        watched.kept = watched.run(source, rank=rank)  # type: ignore[attr-defined]
        ranks.append(watched)

    mine, theirs = (set(one.registry.alive()) for one in ranks)

    assert mine & theirs == {"train.py:1#0", "train.py:4#0"}
    assert mine - theirs == {"train.py:3#0"}


def test_in_a_process_that_has_made_fewer_the_newest_has_the_number_that_others_gave_it() -> None:
    source = "for epoch in range(epochs):\n    g = random.Random(epoch)\nonly = random.Random(1)"
    ahead, late = Watched(), Watched()
    kept = [ahead.run(source, epochs=3), late.run(source, epochs=1)]

    late.registry.renumber(ahead.registry.numbers())

    assert set(late.registry.alive()) == set(ahead.registry.alive())
    assert late.registry.alive()["train.py:2#2"] is kept[1]["g"]
    kept.append(late.run(source, epochs=1))
    assert late.registry.alive()["train.py:2#3"] is kept[2]["g"]


def test_a_generator_that_others_do_not_hold_has_none_of_their_numbers() -> None:
    ahead, late = Watched(), Watched()
    ahead.run("for epoch in range(3):\n    g = random.Random(epoch)")
    gc.collect()
    kept = late.run("for epoch in range(1):\n    g = random.Random(epoch)")

    late.registry.renumber(ahead.registry.numbers())

    assert list(late.registry.alive().values()) == [kept["g"]]
    assert not set(late.registry.alive()) & {f"train.py:2#{number}" for number in range(9)}


def test_one_that_is_made_anew_each_step_is_another_one() -> None:
    watched = Watched()

    names = watched.run("for step in range(3):\n    g = random.Random(step)")

    assert watched.registry.alive() == {"train.py:2#2": names["g"]}


def test_it_is_known_by_the_script_s_line_not_by_that_of_a_library_in_between() -> None:
    watched = Watched()
    library = watched.run("def make():\n    return torch.Generator()", module="torch.utils.helper")

    names = watched.run("\ng = make()", make=library["make"])

    assert watched.registry.alive() == {"train.py:2#0": names["g"]}


@pytest.mark.parametrize("module", ["torch.utils.data.dataloader", "random"])
def test_those_of_loaders_and_of_the_module_itself_are_none_of_the_script_s(module: str) -> None:
    watched = Watched()
    library = watched.run("def make():\n    return torch.Generator()", module=module)

    names = watched.run("g = make()", make=library["make"])

    assert names["g"] is not None and watched.registry.alive() == {}


@pytest.mark.parametrize("module", ["tempfile", "uuid", "concurrent.futures.thread"])
def test_those_of_the_standard_library_are_none_of_the_script_s(module: str) -> None:
    """Names of temporary files, say."""
    watched = Watched()
    library = watched.run("def make():\n    return random.Random()", module=module)

    names = watched.run("a = make()\nb = random.Random()", make=library["make"])

    assert watched.registry.alive() == {"train.py:2#0": names["b"]}


def test_those_that_a_data_set_makes_for_an_item_are_none_of_the_script_s() -> None:
    watched = Watched()
    make = watched.run("make = lambda: random.Random(1)")["make"]

    loader = watched.run("made = make()", "torch.utils.data._utils.fetch", make=make)
    assert isinstance(loader["made"], random.Random)
    assert not watched.registry.states()


def test_one_without_a_state_is_none() -> None:
    watched = Watched()
    source = (
        "class System(random.Random):\n    def getstate(self):\n        raise NotImplementedError"
    )

    watched.run(f"{source}\ng = System()")

    assert watched.registry.alive() == {}


def test_so_many_are_told_of() -> None:
    watched = Watched()

    names = watched.run(f"gs = [random.Random(n) for n in range({MAX_GENERATORS + 3})]")

    assert len(names["gs"]) == MAX_GENERATORS + 3
    assert len(watched.registry.states()) == MAX_GENERATORS
    assert watched.registry.crowded, "then a loss is not made up exactly"


# --------------------------------------------------------------------------- the script's classes


@pytest.fixture(params=["torch", "numpy"])
def stand_in(request: pytest.FixtureRequest) -> Iterator[SimpleNamespace]:
    watched = Watched()
    module = getattr(watched, request.param)
    make = {"torch": lambda: module.Generator(), "numpy": lambda: module.default_rng(3)}
    yield SimpleNamespace(
        watched=watched, kind=module.Generator, real=REAL[request.param], make=make[request.param]
    )


def test_what_is_made_is_of_the_library_s_own_class(stand_in: SimpleNamespace) -> None:
    made = stand_in.make()

    assert type(made) is stand_in.real
    assert isinstance(made, stand_in.kind) and issubclass(stand_in.real, stand_in.kind)
    assert not isinstance(object(), stand_in.kind) and not issubclass(int, stand_in.kind)
    assert stand_in.kind.__name__ == stand_in.real.__name__


def test_one_that_is_made_elsewhere_is_of_that_class_too(stand_in: SimpleNamespace) -> None:
    elsewhere = (
        torch.Generator() if stand_in.real is torch.Generator else numpy.random.default_rng()
    )

    assert isinstance(elsewhere, stand_in.kind)


def test_numpy_s_pickle_and_copy_as_ever() -> None:
    made = Watched().numpy.default_rng(3)

    assert (
        pickle.loads(pickle.dumps(made)).random() == copy.deepcopy(made).random() == made.random()
    )


def test_a_class_of_the_script_s_own_may_follow_from_it() -> None:
    watched = Watched()
    source = "class Own(torch.Generator):\n    extra = 3\n"

    names = watched.run(f"{source}g = Own()\nplain = torch.Generator()")

    own, kind = names["Own"], watched.torch.Generator  # type: ignore[attr-defined]
    assert type(names["g"]) is own and names["g"].extra == 3
    assert isinstance(names["g"], kind) and issubclass(own, kind)
    assert isinstance(names["g"], own) and not isinstance(names["plain"], own)
    assert names["g"] in watched.registry.alive().values()


def test_a_class_that_follows_from_python_s_is_watched() -> None:
    watched = Watched()
    source = "class Own(random.Random):\n    def roll(self):\n        return self.randrange(6)\n"

    names = watched.run(f"{source}g = Own(4)")

    assert watched.registry.alive() == {"train.py:4#0": names["g"]}
    assert names["g"].roll() == random.Random(4).randrange(6)


def test_the_registry_of_the_process_is_one() -> None:
    assert isinstance(REGISTRY, Registry)


@pytest.mark.parametrize("importer, known", [("torch.fx.symbols", 0), ("train", 1)])
def test_what_torch_imports_for_itself_makes_generators_that_are_nobodys(
    importer: str, known: int
) -> None:
    watched = Watched()

    def load() -> dict[str, Any]:
        return watched.run("kept = random.Random(3)", module="symbols")

    names = watched.run("kept = load()", module=importer, load=load)

    assert len(names["kept"]) and len(watched.registry.alive()) == known


# --------------------------------------------------------------------------- whose it is not


def test_what_this_package_makes_is_not_the_scripts() -> None:
    """Executing a lost rank's microbatch, within a backward of the script, it copies a loader."""
    watched = Watched()
    ours = watched.run("def copied():\n    return torch.Generator()", "recoverrun.worker.data.x")
    backward = ours["copied"]

    made = watched.run("kept = [backward(), torch.Generator()]", backward=backward)["kept"]

    assert list(watched.registry.alive().values()) == made[1:]
    assert watched.registry.numbers() == {"train.py:1": [1, [0]]}


def test_code_that_is_executed_again_makes_generators_of_the_same_names() -> None:
    script = Watched()
    body = "kept = torch.Generator()"
    first = script.run(body)
    made = script.registry.made()
    own = script.run(body)
    known = dict(script.registry.alive())

    with script.registry.as_at(made):
        before = [*script.registry.alive()]
        again = script.run(body)
        within = dict(script.registry.alive())
    after = dict(script.registry.alive())
    next_one = script.run(body)

    assert before == ["train.py:1#0"]
    assert within == {"train.py:1#0": first["kept"], "train.py:1#1": again["kept"]}
    assert after == known == {"train.py:1#0": first["kept"], "train.py:1#1": own["kept"]}
    assert script.registry.alive()["train.py:1#2"] is next_one["kept"]
