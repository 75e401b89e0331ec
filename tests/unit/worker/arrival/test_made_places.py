"""A newcomer makes in the same places all that survivors have made while they trained."""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

from recoverrun.worker.arrival.made_places import make
from recoverrun.worker.context.object_graph import holdings
from recoverrun.worker.context.slot_context import Context
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.rng.streams import read_streams
from tests.unit.newcomers import Script, Variables, arrives, own_module

SCRIPT = own_module(
    "making_script",
    """
class Best:
    def __init__(self, loss, state):
        self.loss, self.state = loss, state
class Logged:
    def __init__(self):
        self.file = open("/dev/null")
class Slotted:
    __slots__ = ("loss",)
class Counted:
    made = 0
    def __new__(cls):
        cls.made += 1
        return object.__new__(cls)
""",
)
OWN = frozenset({SCRIPT.__name__})
BIG = 1 << 12


def weights() -> dict[str, Any]:
    return {"weight": torch.full((BIG,), 2.0), "bias": torch.ones(2)}


def plain(one: Any) -> Any:
    """Plain values that tell of everything, in its order."""
    if isinstance(one, torch.Tensor):
        return one.tolist()
    if isinstance(one, SCRIPT.Best):
        return sorted(plain(vars(one)))
    if isinstance(one, dict):
        return [(key, plain(value)) for key, value in one.items()]
    return list(map(plain, one)) if isinstance(one, list | deque) else one


@pytest.mark.parametrize(
    "new",
    [
        weights,
        lambda: OrderedDict(weights()),
        lambda: {"loss": 1.0, "state": weights()},
        lambda: {"state": weights(), "loss": 1.0},
        lambda: SCRIPT.Best(1.0, weights()),
        lambda: SCRIPT.Best(SCRIPT.Best(1.0, [1]), torch.ones(BIG)),
        lambda: SCRIPT.Best([], {}),
        lambda: [SCRIPT.Best(1.0, [2]), {"rows": weights()}],
        lambda: deque([1, 2], maxlen=3),
    ],
)
@pytest.mark.parametrize(
    "held",
    [
        lambda held, new: held.update(alone=new),
        lambda held, new: held["table"].update(best=new),
        lambda held, new: vars(held["meter"]).update(state=new),
        lambda held, new: held["rows"].append(new),
    ],
)
def test_it_is_held_there_with_all_that_hangs_on_it(
    new: Callable[[], Any], held: Callable[[Variables, Any], Any]
) -> None:
    def begin() -> Variables:
        meter = SCRIPT.Best(0.0, None)
        return {"alone": None, "table": {"a": 1}, "meter": meter, "rows": [meter]}

    donor, here = arrives(begin, lambda variables: held(variables, new()), OWN)

    assert plain(here) == plain(donor)
    assert type(here["alone"]) is type(donor["alone"])
    assert getattr(here["alone"], "maxlen", None) == getattr(donor["alone"], "maxlen", None)


def test_a_variable_that_is_bound_to_what_has_another_name_is_bound_to_that_here() -> None:
    _, here = arrives(
        lambda: {"tables": {"a": {"rate": 1.0}, "b": [1]}, "one": None, "other": None},
        lambda held: held.update(one=held["tables"]["a"], other=held["tables"]["b"]),
    )

    assert here["one"] is here["tables"]["a"]
    assert here["other"] is here["tables"]["b"]


@pytest.mark.parametrize("kind", [SCRIPT.Logged, SCRIPT.Slotted, SCRIPT.Counted])
def test_an_object_of_which_not_all_comes_is_not_made(kind: Any) -> None:
    with pytest.raises(NotReachable, match="best is nothing like it"):
        arrives(lambda: {"table": {}}, lambda held: held["table"].update(best=kind()), OWN)


def test_what_this_process_holds_itself_stays() -> None:
    own = SCRIPT.Best(5.0, None)
    donor, here = Script({"best": None}, OWN), Script({"best": own}, OWN)
    donor.variables["best"] = {}

    here.put(*donor.told())

    assert here.variables["best"] is own
    assert own.loss == 5.0


def test_what_the_lost_rank_did_not_hold_is_not_made() -> None:
    context = Context(0, 0, "top", 0, "loop", read_streams(), {}, {("meter", "state"): None})
    variables = {"meter": SCRIPT.Best(0.0, None), "other": SCRIPT.Best(0.0, None)}
    there, told = holdings([variables], OWN), [["meter", "state", [[]]], ["other", "state", [[]]]]

    assert make(told, there, [], lambda space, name, value: None, context)

    assert variables["meter"].state is None
    assert variables["other"].state == []
