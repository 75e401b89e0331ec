"""Gradients that do not fit together are named before gloo sees them (row 42)."""

from recoverrun.hooks.rehearsal import misfit

HALF, FULL = [8, "torch.float16"], [8, "torch.float32"]


def test_equal_layouts_fit() -> None:
    assert misfit({0: [HALF, FULL], 1: [HALF, FULL]}) == ""
    assert misfit({0: [], 1: []}) == ""


def test_the_first_bucket_that_differs_is_named_and_most_ranks_come_first() -> None:
    said = misfit({0: [FULL, HALF], 1: [FULL, FULL], 2: [FULL, FULL]})

    assert said.endswith("ranks 1, 2: 8 of torch.float32; rank 0: 8 of torch.float16")


def test_a_rank_with_fewer_buckets_is_named() -> None:
    assert misfit({0: [FULL], 1: [FULL, HALF]}).endswith("rank 0: none; rank 1: 8 of torch.float16")
