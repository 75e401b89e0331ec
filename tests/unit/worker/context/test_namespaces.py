"""Names of the script around a microbatch."""

import torch

from recoverrun.worker.context.namespaces import made_by
from tests.unit.contexts import loop

LOCAL = {
    "loss": torch.ones(1, requires_grad=True) * 2,
    "hits": torch.tensor(3),
    "scores": torch.zeros(200),
    "n": 5,
    "ids": 3,
    "total": 9,
    "path": "x",
    "lr": 0.1,
}


def test_an_iteration_makes_those_numbers_that_it_binds_and_no_other_reads() -> None:
    assigned = frozenset(LOCAL) - {"lr"}
    flat = loop(assigned=assigned, live_in=frozenset({"total"}), targets=frozenset({"ids"}))

    assert made_by(flat, LOCAL) == {"hits": LOCAL["hits"], "n": 5}


def test_a_module_s_variables_are_known_without_that() -> None:
    assert not made_by(loop(assigned=frozenset(LOCAL), module_level=True), LOCAL)
