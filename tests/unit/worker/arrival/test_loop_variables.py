"""The variables that loops bind, as a newcomer is told of them."""

import torch

from recoverrun.worker.arrival.loop_variables import LONG_TENSOR_BYTES, _values
from recoverrun.worker.arrival.packing import Packing


def test_a_large_tensor_comes_along_if_a_later_iteration_reads_it() -> None:
    """A queue of features that each step binds anew; a result of the last step is made again."""
    large = torch.ones(LONG_TENSOR_BYTES // 4 + 1)
    values = {"queue": large, "output": large.clone(), "batch": large.clone()}
    values["loss"] = torch.ones(1, requires_grad=True) * 2
    carried, data = frozenset({"queue", "batch", "loss"}), frozenset({id(values["batch"])})

    told = _values(packing := Packing([]), values, data, carried)

    assert [name for name, _ in told] == ["queue"]
    assert [one is large for one in packing.tensors] == [True]
