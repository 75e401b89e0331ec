"""The contents of objects are put back where they lie."""

import random
from collections import deque
from typing import Any

import numpy as np
import torch

from recoverrun.worker.data.put_back import Contents


class Keeper:
    """As a sampler of the script's."""

    def __init__(self) -> None:
        self.place, self.rng = 1, random.Random(3)
        self.rows, self.left = [1, 2, 3], deque([4, 5], maxlen=9)
        self.counts, self.seen = {"a": [1]}, {7}
        self.scores, self.weights = np.ones(3), torch.zeros(2)
        self.part = Part()


class Part:
    def __init__(self) -> None:
        self.at = 5


def changed(one: Any) -> None:
    one.place, one.part.at, one.later = 9, 9, True
    one.rng.random()
    one.rows.append(9)
    one.left.clear()
    one.counts["a"].append(9)
    one.counts["b"] = [9]
    one.seen.add(9)
    one.scores[:] = 9
    one.weights.fill_(9)


def told(one: Any) -> list[Any]:
    held = [one.place, one.part.at, one.rng.getstate(), one.rows, list(one.left), one.counts]
    return [*held, one.seen, one.scores.tolist(), one.weights.tolist(), sorted(vars(one))]


def test_all_is_as_it_was_and_where_it_was() -> None:
    one = Keeper()
    before = repr(told(one))
    parts = [one.rows, one.left, one.counts, one.scores, one.weights, one.part]
    contents = Contents([one])

    for _ in range(2):
        changed(one)
        contents.put_back()

        assert repr(told(one)) == before
        held = [one.rows, one.left, one.counts, one.scores, one.weights, one.part]
        assert all(mine is theirs for mine, theirs in zip(held, parts, strict=True))


def test_a_container_that_has_taken_the_place_of_another_gets_its_content() -> None:
    one = Keeper()
    contents = Contents([one])
    one.rows = other = [7]

    contents.put_back()

    assert one.rows is other and other == [1, 2, 3]


def test_what_cannot_be_written_is_left_alone() -> None:
    fixed = np.arange(3)
    fixed.flags.writeable = False
    with torch.inference_mode():
        inferred = torch.ones(2)

    Contents([[fixed, inferred]]).put_back()

    assert fixed.tolist() == [0, 1, 2]
