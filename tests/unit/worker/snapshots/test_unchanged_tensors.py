"""Tensors that do not change are learned; nothing is believed that was not seen."""

import torch

from recoverrun.worker.snapshots.unchanged_tensors import (
    LEARN_EVERY,
    SMALL_BYTES,
    UnchangedTensors,
    is_candidate,
    sum_of,
)


def large() -> torch.Tensor:
    return torch.randn(SMALL_BYTES)


def learned(unchanged: UnchangedTensors, tensors: dict[str, torch.Tensor], moving: str) -> None:
    assert unchanged.is_due
    unchanged.begins()
    unchanged.sum_up(list(tensors), list(tensors.values()))
    if moving:
        tensors[moving].view(-1)[3] += 1
    assert set(unchanged.learn()) == {name for name, one in tensors.items() if is_candidate(one)}


def test_what_moved_is_not_waited_for_and_what_stood_still_is() -> None:
    unchanged = UnchangedTensors()
    tensors = {"weight": large(), "mean": large()}

    learned(unchanged, tensors, "mean")

    assert unchanged.names == {"weight"}


def test_a_change_that_torch_does_not_count_is_seen() -> None:
    unchanged = UnchangedTensors()
    tensors = {"flat": large()}
    assert unchanged.is_due
    unchanged.begins()
    unchanged.sum_up(list(tensors), list(tensors.values()))
    before = tensors["flat"]._version
    tensors["flat"].data[0] += 1
    assert tensors["flat"]._version == before
    unchanged.learn()

    assert unchanged.names == frozenset()


def test_nothing_is_known_of_a_new_or_a_small_tensor() -> None:
    unchanged = UnchangedTensors()
    tensors = {"weight": large(), "bias": torch.zeros(4)}
    assert unchanged.names is None

    learned(unchanged, tensors, "")

    assert unchanged.names == {"weight"}


def test_all_is_learned_anew_at_times() -> None:
    unchanged = UnchangedTensors()

    due = []
    for _ in range(2 * LEARN_EVERY + 1):
        due.append(unchanged.is_due)
        unchanged.begins()
        if due[-1]:
            unchanged.learn()

    assert [number for number, learns in enumerate(due) if learns] == [
        0, LEARN_EVERY, 2 * LEARN_EVERY,
    ]  # fmt: skip


def test_one_that_comes_to_no_fence_is_due_again() -> None:
    unchanged = UnchangedTensors()

    unchanged.begins()
    unchanged.sum_up(["weight"], [large()])

    assert unchanged.is_due and unchanged.names is None


def test_what_moved_after_all_is_copied_at_once_from_then_on() -> None:
    unchanged = UnchangedTensors()
    tensors = {"weight": large()}
    learned(unchanged, tensors, "")

    unchanged.forget(["weight"])

    assert unchanged.names == frozenset()


def test_sums_see_every_bit_of_tensors_of_any_size() -> None:
    for size in (1, 7, 8, 9, 4097):
        whole = torch.randint(0, 255, (size,), dtype=torch.uint8)
        for place in {0, size // 2, size - 1}:
            changed = whole.clone()
            changed[place] ^= 1
            assert sum_of(changed) != sum_of(whole), (size, place)
    assert sum_of(torch.arange(9, dtype=torch.uint8)[1:]) > 0
