"""Calls that cannot be carried out raise what gloo raises, on every rank."""

from tests.numerics import worlds, wrong_calls


def test_what_gloo_refuses_is_refused_in_its_own_words() -> None:
    results = worlds.run(wrong_calls.wrong, size=3).results

    for pairs in results.values():
        assert [protected for _, protected in pairs] == [native for native, _ in pairs]
    assert sum("Error" in native for native, _ in results[0]) == 8


def test_row_42_calls_that_differ_are_named_on_every_rank_and_carried_out_on_none() -> None:
    results = worlds.run(wrong_calls.unlike, size=3).results

    assert results[0] == results[1] == results[2]
    assert [said.partition("carried out: ")[2] for said in results[0][:5]] == [
        "ranks 0, 2: dist.all_reduce of 3 elements of torch.float32 by SUM; "
        "rank 1: dist.all_reduce of 4 elements of torch.float32 by SUM",
        "ranks 0, 2: dist.all_reduce of 3 elements of torch.float32 by SUM; "
        "rank 1: dist.all_reduce of 3 elements of torch.float64 by SUM",
        "ranks 0, 2: dist.all_reduce of 3 elements of torch.float32 by SUM; "
        "rank 1: dist.all_reduce of 3 elements of torch.float32 by MAX",
        "ranks 0, 2: dist.all_reduce of 3 elements of torch.float32 by SUM; rank 1: dist.barrier",
        "ranks 0, 2: dist.broadcast of 3 elements of torch.float32 with root 0; "
        "rank 1: dist.broadcast of 3 elements of torch.float32 with root 1",
    ]
    assert results[0][5] == "[3.0, 3.0, 3.0]"
