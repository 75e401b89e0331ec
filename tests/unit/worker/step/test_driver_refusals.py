"""A refusal of the driver: while a replica is lost it ends the run, before that nothing."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ft_collectives.communicators.errors import RanksDiffer
from recoverrun.worker.step.worker_state import TOO_LATE, WorkerState
from recoverrun.worker.tracking.mode import ExecutionMode
from rendezvous.protocol.messages import Discord, Promise
from rendezvous.protocol.worker_env import IF_ALONE


class Refusing:
    """As much of a session as refusing needs."""

    def __init__(self, *, lost: bool, acting: bool = False, every: str = IF_ALONE) -> None:
        from recoverrun.worker.step.guarantee import Guarantee
        from recoverrun.worker.step.reporter import Reporter

        self.sent: list[Any] = []
        link: Any = SimpleNamespace(send=self.sent.append)
        self.reporter = Reporter(link, 1, lambda: 4, exact=False)
        self.guarantee = Guarantee(self.reporter, lambda: 1)
        self.lost, self.acting = lost, acting
        self.protected = True
        self.unvoted = object()  # snapshots can be taken
        self.env = SimpleNamespace(snapshot_every=every, rank=1)
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
        (IF_ALONE, True, "unprotected"),
    ],
)
def test_who_asked_for_snapshots_goes_back_to_them(
    every: str, snapshots: bool, promise: str
) -> None:
    session = Refusing(lost=False, every=every)
    session.protected = False

    session.refuse(snapshots=snapshots)

    assert (session.guarantee.promise, session.refusal) == (promise, "two models")
    goes_back = promise == "rollback"
    assert session.runtime.mode.active is goes_back and bool(session.ended) is not goes_back
