"""Values that each rank moves by what it computes for itself, while one is lost."""

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from recoverrun.worker.context.slot_context import Context
from recoverrun.worker.make_up.own_moves import OwnMoves
from recoverrun.worker.replay.lost_rank import LostRank
from tests.unit.contexts import at, loop

pytestmark = pytest.mark.usefixtures("streams_put_back")


class Present:
    """A survivor as transaction 4 begins, and lost rank 1, which left transaction 3."""

    def __init__(self, own: set[str], unread: set[str] | None = None, **held: Any) -> None:
        self.asked: list[set[Any]] = []
        self.top = SimpleNamespace(globals=dict(held), names={}, loop=loop())
        self.points: list[Context] = []
        self._own = own
        influence = SimpleNamespace(
            top=self.top,
            matters=lambda key, value: key not in (unread or ()),
            own_results=self._is_own,
        )
        executor: Any = SimpleNamespace(
            captures=SimpleNamespace(points=self.points),
            influence=influence,
            runtime=SimpleNamespace(own_modules=frozenset({__name__})),
        )
        self.moves = OwnMoves(executor)

    def _is_own(self, differing: set[Any], key: Any) -> bool:
        self.asked.append(set(differing))
        return (key if isinstance(key, str) else key[-1]) in self._own

    def found(self, *course: dict[str, Any], theirs: dict[str, Any], **told: Any) -> str:
        """Our names as 3 began, as its backward ended, and now; `theirs` as that had ended."""
        began, ended, now = course
        lost = LostRank(1, apart=False)
        mine = at(3, 0, "after", names=ended, behind=told)
        lost.learn(at(3, 0, "after", names=theirs, behind=told), mine)
        self.points += [at(3, names=began), mine, here := at(4, names=now)]
        lost.at(here.point, self.points)
        return self.moves.found(here, [lost])


COMMON = {"level": 1, "mean": 0.5}, {"level": 1, "mean": 0.5}


def test_what_all_had_in_common_is_nobodys_once_it_is_moved_by_a_ranks_own() -> None:
    why = Present({"level"}).found(*COMMON, {"level": 2, "mean": 0.5}, theirs=COMMON[1])

    assert why.startswith("level comes of what each rank computes for itself") and "rank 1" in why


@pytest.mark.parametrize(
    ("own", "unread", "now", "theirs", "told"),
    [
        (set(), set(), 2, 1, {}),  # all move it alike
        ({"level"}, {"level"}, 2, 1, {}),  # no microbatch reads it
        ({"level"}, set(), 1, 1, {}),  # it rests
        ({"level"}, set(), 2, 7, {}),  # it was not common: what is unknown is known to be
        ({"level"}, set(), 2, 2, {}),  # nor was this, and it begins anew, say
        ({"level"}, set(), 2, 1, {"level": 2}),  # the rest of its iteration was told
    ],
)
def test_other_values_are_let_be(
    own: set[str], unread: set[str], now: int, theirs: int, told: dict[str, int]
) -> None:
    present = Present(own, unread)

    assert not present.found(*COMMON, {**COMMON[1], "level": now},
                             theirs={**COMMON[1], "level": theirs}, **told)  # fmt: skip


def test_what_differs_and_moves_is_named_to_the_text() -> None:
    """A constant of the rank is not: nothing is computed of it anew."""
    present = Present({"level"})
    names = [{"level": 1, "mean": mean, "rank": 0} for mean in (0.1, 0.2)]
    theirs = {"level": 1, "mean": 0.7, "rank": 1}

    assert present.found(*names, {"level": 2, "mean": 0.3, "rank": 0}, theirs=theirs)
    assert present.asked[0] == {"mean"}


class Flips(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("chance", torch.zeros(2))


def _write(held: Any) -> None:
    held[0] = torch.ones(3) if isinstance(held, list | deque) else 1


@pytest.mark.parametrize(
    "held",
    [
        torch.zeros(9),
        numpy.zeros(999),
        [torch.zeros(3)],
        dict.fromkeys(range(99)),
        deque([torch.zeros(3)]),
    ],
)
def test_large_data_that_are_moved_by_a_ranks_own_are_seen(held: Any) -> None:
    present = Present({"scores"}, scores=held)
    present.moves.rests()
    assert not present.found(*COMMON, COMMON[1], theirs=COMMON[1])

    _write(held)

    assert "scores comes of" in present.found(*COMMON, COMMON[1], theirs=COMMON[1])


@pytest.mark.parametrize("kind", [lambda value: value, lambda value: {"tokens": value}])
def test_what_an_iteration_binds_first_is_none_of_its_state(kind: Callable[[Any], Any]) -> None:
    present = Present({"batch", "['tokens']"}, batch=kind(torch.zeros(9)))
    present.top.loop = loop(targets=frozenset({"batch"}))
    present.moves.rests()

    present.top.globals["batch"] = kind(torch.ones(9))

    assert not present.found(*COMMON, COMMON[1], theirs=COMMON[1])


def test_what_cannot_be_written_to_is_another_one_then() -> None:
    present = Present({"scores"}, scores=(torch.zeros(3),))
    present.moves.rests()

    present.top.globals["scores"] = (torch.ones(3),)

    assert "scores comes of" in present.found(*COMMON, COMMON[1], theirs=COMMON[1])


def test_once_nobody_is_lost_nothing_is_compared_with_what_was() -> None:
    scores = torch.zeros(9)
    present = Present({"scores"}, scores=scores)
    present.moves.rests()
    present.moves.forget()
    scores.add_(1)

    assert not present.found(*COMMON, COMMON[1], theirs=COMMON[1])


def test_so_is_a_buffer_of_a_module() -> None:
    flips = Flips()
    present = Present({"chance"}, flips=flips)
    present.moves.rests()

    flips.get_buffer("chance").add_(1)

    assert "Flips.chance comes of" in present.found(*COMMON, COMMON[1], theirs=COMMON[1])


def test_what_moves_within_a_microbatch_is_not_looked_at() -> None:
    scores = torch.zeros(9)
    present = Present({"scores"}, scores=scores)
    scores.add_(1)
    present.moves.rests()

    assert not present.found(*COMMON, COMMON[1], theirs=COMMON[1])
