"""Parameters that a script changes before its backward: found out by a trial, known to all."""

from typing import Any

import pytest
import torch
from torch import nn

from recoverrun.worker.verification import mutual_proof, replica_children
from recoverrun.worker.verification.replay_trial import EMPTY
from recoverrun.worker.verification.trial_words import WRITES
from tests.unit.contexts import loop
from tests.unit.worker.verification.test_proofs import GENERATION, Play, microbatch
from tests.unit.worker.verification.test_replay_trial import trial

pytestmark = pytest.mark.usefixtures("streams_put_back")


@pytest.fixture(autouse=True)
def _gather(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        mutual_proof, "gather", lambda fabric, channel, generation, mine: fabric.gather(mine)
    )


class Code:
    """A microbatch in three loops, whose code adds one to a parameter each time it is executed.

    `held`: what holds parameters puts them back; `right`: the loop from which it is the partner's.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        changes: bool = True,
        held: bool = True,
        right: int = 0,
    ) -> None:
        self.play = Play(microbatch(*(loop(f"train.py:{line}") for line in (5, 3, 1))))
        self.param = nn.Parameter(torch.zeros(2))
        self.play.executor.optimizers = [torch.optim.SGD([self.param], 0.1)]
        self.play.strategy.parameters = lambda: {"param": self.param.detach()}
        self.play.strategy.buffers = list
        self.changes, self.held, self.right = changes, held, right
        self.tries: list[tuple[int, bool, float]] = []  # loop, held, and what the parameter was
        self.made = trial(self.play, tops=[b"top"] * 3)
        monkeypatch.setattr(self.made, "_try", self._try)
        monkeypatch.setattr(self.made, "_leaves_a_trace", lambda: False)
        monkeypatch.setattr(self.made, "_different", set)

    def _try(self, level: int) -> tuple[str, frozenset[Any]]:
        holds = self.play.executor.rewrites
        self.tries.append((level, holds, float(self.param.detach()[0])))
        if self.changes and not (holds and self.held):
            self.param.data.add_(1.0)
        return "" if level == self.right else "its loss was another one", frozenset()


# --------------------------------------------------------------------------- a trial


def test_code_that_changes_parameters_is_tried_again_with_these_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = Code(monkeypatch)

    found = code.made.work()

    assert code.tries == [(0, False, 0.0), (0, True, 0.0)], "from what they were, both times"
    assert (found["exact"], found["rewrites"], found["reason"]) == ([0], True, "")
    assert code.param.tolist() == [0.0, 0.0]


def test_code_that_changes_no_parameters_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    code = Code(monkeypatch, changes=False)

    found = code.made.work()

    assert code.tries == [(0, False, 0.0)]
    assert (found["exact"], found["rewrites"]) == ([0], False)


@pytest.mark.parametrize("alone", [False, True])
def test_parameters_that_cannot_be_held_leave_the_run_unprotected(
    alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the partner drew alone before: no other transaction is waited for."""
    code = Code(monkeypatch, held=False)
    code.made._alone = alone

    found = code.made.work()

    assert [holds for _, holds, _ in code.tries] == [False, True], "and no other loop is tried"
    assert (found["promise"], found["exact"]) == ("unprotected", [])
    assert found["reason"] == WRITES.format("train.py:5")
    assert not found["alone"]


@pytest.mark.parametrize("held", [True, False])
def test_what_is_known_to_change_parameters_is_held_from_the_first_on(
    held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = Code(monkeypatch, held=held)
    code.play.executor.rewrites = True

    found = code.made.work()

    assert code.tries == [(0, True, 0.0)] and found["rewrites"]
    assert found["promise"] == ("equal-count" if held else "unprotected")


def test_loops_further_out_are_tried_with_parameters_held(monkeypatch: pytest.MonkeyPatch) -> None:
    code = Code(monkeypatch, right=2)

    found = code.made.work()

    assert code.tries == [(0, False, 0.0), (0, True, 0.0), (1, True, 0.0), (2, True, 0.0)]
    assert (found["exact"], found["rewrites"]) == ([2], True)


@pytest.mark.parametrize(
    ("known", "held", "exact", "promise"),
    [
        (False, True, [0], "equal-count"),  # the proof is made once more
        (True, True, [0], "equal-count"),
        (True, False, [], "unprotected"),
    ],
)
def test_behind_the_door_it_is_told_that_parameters_are_changed(
    known: bool, held: bool, exact: list[int], promise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_children, "meet", lambda *_, **__: None)
    code = Code(monkeypatch, held=held)
    code.play.executor.rewrites = known

    found = code.made.work_together(0, "place", 1.0, lambda asked: asked)

    assert code.tries == [(0, known, 0.0)]
    assert found["rewrites"] is not (known and held)
    assert (found["exact"], found["promise"]) == (exact, promise)
    assert found["reason"] == ("" if exact else WRITES.format("train.py:5"))


def test_what_is_told_if_nothing_is_tried_is_that_nothing_is_changed() -> None:
    assert EMPTY["rewrites"] is False


# --------------------------------------------------------------------------- all ranks


def agree(play: Play, mine: bool, theirs: bool) -> bool:
    play.heard = [{"rewrites": theirs}]
    play.verification._mutual._agreed({**EMPTY, "exact": [0], "rewrites": mine}, GENERATION)
    rewrites: bool = play.executor.rewrites
    return rewrites


@pytest.mark.parametrize("theirs", [False, True])
@pytest.mark.parametrize("mine", [False, True])
def test_parameters_that_change_on_one_rank_are_held_on_all(mine: bool, theirs: bool) -> None:
    assert agree(Play(), mine, theirs) == (mine or theirs)


def test_a_later_proof_in_which_nothing_changes_them_forgets_nothing() -> None:
    play = Play()
    agree(play, False, True)

    assert agree(play, False, False)


def test_a_rank_of_whose_child_nothing_comes_still_hears_of_it() -> None:
    """It says what such a child would: no exact loop, and nothing changed."""
    play = Play()
    play.heard = [{"exact": [0], "rewrites": True}]

    level = play.verification._mutual._agreed({**EMPTY}, GENERATION)

    assert level is None and play.executor.rewrites
