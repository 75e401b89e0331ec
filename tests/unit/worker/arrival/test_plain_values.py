"""Values that a script changes beside its loops are told by their path, and put there in place."""

import sys
from collections import Counter, OrderedDict, defaultdict, deque
from copy import copy
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from recoverrun.worker.arrival import plain_values
from recoverrun.worker.arrival.packing import Packing
from recoverrun.worker.context.object_graph import holdings
from recoverrun.worker.data.batch_substitution import parts_of

OWN = frozenset({__name__})


class Point(NamedTuple):
    x: int
    y: int


class Meter:
    def __init__(self, rank: int = 0) -> None:
        self.rank = rank
        self.total, self.history, self.best = 0.0, [0.5], {"step": 0, "at": {"loss": 1.0}}
        self.rows = torch.zeros(3)


def there(**variables: Any) -> plain_values.Holdings:
    """All that hangs on a frame with these variables."""
    return plain_values.holdings([variables], OWN)


def moved(donor: dict[str, Any], change: Any, newcomer: dict[str, Any]) -> None:
    """Change what the donor holds after the digests, and put that into the newcomer."""
    before = plain_values.digests(there(**donor))
    change()
    packing = Packing([])
    told = plain_values.pack(plain_values.changed(there(**donor), before), packing)
    plain_values.put(told, packing.tensors, there(**newcomer))


def test_what_has_changed_is_put_in_place() -> None:
    donor, newcomer = Meter(0), Meter(1)
    history, best = newcomer.history, newcomer.best

    def change() -> None:
        donor.total = 2.5
        donor.history += [0.25, 0.125]
        donor.best["at"]["loss"] = 0.5
        donor.rows[1] = 7.0

    moved({"meter": donor}, change, {"meter": newcomer})

    assert newcomer.total == 2.5
    assert newcomer.history is history and history == [0.5, 0.25, 0.125]
    assert newcomer.best is best and best == {"step": 0, "at": {"loss": 0.5}}
    assert newcomer.rank == 1
    assert newcomer.rows.tolist() == [0.0, 7.0, 0.0]


def test_what_never_changes_stays_the_ranks_own() -> None:
    donor, newcomer = [1, 3, 5], [2, 4, 6]
    losses: list[float] = []

    moved({"rows": donor, "losses": losses}, lambda: losses.append(0.5), {"rows": newcomer})

    assert newcomer == [2, 4, 6]


def test_a_list_that_only_a_frame_holds_is_filled_where_it_lies() -> None:
    losses: list[float] = []
    mine: list[float] = []

    moved({"losses": losses}, lambda: losses.extend([0.5, 0.25]), {"losses": mine})

    assert mine == [0.5, 0.25]


def test_a_function_is_given_the_attribute_that_it_makes_as_it_is_called() -> None:
    def made() -> Any:
        return lambda: None

    donor, newcomer = made(), made()

    moved({"step": donor}, lambda: setattr(donor, "calls", 7), {"step": newcomer})

    assert newcomer.calls == 7


def test_what_the_newcomer_has_not_made_yet_is_made() -> None:
    donor, newcomer = Meter(), Meter()

    def change() -> None:
        donor.cache = {"a": 1}  # type: ignore[attr-defined]

    moved({"meter": donor}, change, {"meter": newcomer})

    assert newcomer.cache == {"a": 1}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("first", "then"),
    [(0.0, -0.0), (1, True), (1, 1.0), (False, 0), (None, 0), ("a", "b"), ("a" * 99, "a" * 98)],
)
def test_values_that_are_equal_and_not_the_same_are_told(first: Any, then: Any) -> None:
    donor, newcomer = {"x": first}, {"x": first}
    moved({"found": donor}, lambda: None, {"found": newcomer})  # its digest is remembered

    moved({"found": donor}, lambda: donor.update(x=then), {"found": newcomer})

    assert repr(newcomer["x"]) == repr(then)


@pytest.mark.parametrize(
    "made",
    [{}, {"x": []}, {"x": [0.5], "at": {"best": {1, 2}}}, {"x": {}}, defaultdict(list, x=[1])],
    ids=["empty", "a list", "lists", "a dict", "of a kind of its own"],
)
def test_a_dict_that_was_made_and_holds_no_plain_value_is_made_there(made: Any) -> None:
    donor, newcomer = Meter(), Meter()
    lists = {"x": [1.0]}
    donor.best["lists"] = lists
    newcomer.best["lists"] = mine = {"x": [1.0]}

    moved({"meter": donor}, lambda: donor.best.update(k=made), {"meter": newcomer})

    assert newcomer.best["k"] == made and type(newcomer.best["k"]) is type(made)
    assert newcomer.best["lists"] is mine and mine == lists


@pytest.mark.parametrize(
    "made",
    [Counter("ab"), defaultdict(int, x=1), OrderedDict(x=1), deque([1, 2], maxlen=2), Point(1, 2),
     {"at": Counter(a=2)}, defaultdict(dict, x={"y": 1}), [Counter("a")]],
    ids=repr,
)  # fmt: skip
def test_what_was_made_has_its_kind_there(made: Any) -> None:
    donor, newcomer = Meter(), Meter()

    moved({"meter": donor}, lambda: donor.best.update(k=made), {"meter": newcomer})

    assert repr(newcomer.best["k"]) == repr(made)
    assert type(newcomer.best["k"]) is type(made)


@pytest.mark.parametrize("now", [defaultdict(int, a=1, b=2), Counter(a=1, b=2), OrderedDict(a=1)])
@pytest.mark.parametrize("then", [{"a": 1}, defaultdict(list, a=1)], ids=["plain", "of a kind"])
def test_a_dict_in_the_place_of_one_of_another_kind_has_its_own(then: Any, now: Any) -> None:
    donor, newcomer = Meter(), Meter()
    donor.best["k"], newcomer.best["k"] = then, copy(then)

    moved({"meter": donor}, lambda: donor.best.update(k=now), {"meter": newcomer})

    assert repr(newcomer.best["k"]) == repr(now)


def test_a_plain_dict_in_the_place_of_one_with_a_factory_has_none() -> None:
    donor, newcomer = Meter(), Meter()
    donor.best["k"], newcomer.best["k"] = defaultdict(int, a=1), defaultdict(int, a=1)

    moved({"meter": donor}, lambda: donor.best.update(k={"a": 1}), {"meter": newcomer})

    assert type(newcomer.best["k"]) is dict and newcomer.best["k"] == {"a": 1}


def test_a_dict_that_is_there_loses_nothing_by_being_told() -> None:
    donor, newcomer = Meter(), Meter()
    own = newcomer.best["k"] = {"own": 1}

    moved({"meter": donor}, lambda: donor.best.update(k={"x": [1]}), {"meter": newcomer})

    assert newcomer.best["k"] is own and own == {"own": 1, "x": [1]}


@pytest.mark.parametrize(
    "made",
    [{"model": torch.nn.Linear(1, 1)}, {"x": [], "f": print}, {"x": [print]}, {"y": {"x": print}}],
)
def test_a_dict_that_holds_what_is_not_told_is_not_made(made: dict[str, Any]) -> None:
    donor, newcomer = Meter(), Meter()

    moved({"meter": donor}, lambda: donor.best.update(k=made), {"meter": newcomer})

    assert "k" not in newcomer.best


def test_a_dict_that_is_told_does_not_stand_for_the_lists_in_it() -> None:
    held = {"found": {"a": {"x": []}}}
    before = plain_values.digests(there(**held))
    whole: set[str] = set()

    assert not list(plain_values.changed(there(**held), before, whole=whole))
    assert whole == {"found.a.x"}


def test_a_dict_of_the_present_batch_is_each_ranks_own() -> None:
    donor, newcomer, batch = Meter(), Meter(), [torch.ones(4)]
    before = plain_values.digests(there(meter=donor))
    donor.best["batch"] = {"x": batch}
    changed = plain_values.changed(there(meter=donor), before, parts_of(batch))

    plain_values.put(plain_values.pack(changed, Packing([])), [], there(meter=newcomer))

    assert "batch" not in newcomer.best


@pytest.mark.parametrize("value", [[object()], list(range(plain_values.LONG_CONTAINER + 1))])
def test_what_is_no_plain_value_or_is_data_is_left_alone(value: list[Any]) -> None:
    donor: list[Any] = []
    newcomer: list[Any] = ["own"]

    moved({"held": donor}, lambda: donor.extend(value), {"held": newcomer})

    assert newcomer == ["own"]


def test_variables_of_the_scripts_modules_are_among_it() -> None:
    module = sys.modules[__name__]
    vars(module)["counted"] = [1]
    before = plain_values.digests(there())
    vars(module)["counted"].append(2)

    places = [one.place for one in plain_values.changed(there(), before)]

    del vars(module)["counted"]
    assert [path for path, key in places if key is None] == [f"{__name__}.counted"]


def test_keys_that_cannot_travel_are_left_alone() -> None:
    handlers: dict[Any, Any] = {Meter: None, "seen": 0}

    places = plain_values.digests(there(handlers=handlers))

    assert [key for path, key in places if path == "handlers"] == ["seen"]


class Row:
    def __init__(self, loss: float) -> None:
        self.loss, self.step = loss, int(loss)


@pytest.mark.parametrize("kind", [list, partial(deque, maxlen=5)])
def test_objects_that_a_list_was_given_are_made_there_in_their_order(kind: Any) -> None:
    donor, newcomer = ({"rows": kind([Row(1.0)])} for _ in range(2))
    kept = newcomer["rows"][0]

    moved(donor, lambda: donor["rows"].extend(map(Row, (2.0, 3.0))), newcomer)

    assert newcomer["rows"][0] is kept
    assert [type(one) for one in newcomer["rows"]] == [Row] * 3
    assert [vars(one) for one in newcomer["rows"]] == [vars(one) for one in donor["rows"]]


@pytest.mark.parametrize("kind", [dict, Counter, partial(defaultdict, int)])
@pytest.mark.parametrize("key", [(0, 1), 0.5, True, None, ("row", (1, 2.0))])
def test_a_dict_with_keys_of_other_kinds_is_told_as_a_whole(kind: Any, key: Any) -> None:
    expected = {"a": 1, key: 6}
    donor, newcomer = ({"held": {"counts": kind({"a": 1})}} for _ in range(2))
    kept = newcomer["held"]["counts"]

    moved(donor, lambda: donor["held"]["counts"].update({key: 6}), newcomer)

    assert newcomer["held"]["counts"] is kept
    assert (type(kept), dict(kept)) == (type(donor["held"]["counts"]), expected)


@pytest.mark.parametrize(
    ("first", "then"), [(np.float64(1), np.float64(2)), (np.zeros(3), np.arange(3.0))]
)
def test_numbers_and_small_arrays_of_numpy_are_told(first: Any, then: Any) -> None:
    donor, newcomer = ({"meters": [Meter()]} for _ in range(2))
    for one in (donor, newcomer):
        one["meters"][0].total = copy(first)

    moved(donor, lambda: vars(donor["meters"][0]).update(total=then), newcomer)

    told = newcomer["meters"][0].total
    assert type(told) is type(then)
    assert np.array_equal(told, then)


def test_batches_are_those_of_each_rank() -> None:
    donor, newcomer = Meter(0), Meter(1)
    batches, mine = [{"x": torch.ones(2)}], [{"x": torch.zeros(2)}]
    batch = batches[0]["x"]
    before = plain_values.digests(there(meter=donor))
    donor.rows, donor.total = batch, 2.5
    data = parts_of([{"x": batch}])

    packing = Packing([])
    holdings = there(meter=donor, batches=batches)
    told = plain_values.pack(plain_values.changed(holdings, before, data), packing)
    plain_values.put(told, packing.tensors, there(meter=newcomer, batches=mine))

    assert newcomer.total == 2.5
    assert newcomer.rows.tolist() == [0.0, 0.0, 0.0]
    assert mine[0]["x"].tolist() == [0.0, 0.0]


class Mean:
    total = 0.0
    count = 0

    def update(self, value: float) -> None:
        self.total, self.count = self.total + value, self.count + 1


class Log:
    def __init__(self) -> None:
        self.means = {"rate": Mean()}


def test_an_object_that_the_newcomer_has_not_made_is_made_with_all_that_it_holds() -> None:
    donor, newcomer = Log(), Log()
    rate = newcomer.means["rate"]

    def change() -> None:
        donor.means["rate"].update(0.5)
        donor.means.setdefault("loss", Mean()).update(2.0)

    moved({"log": donor}, change, {"log": newcomer})

    assert newcomer.means["rate"] is rate and vars(rate) == {"total": 0.5, "count": 1}
    loss = newcomer.means["loss"]
    assert type(loss) is Mean and vars(loss) == {"total": 2.0, "count": 1}


def test_an_object_that_holds_what_is_not_told_is_not_made() -> None:
    donor, newcomer = Log(), Log()

    def change() -> None:
        donor.means["loss"] = strange = Mean()
        strange.update(2.0)
        strange.model = torch.nn.Linear(2, 2)  # type: ignore[attr-defined]

    moved({"log": donor}, change, {"log": newcomer})

    assert list(newcomer.means) == ["rate"]


def test_before_items_are_passed_only_what_holds_no_tensor_is_put() -> None:
    donor, newcomer = Meter(), Meter()
    before = plain_values.digests(there(meter=donor))
    donor.total, donor.rows = 2.5, torch.ones(3)
    told = plain_values.pack(plain_values.changed(there(meter=donor), before), Packing([]))

    plain_values.put_early(told, there(meter=newcomer))

    assert newcomer.total == 2.5
    assert newcomer.rows.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "made", [{"t": ([1.0], [2.0])}, {"loss/train": [1, 2], "of.all": [3]}, {"a b": {"x": 1}}]
)
def test_what_was_made_under_a_name_of_any_kind_is_put_there(made: dict[str, Any]) -> None:
    theirs: dict[str, Any] = {"found": {}}
    ours: dict[str, Any] = {"found": {}}
    before = plain_values.digests(holdings([theirs], frozenset()))
    theirs["found"].update(made)
    packing = Packing([])
    changed = plain_values.changed(holdings([theirs], frozenset()), before)
    told = plain_values.pack(changed, packing)

    plain_values.put(told, packing.tensors, holdings([ours], frozenset()))

    assert ours == theirs


def test_hooks_of_modules_and_optimizers_are_those_of_their_own_process() -> None:
    """Also torch's notes on them, by the numbers of one process."""

    def process() -> dict[str, Any]:
        model = torch.nn.Linear(1, 1)
        return {"model": model, "steps": torch.optim.SGD(model.parameters())}

    def found(of: dict[str, Any]) -> plain_values.Holdings:
        return holdings([of], OWN, idle_hooks=False)

    donor, newcomer, packing = process(), process(), Packing([])
    before = plain_values.digests(found(donor))
    donor["model"].register_forward_pre_hook(lambda *_: None, with_kwargs=True)
    donor["model"].register_forward_hook(lambda *_: None, always_call=True)
    donor["steps"].register_step_pre_hook(lambda *_: None)

    told = plain_values.pack(plain_values.changed(found(donor), before), packing)
    plain_values.put(told, packing.tensors, found(newcomer))

    assert told == []
    newcomer["model"].register_forward_pre_hook(lambda *_: None, with_kwargs=True)
