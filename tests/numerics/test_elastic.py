"""Collectives of a script while members of its groups die, over real gloo.

"Same" is bitwise where protected is compared with native, and among survivors; a mean over
survivors is compared to 1e-12.
"""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from ft_collectives.step.vote import EXCHANGED
from tests.numerics import elastic_costs as costs
from tests.numerics import elastic_functions as functions
from tests.numerics import elastic_messages, worlds
from tests.numerics import elastic_scripts as scripts

SIZE = 4


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The members need the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# --------------------------------------------------------------------------- without a loss


def test_a_protected_group_does_what_the_native_one_does() -> None:
    outcome = worlds.run(functions.as_native, size=3)

    assert outcome.results == {0: [], 1: [], 2: []}


def test_what_gloo_refuses_is_refused_in_its_own_words() -> None:
    results = worlds.run(functions.wrong, size=3).results

    for pairs in results.values():
        assert [protected for _, protected in pairs] == [native for native, _ in pairs]
    assert sum("Error" in native for native, _ in results[0]) == 8


def test_nothing_grows_with_the_operations() -> None:
    outcome = worlds.run(costs.growth, size=3)

    for counts in outcome.results.values():
        early, late = counts[:4], counts[4:]
        assert early == late


def test_connecting_adds_no_event_thread_and_none_of_them_is_in_a_hurry() -> None:
    results = worlds.run(costs.event_threads, size=2).results

    for before, after, policies in results.values():
        assert before == after > 0
        assert policies == [os.SCHED_BATCH]


def test_a_small_all_reduce_costs_a_known_multiple_of_the_native_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    native, protected = worlds.run(costs.cost, size=2).results[0]

    with capsys.disabled():
        print(
            f"\nall-reduce of 4 bytes: {native:.0f} us native, {protected:.0f} us protected, "
            f"ratio {protected / native:.1f}"
        )


def test_row_42_calls_that_differ_are_named_on_every_rank_and_carried_out_on_none() -> None:
    results = worlds.run(functions.unlike, size=3).results

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


# --------------------------------------------------------------------------- with a rank lost


@pytest.fixture(scope="module")
def after_a_loss() -> dict[int, dict[str, Any]]:
    """What the three survivors of four got; rank r offers r + 1, rank 3 is lost."""
    return worlds.run(functions.after_a_loss, size=SIZE).results


ON_ALL = {
    "all_reduce": [8.0, 8.0],  # 1 + 2 + 3, scaled from three to four
    "all_reduce_mean": [2.0, 2.0],
    "all_reduce_max": [3.0, 3.0],
    "later": [[8.0, 8.0]] * 3,
    "integers": [6],
    "torch.bfloat16": [8.0],
    "torch.complex64": [8 + 0j],
    "broadcast": [2.0, 2.0],
    "all_gather": [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [1.0, 1.0]],  # rank 0 stands in
    "all_gather_into": [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 1.0, 1.0],
    "reduce_scatter": [8.0, 8.0],
    "reduce_scatter_tensor": [8.0, 8.0],
    "all_to_all": [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [0.0, 0.0]],
    "all_to_all_single": [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 0.0, 0.0],
    "all_gather_object": [{"rank": 0}, {"rank": 1}, {"rank": 2}, {"rank": 0}],
    "broadcast_object_list": ["from 0", {"a": 1}],
    "coalesced": [[4.0, 4.0], [4.0, 4.0, 4.0]],
    "functional": [
        [8.0, 8.0],
        [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 1.0, 1.0],
        [8.0, 8.0],
        [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 0.0, 0.0],
        [2.0, 2.0],
        *[[1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 1.0, 1.0]] * 2,
    ],
}

PER_RANK = {
    "reduce": [None, [8.0, 8.0], None],
    "gather": [None, [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [1.0, 1.0]], None],
    "scatter": [[2.0, 2.0], [3.0, 3.0], [4.0, 4.0]],
    "gather_object": [["of 0", "of 1", "of 2", "of 0"], None, None],
    "scatter_object_list": [["a"], ["b"], ["c"]],
}


@pytest.mark.parametrize("name", [*ON_ALL, *PER_RANK])
def test_survivors_complete(name: str, after_a_loss: dict[int, dict[str, Any]]) -> None:
    expected = PER_RANK.get(name) or [ON_ALL[name]] * 3

    assert [after_a_loss[rank][name] for rank in range(3)] == expected


def test_who_knows_what_a_lost_rank_would_have_given_speaks_for_it() -> None:
    results = worlds.run(functions.answered, size=3).results

    assert results[0] == results[2] == [[0, 100, 2], [1], [0, 2, 2]]


def test_groups_that_are_made_late_outlive_losses_too() -> None:
    results = worlds.run(functions.made_late, size=SIZE).results

    assert results[0] == [3.0, 0, 3, 8.0, [0, 1, 2, 0], 0, 3.0, [0, 1], 0]
    assert results[1] == [3.0, 1, 3, 8.0, [0, 1, 2, 0], 1, 3.0, [0, 1], 1]
    assert results[2] == [8.0, [0, 1, 2, 0], 2, 6.0, [2, 2], 0]


def test_a_rank_that_dies_before_it_makes_a_group_is_not_waited_for() -> None:
    assert worlds.run(functions.late_loss, size=3).results == {0: [3.0], 1: [3.0]}


def test_calls_that_are_seldom_made() -> None:
    for said in worlds.run(functions.other_calls, size=SIZE).results.values():
        assert said["RedOpType.MIN"] == 1.0 and said["RedOpType.PRODUCT"] == 6.0
        assert said["flag"] is True
        assert said["to a lost root"] == [None] * 3
        for name in ("isend", "irecv", "batch", "objects", "scatter_object"):
            assert "rank 3 is lost" in said[name], name


def test_a_call_that_names_a_lost_rank_says_so() -> None:
    said = worlds.run(functions.lost_roots, size=SIZE).results[1]

    for text, call in zip(said[:4], ("broadcast", "scatter", "send", "recv"), strict=True):
        assert call in text and "rank 3 is lost" in text
    assert "without a source" in said[4]
    assert said[5] == "[0.0, 0.0]"


def test_the_last_of_a_group_goes_on_alone() -> None:
    told, *results = worlds.run(scripts.solo, size=2).results[0]

    assert [
        "all_reduce",
        1,
        2,
    ] in told  # one alone shows nothing of what the other would have given
    mine = [11.0, 12.0, 13.0, 14.0]
    assert results[:4] == [[2 * one for one in mine], mine, [11, 12, 13, 14], mine]
    assert results[7] == [*mine, 0.0, 0.0, 0.0, 0.0]
    assert results[-2:] == [[[1.0], [0.0]], None]


def test_groups_of_a_part_of_the_world_lose_only_their_own_members() -> None:
    assert worlds.run(scripts.subgroups, size=SIZE).results == {
        0: [2.0, 1.0],
        1: [2.0, 3.0],
        2: [1.0, 3.0],
    }


def test_votes_count_whatever_the_length_of_the_ballots() -> None:
    results = worlds.run(scripts.votes, size=3).results

    assert results[0] == [(3, 3), {3}, (3,), 3]
    assert results[2][2] == (3, 2, 1)  # who disagrees about the length finds out


def test_votes_name_who_takes_unequally_many_microbatches_whatever_their_number() -> None:
    results = worlds.run(scripts.tallies, size=3).results

    assert results[0] == results[1] == results[2]
    few, more, fewer, unequal, summed, differ = results[0]
    assert (few.counts, few.said, few.taken) == ((1,) * 6, (0, 3, 0, 0), {})
    assert (more.counts, more.said, more.taken) == ((1,) * 120, (1, 1, 1, 0), {})
    assert (fewer.counts, fewer.taken) == ((1,) * 9, {})
    assert (unequal.counts, unequal.taken) == ((), {0: 1, 1: 41, 2: 81})
    assert set(summed.counts) == {1} and len(summed.counts) == 3 * (EXCHANGED // 3)
    assert differ.taken == {0: EXCHANGED // 3, 1: EXCHANGED // 3, 2: EXCHANGED // 3 + 1}


def test_ddp_lives_on_a_protected_group() -> None:
    results = worlds.run(scripts.models, size=3).results

    assert results[0] == results[1]


# --------------------------------------------------------------------------- point to point


def test_messages_between_live_ranks_pass_whoever_dies() -> None:
    results = worlds.run(elastic_messages.messages, size=SIZE).results

    assert results[0] == [8.0]
    assert results[1][:5] == [0.0, 1.0, 2.0, 3.0, 7.0]
    assert "rank 2" in results[1][5]
    assert results[1][6] == 6.0
    assert results[3] == [5.0]


def test_a_send_does_not_wait_for_its_receiver() -> None:
    assert worlds.run(elastic_messages.a_send_waits_for_nobody, size=2).results == {0: 0.0, 1: 1.0}
