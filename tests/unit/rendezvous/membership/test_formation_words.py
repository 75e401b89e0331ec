"""Whoever waits reads which nodes are missing, and which one is meant."""

import pytest

from rendezvous.membership.formation_words import awaited_words, node_names


def test_one_host_s_launchers_are_told_apart() -> None:
    assert node_names(["a", "b"]) == ("a", "b")
    assert node_names(["a", "b", "a"]) == ("a.0", "b.1", "a.2")


@pytest.mark.parametrize(
    ("here", "taken", "words"),
    [
        (1, {0}, "waiting for 2 of 3 nodes (node ranks 1, 2)"),
        (2, {0, 2}, "waiting for 1 of 3 nodes (node rank 1)"),
        (2, {0}, "waiting for 1 of 3 nodes"),
    ],
)
def test_node_ranks_are_named_where_everybody_has_one(
    here: int, taken: set[int], words: str
) -> None:
    assert awaited_words(here, 3, 3, taken) == words


def test_many_node_ranks_are_not_named() -> None:
    assert awaited_words(1, 64, 64, {0}) == "waiting for 63 of 64 nodes"
