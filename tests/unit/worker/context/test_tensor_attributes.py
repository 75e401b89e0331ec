"""Attributes that a script gives to parameters are found, told, and put where they were."""

import threading
from typing import Any

import pytest
import torch
from torch import nn

from recoverrun.worker.arrival import lost_entries
from recoverrun.worker.arrival.packing import Packing
from recoverrun.worker.context.object_contents import KeptContents
from recoverrun.worker.context.object_graph import Holdings, holdings
from recoverrun.worker.context.tensor_attributes import OF_TENSORS, given_to
from recoverrun.worker.snapshots import library_objects
from recoverrun.worker.snapshots.references import References
from tests.unit.newcomers import Variables, arrives

OWN = frozenset({__name__})


def made(size: int) -> Variables:
    """As the first lines of a script make them."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(size, size), nn.ReLU())
    for param in model.parameters():
        one: Any = param
        one.average, one.seen, one.losses, one.note = param.detach().clone(), 0, [], None
    return {"model": model}


def there(variables: Variables) -> Holdings:
    return holdings([variables], OWN, idle_hooks=False)


def weight_of(variables: Any) -> Any:
    return variables["model"][0].weight


@pytest.mark.parametrize("size", [2, 64])
def test_a_newcomer_has_what_others_have_written_since(size: int) -> None:
    def change(variables: Variables) -> None:
        for param in variables["model"].parameters():
            param.average.mul_(0.5)
            param.seen += 3
            param.losses.append(0.25)
            param.note = "late"
            param.late = {"sum": torch.ones(size, size), "rows": [1, 2]}

    donor, newcomer = arrives(lambda: made(size), change, OWN)

    for mine, theirs in zip(
        newcomer["model"].parameters(), donor["model"].parameters(), strict=True
    ):
        assert torch.equal(mine.average, theirs.average)
        assert (mine.seen, mine.losses, mine.note) == (3, [0.25], "late")
        assert torch.equal(mine.late["sum"], torch.ones(size, size))
        assert mine.late["rows"] == [1, 2]


def test_an_attribute_that_was_deleted_is_not_there_again() -> None:
    first, second = made(2), made(2)
    before = lost_entries.keys_of(there(first))
    del weight_of(first).seen

    lost_entries.take_away(lost_entries.told(there(first), before), there(second))

    assert not hasattr(weight_of(second), "seen")


def test_the_books_of_torch_are_not_looked_at() -> None:
    weight: Any = nn.Parameter(torch.zeros(2))
    weight._post_backward_hook_state = [torch.zeros(2)]
    weight.average = torch.zeros(2)

    found = given_to(weight)

    assert found is not None and dict(found) == {"average": weight.average}
    assert given_to(torch.zeros(2)) is None


def test_what_an_execution_has_written_is_put_back() -> None:
    variables = made(2)
    kept = KeptContents(one for _, one in there(variables).held)
    weight_of(variables).seen, weight_of(variables).late = 5, 1

    kept.put_back()

    assert weight_of(variables).seen == 0 and not hasattr(weight_of(variables), "late")


def test_an_object_of_a_library_that_it_was_given_since_is_told() -> None:
    variables = made(2)
    references = References(there(variables), [], OWN)
    weight_of(variables).lock = threading.Lock()

    told = references.told(there(variables), [], [], Packing([]))

    assert [one[1:3] for one in told] == [["lock", library_objects.ONLY_TOLD]]
    assert library_objects.lacking(told, there(made(2)), [])[0].startswith(
        f"model.vars._modules['0'].vars._parameters.weight{OF_TENSORS}['lock']"
    )
