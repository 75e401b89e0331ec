"""A refusal of the driver: while a replica is lost it ends the run, before that nothing."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ft_collectives.communicators.errors import RanksDiffer
from recoverrun.worker.step.unvoted_steps import UnvotedSteps
from recoverrun.worker.step.worker_state import TOO_LATE, WorkerState
from recoverrun.worker.tracking.mode import ExecutionMode
from rendezvous.protocol.messages import Discord, Promise
from rendezvous.protocol.worker_env import UNASKED


class Refusing:
    """As much of a session as refusing needs."""

    def __init__(
        self, *, lost: bool, acting: bool = False, every: str = "auto", unserved: str = ""
    ) -> None:
        from recoverrun.worker.step.guarantee import Guarantee
        from recoverrun.worker.step.reporter import Reporter

        self.sent: list[Any] = []
        link: Any = SimpleNamespace(send=self.sent.append)
        self.reporter = Reporter(link, 1, lambda: 4, exact=False)
        self.guarantee = Guarantee(self.reporter, lambda: 1)
        self.lost, self.acting = lost, acting
        self.protected = True
        self.unvoted = UnvotedSteps(cast("Any", None), unserved=lambda: unserved)
        self.env = SimpleNamespace(snapshot_every=every, restore="", rank=1)
        self.ended: list[str] = []  # snapshots
        self.runtime = SimpleNamespace(mode=ExecutionMode())

    @property
    def refusal(self) -> str:
        return self.guarantee.refusal

    @property
    def without_survivors(self) -> Promise:
        getter: Any = WorkerState.without_survivors
        return cast("Promise", getter.fget(self))

    def take_no_snapshots(self, reason: str) -> None:
        self.ended.append(reason)

    def refuse(self, *, snapshots: bool = True) -> None:
        WorkerState.refuse(cast("WorkerState", self), "two models", snapshots=snapshots)


def test_while_a_replica_is_lost_a_refusal_ends_the_run_and_the_launcher_is_told() -> None:
    session = Refusing(lost=True)

    with pytest.raises(RanksDiffer, match="two models"):
        session.refuse()

    assert session.sent == [Discord(rank=1, generation=4, reason=TOO_LATE.format("two models"))]
    assert not session.refusal and session.runtime.mode.active


@pytest.mark.parametrize(("lost", "acting"), [(False, False), (True, True)])
def test_before_that_and_in_another_rank_s_code_nothing_ends(lost: bool, acting: bool) -> None:
    session = Refusing(lost=lost, acting=acting)

    session.refuse()
    session.refuse()

    assert session.refusal == "two models"
    assert not any(isinstance(one, Discord) for one in session.sent)


@pytest.mark.parametrize(
    ("every", "snapshots", "promise"),
    [
        ("auto", True, "rollback"),
        ("5", True, "rollback"),
        ("5", False, "unprotected"),
        (UNASKED, True, "rollback"),
        (UNASKED, False, "unprotected"),
    ],
)
def test_all_ranks_go_back_to_snapshots_where_there_can_be_any(
    every: str, snapshots: bool, promise: str
) -> None:
    session = Refusing(lost=False, every=every)
    session.protected = False

    session.refuse(snapshots=snapshots)

    waits = " (the first one is taken after 10 s)" if (every, snapshots) == (UNASKED, True) else ""
    assert (session.guarantee.promise, session.refusal) == (promise, "two models" + waits)
    goes_back = promise == "rollback"
    assert session.runtime.mode.active is goes_back and bool(session.ended) is not goes_back


@pytest.mark.parametrize(("every", "promise"), [("9", "rollback"), (UNASKED, "unprotected")])
def test_of_a_model_on_an_accelerator_nothing_is_copied_unless_somebody_asks(
    every: str, promise: str
) -> None:
    session = Refusing(lost=False, every=every, unserved="the model is on cuda:0")

    session.refuse()

    assert session.guarantee.promise == promise


@pytest.mark.parametrize(("every", "promise"), [("9", "rollback"), (UNASKED, "unprotected")])
def test_a_promise_of_steps_that_outlive_a_loss_ends_snapshots_that_nobody_asked_for(
    every: str, promise: str
) -> None:
    session = Refusing(lost=False, every=every)
    session.guarantee.state("exact-samples", "")

    session.refuse()

    assert session.guarantee.promise == promise
