"""Words by which a source may find out that it runs on rank 0."""

import pytest

from recoverrun.worker.analysis.rank_conditions import RANK0_FLAGS, RANK_NAMES, may_ask_for_rank


@pytest.mark.parametrize("word", [*sorted(RANK0_FLAGS), *RANK_NAMES, "rank", "global_rank"])
def test_a_word_for_the_rank_is_found_in_either_case(word: str) -> None:
    for text in (f"if {word}: pass", f"if a.{word.upper()}: pass", f"_{word}_or = {word}"):
        assert may_ask_for_rank(text.encode())


@pytest.mark.parametrize("text", ["ranking = 1", "gpus = domain_id", "is_mainly()", "x = 1"])
def test_parts_of_other_words_are_none(text: str) -> None:
    assert not may_ask_for_rank(text.encode())
