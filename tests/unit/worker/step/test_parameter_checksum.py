"""Checksums of parameters: which bits they see, and what the coordinator makes of them."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recoverrun.worker.step import parameter_checksum
from rendezvous.coordinator.digests import compared
from rendezvous.protocol.layout import Layout

THREE = Layout(((0,), (1,), (2,)))
PAIRS = Layout(((0, 1), (2, 3), (4, 5)))


def held(**changes: torch.Tensor) -> dict[str, torch.Tensor]:
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}
    return {**tensors, **changes}


@pytest.mark.parametrize(
    "changes",
    [
        {"a": torch.arange(6.0).reshape(3, 2)},
        {"a": torch.arange(6.0).flip(0).reshape(2, 3)},
        {"a": torch.arange(6.0, dtype=torch.float64).reshape(2, 3)},
        {"b": torch.ones(4, dtype=torch.float16)},
        {"c": torch.zeros(0)},
        {"a": torch.tensor([[-0.0, 1, 2], [3, 4, 5]])},
    ],
    ids=["shape", "order", "kind", "kind of the same size", "name", "sign of zero"],
)
def test_any_difference_is_seen(changes: dict[str, torch.Tensor]) -> None:
    assert parameter_checksum.checksum(held(**changes)) != parameter_checksum.checksum(held())


def test_the_last_bit_of_any_element_is_seen() -> None:
    for place in range(6):
        tensors = held()
        tensors["a"].view(-1).view(torch.int32)[place] ^= 1

        assert parameter_checksum.checksum(tensors) != parameter_checksum.checksum(held())


def test_memory_layout_and_order_of_names_are_not() -> None:
    turned = dict(reversed(held(a=torch.arange(6.0).reshape(2, 3).T.contiguous().T).items()))

    assert parameter_checksum.checksum(turned) == parameter_checksum.checksum(held())


def _session(step: int, every: int, strategy: Any, *, joining: bool = False) -> Any:
    return SimpleNamespace(
        step=step, strategy=strategy, env=SimpleNamespace(digest_every=every), joining=joining
    )


def test_buffers_follow_each_rank_and_do_not_count() -> None:
    mean, weight = torch.zeros(3), torch.ones(3)
    strategy = SimpleNamespace(
        buffers=lambda: [mean], parameters=lambda: {"weight": weight, "mean": mean.detach()}
    )
    before = parameter_checksum.due(_session(0, 1, strategy))
    mean += 1
    after = parameter_checksum.due(_session(0, 1, strategy))
    weight += 1

    assert before == after != parameter_checksum.due(_session(0, 1, strategy))


def test_it_is_taken_every_so_many_steps_or_never() -> None:
    strategy = SimpleNamespace(buffers=list, parameters=held)

    assert [bool(parameter_checksum.due(_session(n, 3, strategy))) for n in range(7)] == [
        True, False, False, True, False, False, True,
    ]  # fmt: skip
    assert parameter_checksum.due(_session(0, 0, strategy)) == ""
    assert parameter_checksum.due(_session(5, 0, strategy, joining=True)), "somebody comes back"


def test_who_differs_from_most_is_named() -> None:
    (record,) = compared(4, {0: "a", 1: "b", 2: "a"}, THREE)

    assert record.event == "digest.differ"
    assert record.reason == (
        "at step 4 the parameters of ranks [[0, 2], [1]] differed: rank 1 against all others"
    )
    assert record.fields == {"step": 4, "ranks": [1], "outvoted": True}


def test_without_a_majority_nobody_is_blamed() -> None:
    (record,) = compared(4, {0: "a", 1: "b", 2: "c"}, THREE)

    assert "against" not in record.reason
    assert record.fields["ranks"] == [0, 1, 2]
    assert not record.fields["outvoted"]


def test_shards_differ_and_only_those_of_one_position_are_compared() -> None:
    same = {0: "a", 1: "x", 2: "a", 3: "x", 4: "a", 5: "x"}

    assert [r.event for r in compared(0, same, PAIRS)] == ["digest.agree"]
    (record,) = compared(0, {**same, 5: "y"}, PAIRS)
    assert record.fields["ranks"] == [5]


def test_who_did_not_look_has_no_say() -> None:
    assert compared(1, {0: "", 1: "", 2: ""}, THREE) == []
    assert [r.event for r in compared(1, {0: "a", 1: "", 2: "a"}, THREE)] == ["digest.agree"]
