import pytest

from recoverrun.worker.arrival import published
from recoverrun.worker.arrival.state_wire import Address
from rendezvous.protocol.layout import Layout


def test_how_the_others_train_comes_back() -> None:
    way = published.TrainingPlace(
        "ddp", Layout(((0, 1), (2, 3))), ("train.py:4", "train.py:9"), 17.5
    )

    assert published.unpacked(published.packed(way)) == way


@pytest.mark.parametrize("word", [Address("::1", 7, b"\xff" * 16), "x cannot travel"])
def test_the_word_of_a_donor_is_where_packed_state_is_or_why_there_is_none(
    word: Address | str,
) -> None:
    assert published.unpacked_word(published.packed_word(word)) == word


def test_no_two_ranks_are_told_under_one_key() -> None:
    keys = {published.address_key(generation, rank) for generation in (2, 22) for rank in (1, 2)}

    assert len(keys) == 4
