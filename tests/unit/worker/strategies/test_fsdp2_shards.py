"""Parameter groups of torch's FSDP2, which are whole between a forward and its backward."""

import pytest

from recoverrun.worker.strategies.fsdp2_shards import switches_of


class Group:
    """As much of torch's `FSDPParamGroup` as is read and called here."""

    def __init__(self, *, sharded: bool = True) -> None:
        self.is_sharded = sharded
        self.reduce_grads = self.all_reduce_grads = True

    def forward(self) -> None:
        self.is_sharded = False

    def _to_sharded(self) -> None:
        self.is_sharded = True


@pytest.mark.parametrize("fails", [False, True])
def test_parameters_are_sharded_again_after_code_that_came_to_no_backward(fails: bool) -> None:
    groups = [Group(), Group()]
    switched = switches_of(groups)

    with pytest.raises(ValueError) if fails else switched():
        with switched():
            groups[0].forward()
            if fails:
                raise ValueError("the script's code")

    assert [one.is_sharded for one in groups] == [True, True]


def test_parameters_that_the_script_has_left_whole_stay_so() -> None:
    group = Group(sharded=False)

    with switches_of([group])():
        group.forward()

    assert not group.is_sharded
