"""Calls that cannot be carried out raise what gloo raises, on every rank."""

import re

import pytest

from tests.numerics import worlds, wrong_calls

PLACE = re.compile(r"\[rank\d\]:\[[^\]]*\] |(?<=enforce fail at )\S*/|:\d+(?=\])")
"""Where in gloo's and torch's C++ it was raised."""


@pytest.fixture(scope="module")
def wrong() -> dict[int, dict[str, tuple[str, str, str]]]:
    return worlds.run(wrong_calls.wrong, size=3).results


def beginning(words: str) -> str:
    """The type and the sentence of an error, without values and places."""
    return PLACE.sub("", words).partition(" (")[0].strip()


@pytest.mark.parametrize("name", wrong_calls.WRONG)
def test_what_gloo_refuses_is_refused_in_its_own_words(
    name: str, wrong: dict[int, dict[str, tuple[str, str, str]]]
) -> None:
    for outcomes in wrong.values():
        native, protected, late = map(beginning, outcomes[name])

        assert protected == native
        assert late == native
        assert ("Error" in native) != ("bytes" in name or "one row" in name), native


def test_a_message_with_a_rank_that_was_never_there_raises_at_once() -> None:
    for said in worlds.run(wrong_calls.to_nobody, size=2).results.values():
        assert said == [
            "ValueError: dist.send: rank 9 is not part of the group",
            "ValueError: dist.recv: rank 9 is not part of the group",
        ]


def test_a_root_that_gathers_into_too_few_slots_raises_and_nobody_waits_for_it() -> None:
    results = worlds.run(wrong_calls.too_few_slots, size=3).results

    assert results[0].startswith("RuntimeError: ProcessGroupGloo::gather: Incorrect output list")
    assert results[1] == results[2] == "None"


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
