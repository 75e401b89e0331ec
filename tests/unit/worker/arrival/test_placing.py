"""A fresh process keeps what is its own where nobody knows what its slot had."""

from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recoverrun.worker.arrival import placing, plain_values
from recoverrun.worker.arrival.contents import Before, PackedState
from recoverrun.worker.arrival.packing import Packing
from recoverrun.worker.context.made_objects import MadeObjects
from recoverrun.worker.context.object_graph import holdings
from recoverrun.worker.context.slot_context import Context, Key
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.rng.streams import read_streams


def apart(*keys: Any) -> PackedState:
    return PackedState({"apart": list(keys)}, [])


def kept_through(packed: PackedState, visible: dict[str, Any], change: Any) -> None:
    """Values of others are put in place between."""
    own: dict[Key, Any] = placing.own_values(packed, visible)
    change()
    placing.put_values(visible, own, visible.__setitem__)


def test_what_ranks_had_otherwise_stays_its_own() -> None:
    loader = SimpleNamespace(position=64, step=0)
    visible: dict[str, Any] = {"loader": loader, "offset": 3, "noise": torch.ones(2)}

    def others() -> None:
        loader.position, loader.step = 0, 7
        visible["offset"] = 0
        visible["noise"] = torch.zeros(2)

    kept_through(apart(["loader", "position"], "offset", "noise"), visible, others)

    assert (loader.position, loader.step) == (64, 7)
    assert visible["offset"] == 3
    assert torch.equal(visible["noise"], torch.ones(2))


def test_a_container_is_filled_where_it_lies() -> None:
    seen = [1, 2]
    visible: dict[str, Any] = {"reader": SimpleNamespace(seen=seen)}

    def others() -> None:
        seen[:] = [5, 6, 7]

    kept_through(apart(["reader", "seen"]), visible, others)

    assert visible["reader"].seen is seen
    assert seen == [1, 2]


def test_what_is_not_there_and_marks_of_large_data_are_left_alone() -> None:
    visible: dict[str, Any] = {"x": 1}

    kept_through(apart("x#", "gone", ["nothing", "here"]), visible, lambda: None)

    assert visible == {"x": 1}


class Average:
    """Values that a script keeps beside its model."""

    def __init__(self) -> None:
        self.shadow = {"weight": torch.zeros(5000)}


def of_others(visible: dict[str, Any], **names: Any) -> dict[Key, Any]:
    """The values that are put into the variables of a process with none but these tensors."""
    attributes = {("trainer", "log"): None, ("trainer", "step"): 7}
    told = Context(3, 0, "top", 0, "loop", read_streams(), names, attributes)
    tensors = [("average.shadow", "weight")]
    return placing.without_own_objects(told, visible, tensors, donor=1).values


def test_an_object_of_this_rank_alone_is_kept_where_others_have_none() -> None:
    trainer = SimpleNamespace(log=StringIO(), step=0)
    visible: dict[str, Any] = {"trainer": trainer, "bar": StringIO(), "best": 0.5, "step": 0}

    values = of_others(visible, bar=None, best=None, step=7)
    placing.put_values(visible, values, visible.__setitem__)

    assert isinstance(visible["bar"], StringIO) and isinstance(trainer.log, StringIO)
    assert (visible["best"], visible["step"], trainer.step) == (None, 7, 7)


def test_an_average_that_went_with_the_lost_process_keeps_its_rank_away() -> None:
    visible = {"trainer": SimpleNamespace(log=None, step=0), "average": Average()}

    with pytest.raises(NotReachable, match="average: this process has one, and rank 1 has none"):
        of_others(visible, average=None)


EMA = {f"average.ema.vars._modules['{n}'].bias": torch.full((2,), float(n)) for n in (0, 1)}


def left(*, mine: tuple[str, ...] = (), late: tuple[str, ...] = ()) -> set[str]:
    theirs = {**EMA, "teacher.bias": torch.ones(2)}
    here = {name: torch.zeros(2) for name in ("teacher.bias", *mine)}
    return set(placing.without_own(here, theirs, frozenset(late)))


def test_a_module_that_the_donor_alone_has_made_before_training_is_its_own() -> None:
    assert left() == {"teacher.bias"}


def test_what_was_made_later_or_is_there_in_part_is_everybody_s() -> None:
    first, second = EMA

    assert left(late=(second,)) == {"teacher.bias", second}
    assert left(mine=(first,)) == {"teacher.bias", first, second}


@pytest.mark.parametrize(
    ("mine", "theirs", "words"),
    [
        ((), ("ema.bias",), "rank 3 has ema.bias, and this process has none"),
        (("ema.bias",), (), "this process has ema.bias, and rank 3 has none"),
    ],
)
def test_who_lacks_a_module_is_named(
    mine: tuple[str, ...], theirs: tuple[str, ...], words: str
) -> None:
    with pytest.raises(NotReachable, match=f"untrained modules: {words}"):
        placing._fill(
            "untrained modules",
            {name: torch.zeros(2) for name in mine},
            {name: torch.zeros(2) for name in theirs},
            3,
        )


class Wrapped(torch.optim.SGD):
    """An optimizer around another one, as that of sharpness-aware minimization is: the inner one
    makes the update, and schedulers know the outer one.
    """

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1, momentum=0.9)
        self.inner = torch.optim.SGD(self.param_groups, lr=0.1, momentum=0.9)
        self.param_groups = self.inner.param_groups
        self.state = self.inner.state


def test_optimizers_that_share_their_groups_and_state_share_them_afterwards() -> None:
    (there, _), (here, made) = _wrapped(), _wrapped()
    there.param_groups[0]["lr"] = 0.05
    there.inner.step()
    packing = Packing([])
    told = [packing.pack(one.state_dict()) for one in (there, there.inner)]
    groups, group, state = here.param_groups, here.param_groups[0], here.state

    placing.put_states(made, PackedState({"optimizers": told}, packing.tensors))

    assert here.param_groups is here.inner.param_groups is groups
    assert groups == [group], "the very one, which the script may hold"
    assert groups[0] is group
    assert group["lr"] == 0.05
    assert here.state is here.inner.state is state
    assert [*map(len, state.values())] == [1], "its momentum"


def test_an_optimizer_that_has_been_given_more_groups_is_named() -> None:
    (there, _), (here, made) = _wrapped(), _wrapped()
    there.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))]})
    packing = Packing([])
    told = [packing.pack(one.state_dict()) for one in (there, there.inner)]

    with pytest.raises(NotReachable, match=r"Wrapped of this process has .* \[1\] .* \[1, 1\]"):
        placing.put_states(made, PackedState({"optimizers": told}, packing.tensors))
    assert len(here.param_groups) == 1


def _wrapped() -> tuple[Wrapped, MadeObjects]:
    param, made = torch.nn.Parameter(torch.ones(2)), MadeObjects()
    param.grad = torch.ones(2)
    optimizer = Wrapped([param])
    for one in (optimizer, optimizer.inner):
        made.note_optimizer(one)
    return optimizer, made


def test_values_of_its_own_rank_are_not_what_has_changed_for_one_that_came_back() -> None:
    """It may give others their state later: these would take its rank for theirs."""
    zero, one = ({"job": SimpleNamespace(rank=rank, done=0)} for rank in range(2))
    before = plain_values.digests(holdings([zero], frozenset()))
    zero["job"].done = one["job"].done = 5  # told, and in place
    of_zero, of_one = (holdings([names], frozenset()) for names in (zero, one))
    told = {
        "before": [[*place, digest] for place, digest in before.items()],
        "values": plain_values.pack(plain_values.changed(of_zero, before), Packing([])),
        "rebound": [],
    }

    begun = placing.begun(told, Before(plain_values.digests(of_one)))

    known = begun.digests
    changed = plain_values.changed(of_one, known)
    assert [entry.place for entry in changed] == [("job", "done")]
