"""Making up: one gradient for each identity, as the lost rank for as long as that can be told."""

import itertools
import threading
from typing import Any

import pytest

from recoverrun.hooks.data import NotReplayable
from recoverrun.hooks.makeup import LEGACY_WAIT_S, MakeUp
from rendezvous.messages import Legacy

BEHAVIOURS = ("exact", "knows nothing", "cannot be known", "no backward", "cannot be replayed")
RANK, SHAPE = 7, type("Shape", (), {"region": type("Region", (), {"id": "train.py:3"})})()


class Impersonator:
    """Computes as told; `gradients` says how each of them came about."""

    def __init__(self) -> None:
        self.behaviour = "exact"
        self.gradients: list[tuple[str, int]] = []
        self.inherited: dict[int, tuple[bytes, ...]] = {}

    def inherit(self, rank: int, packed: tuple[bytes, ...]) -> None:
        self.inherited[rank] = packed

    def knows(self, rank: int, step: int) -> bool:
        if self.behaviour == "cannot be known":
            raise NotReplayable("x differs between ranks and moves")
        return self.behaviour != "knows nothing"

    def execute(self, rank: int, index: int, shape: Any) -> bool:
        if self.behaviour == "cannot be replayed":
            raise NotReplayable("random numbers move")
        if self.behaviour == "no backward":
            return False
        self.gradients.append(("exact", index))
        return True

    def execute_fresh(self, index: int, shape: Any) -> bool:
        self.gradients.append(("fresh", index))
        return True


def made() -> tuple[Impersonator, MakeUp, list[str]]:
    impersonator = Impersonator()
    told: list[str] = []
    return impersonator, MakeUp(impersonator, told.append), told  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_each_identity_has_one_gradient_whatever_comes_in_between(length: int) -> None:
    for course in itertools.product(BEHAVIOURS, repeat=length):
        impersonator, makeup, told = made()
        for index, behaviour in enumerate(course):
            impersonator.behaviour = behaviour
            makeup.compute(RANK, index, 5, SHAPE)

        exact = len(list(itertools.takewhile(lambda one: one == "exact", course)))
        kinds = ["exact"] * exact + ["fresh"] * (length - exact)
        assert impersonator.gradients == list(zip(kinds, range(length), strict=True)), course
        assert len(told) == (exact < length), course
        assert makeup.exact == (exact == length)


def test_what_lost_ranks_left_is_taken_in_before_anything_is_computed() -> None:
    impersonator, makeup, _ = made()
    makeup.inherit(Legacy(generation=2, contexts=((RANK, (b"context",)),)))

    makeup.compute(RANK, 0, 5, SHAPE)

    assert impersonator.inherited == {RANK: (b"context",)}


def test_who_needs_a_context_at_once_waits_for_it() -> None:
    impersonator, makeup, _ = made()
    legacy = Legacy(generation=2, contexts=((RANK, (b"context",)),))
    found: list[dict[int, tuple[bytes, ...]]] = []

    def look() -> None:
        makeup.await_legacy(RANK)
        makeup.absorb(5)
        found.append(dict(impersonator.inherited))

    waiting = threading.Thread(target=look)
    waiting.start()
    makeup.inherit(Legacy(generation=2, contexts=((RANK + 1, (b"another's",)),)))
    makeup.inherit(legacy)
    waiting.join(timeout=LEGACY_WAIT_S / 2)

    assert [one[RANK] for one in found] == [(b"context",)]


def test_nobody_waits_for_ever_for_what_a_lost_rank_did_not_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    impersonator, makeup, _ = made()
    monkeypatch.setattr("recoverrun.hooks.makeup.LEGACY_WAIT_S", 0.01)

    makeup.await_legacy(RANK)
    makeup.absorb(5)

    assert impersonator.inherited == {}


def test_a_context_that_is_of_no_use_is_told_once_and_before_it_is_needed() -> None:
    impersonator, makeup, told = made()
    impersonator.behaviour = "cannot be known"
    makeup.inherit(Legacy(generation=2, contexts=((RANK, (b"context",)),)))
    for step in range(3):
        makeup.absorb(step)

    assert told == ["x differs between ranks and moves"]
