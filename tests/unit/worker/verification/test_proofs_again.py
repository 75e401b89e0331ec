"""Proofs are made again, ever more seldom."""

import pytest

from recoverrun.worker.verification.proofs import WAITS
from recoverrun.worker.verification.replay_trial import EMPTY
from tests.unit.contexts import loop
from tests.unit.worker.verification.test_proofs import Play, _gather, microbatch
from tests.unit.worker.verification.test_proofs_kinds import Proving

pytestmark = pytest.mark.usefixtures("streams_put_back", _gather.__name__)


@pytest.fixture
def proofs(monkeypatch: pytest.MonkeyPatch) -> Proving:
    return Proving(Play(microbatch(loop("train.py:5"))), monkeypatch)


def test_what_is_proved_is_proved_again_ever_more_seldom(proofs: Proving) -> None:
    compared = []
    for _ in range(70):
        compared.append(proofs.play.executor.proving)
        proofs.commit(1)

    again = [step for step, _ in proofs.made[2:]]
    assert again == [4, 8, 16, 32, 64], "code may come to what it has not executed so far"
    assert [step for step, one in enumerate(compared, 1) if one][1:] == again, "also its gradient"


def test_who_has_come_back_proves_in_the_next_transaction_what_the_others_have(
    proofs: Proving,
) -> None:
    for _ in range(9):
        proofs.commit(1)
    proofs.play.lost = True
    for _ in range(2):
        proofs.commit(1)
    told = proofs.play.verification.learned()
    assert proofs.made[-1] == (8, True), "with a rank lost nothing can be proved"

    proofs.play.lost = False
    proofs.play.verification.learn(told)  # as the process does that comes back
    compared = []
    for _ in range(2):
        compared.append(proofs.play.executor.proving)
        proofs.commit(1)

    assert proofs.made[-1] == (13, True)
    assert compared == [False, True], "with the gradient of that transaction"


@pytest.mark.parametrize("late", [True, False])
def test_a_child_that_is_late_says_nothing_against_what_was_proved(
    late: bool, proofs: Proving
) -> None:
    for _ in range(3):
        proofs.commit(1)
    proofs.found = {**EMPTY, "reason": "it stood still", "failed": "it stood still", "late": late}
    proofs.commit(1)

    assert proofs.made[-1] == (4, True)
    assert proofs.play.guarantee.promise == ("exact-samples" if late else "equal-count")


ALONE = {**EMPTY, "reason": "rank 1 draws in code for it alone", "alone": True}
RIGHT = {**EMPTY, "exact": [0]}


def test_a_transaction_before_which_a_rank_did_something_alone_shows_nothing(
    proofs: Proving,
) -> None:
    proofs.found = ALONE
    for _ in range(WAITS):
        proofs.commit(1)
    proofs.found = RIGHT
    for _ in range(2):
        proofs.commit(1)

    assert [step for step, _ in proofs.made[1:]] == list(range(1, WAITS + 2)), "until one can be"
    assert proofs.play.guarantee.promise == "exact-samples"


def test_such_a_transaction_does_not_show_either_that_ranks_hold_other_data(
    proofs: Proving,
) -> None:
    """Values that ranks tell each other after it have to stay as they are for the whole run."""
    proofs.found = {**ALONE, "different": ["x"]}
    proofs.commit(1)

    assert len(proofs.made) == 2, "after the first proof one more, and nothing that is tried again"
    assert not [one for one in proofs.play.said if "shares" in one]


def test_where_each_transaction_is_such_a_one_the_promise_comes_down(proofs: Proving) -> None:
    proofs.found = ALONE
    for _ in range(WAITS + 1):
        assert proofs.play.guarantee.promise == "exact-samples"
        proofs.commit(1)

    assert proofs.play.promises[-1] == ("equal-count", ALONE["reason"])


@pytest.mark.parametrize("mine", [ALONE, RIGHT])
def test_what_another_rank_finds_wrong_counts_and_is_said_by_all(
    mine: dict[str, object], proofs: Proving
) -> None:
    proofs.found = {**mine, "reason": ""}
    theirs = {"exact": [], "alone": False, "reason": "other data entered the model"}
    proofs.play.heard = [{}, theirs]
    proofs.commit(1)

    assert proofs.play.promises[-1] == ("equal-count", theirs["reason"])
