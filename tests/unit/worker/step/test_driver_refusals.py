"""A refusal of the driver: while a replica is lost it ends the run, before that nothing."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ft_collectives.communicators.errors import RanksDiffer
from recoverrun.worker.step.worker_state import TOO_LATE, WorkerState
from recoverrun.worker.tracking.mode import ExecutionMode
from rendezvous.protocol.messages import Discord


class Refusing:
    """As much of a session as refusing needs."""

    def __init__(self, *, lost: bool, acting: bool = False) -> None:
        from recoverrun.worker.step.guarantee import Guarantee
        from recoverrun.worker.step.reporter import Reporter

        self.sent: list[Any] = []
        link: Any = SimpleNamespace(send=self.sent.append)
        self.reporter = Reporter(link, 1, lambda: 4, exact=False)
        self.guarantee = Guarantee(self.reporter, lambda: 1)
        self.lost, self.acting = lost, acting
        self.protected = True
        self.unvoted = None
        self.runtime = SimpleNamespace(mode=ExecutionMode())

    @property
    def refusal(self) -> str:
        return self.guarantee.refusal

    def take_no_snapshots(self, reason: str) -> None:
        WorkerState.take_no_snapshots(cast("WorkerState", self), reason)

    def refuse(self) -> None:
        WorkerState.refuse(cast("WorkerState", self), "two models")


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
