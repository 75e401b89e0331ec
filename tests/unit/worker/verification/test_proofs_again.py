"""What has been proved is proved again, ever more seldom."""

import pytest

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
