"""What is not known of a lost rank, and proved to be no matter, is held against that once more."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ft_collectives.faults import RanksDiffer
from recoverrun.hooks.impersonate import Executed
from recoverrun.hooks.lost import State
from recoverrun.hooks.runtime import Microbatch
from recoverrun.hooks.session import TOO_LATE, Session
from rendezvous.layout import Layout
from rendezvous.messages import Discord
from tests.unit.contexts import at
from tests.unit.survivors import LOST, STEP, Crew, Survivor

pytestmark = pytest.mark.usefixtures("streams_put_back", "exchanging")

OUR_Y, THEIR_Y = 2, 7
TOLD = "y differs between ranks and moves between steps"


def crew_of(*, matters: bool, unknown: bool = True, immaterial: bool = True) -> Crew:
    """Nobody knows the lost rank's `y`: it moved since that left something. With another `y` other
    inputs come, if it `matters`, whatever was proved.
    """
    crew = Crew(program=lambda x: x, microbatches=1, audits=True)
    before = at(STEP - 1, 0, "after", names={"x": 0, "y": OUR_Y - unknown})
    for survivor in crew.survivors:
        _tries(survivor, matters)
        bearing = survivor.impersonator.bearing
        bearing.matters = lambda key, value: False
        bearing.immaterial = frozenset({"y"} if immaterial else ())
        captures, (microbatch,) = survivor.impersonator.captures, survivor.runtime.microbatches
        top = at(STEP, names={"x": 0, "y": OUR_Y})
        captures.points = [before, top, *captures.points[1:]]
        microbatch.top.context = top
    crew.inherit(at(STEP - 1, 0, "after", names={"x": 5, "y": THEIR_Y}))
    return crew


def _tries(survivor: Survivor, matters: bool) -> None:
    """Its executions for the lost rank, by the `y` that they have."""
    execute, survivor.tried = survivor._execute, []  # type: ignore[attr-defined]

    def executes(rank: int, state: State, step: int, microbatch: Microbatch) -> Executed:
        if rank == LOST:
            y = state.context.names.get("y")
            survivor.tried.append((step, y))  # type: ignore[attr-defined]
            survivor.mark = (10 + y, 12) if matters else (11, 12)
        return execute(rank, state, step, microbatch)

    survivor.impersonator.execute = executes


def tried(crew: Crew) -> list[list[tuple[int, int]]]:
    return [survivor.tried for survivor in crew.survivors]  # type: ignore[attr-defined]


def test_in_the_struck_transaction_it_is_executed_with_another_value_too() -> None:
    crew = crew_of(matters=False)

    crew.make_up(((0,), ()))

    assert tried(crew) == [[(STEP, THEIR_Y), (STEP, OUR_Y)], []]
    assert (crew.promises, crew.said) == (["exact-samples"] * 2, [])
    assert crew.gradients == {(LOST, 0): ("own", 5)}


def test_what_differs_with_it_is_made_up_with_fresh_data_and_told() -> None:
    crew = crew_of(matters=True)

    crew.make_up(((0,), ()))

    assert crew.gradients == {(LOST, 0): ("fresh", 0)}
    assert (crew.promises, crew.said) == (["equal-count"] * 2, [TOLD])


@pytest.mark.parametrize("how", [{"unknown": False}, {"immaterial": False}], ids=str)
def test_where_all_that_was_proved_to_be_no_matter_is_known_it_is_executed_once(
    how: dict[str, bool],
) -> None:
    crew = crew_of(matters=True, **how)

    crew.make_up(((0,), ()))

    assert tried(crew) == [[(STEP, THEIR_Y)], []]
    assert crew.promises == ["exact-samples"] * 2


def asked(how: str) -> int:
    """So often is a microbatch executed again, of which something is not known."""
    survivor = crew_of(matters=False).survivors[0]
    if how == "struck":
        survivor.makeup._doubts._known = [LOST - 1]  # another one is lost since
    if how == "audited":
        survivor.makeup._audits._since = 1
    if how == "shards":
        survivor.makeup._doubts._known = []
        survivor.layout = Layout(((0, 1), (LOST, LOST + 1)))
    (microbatch,) = survivor.runtime.microbatches
    start = State(at(STEP, names={"x": 5, "y": THEIR_Y}), frozenset({"y"}))
    survivor.impersonator.lost = {LOST: SimpleNamespace()}
    if how == "later":
        survivor.makeup._doubts._known = [LOST]
    made: Any = SimpleNamespace(
        rank=LOST,
        start=start,
        executed=survivor.impersonator.execute(LOST, start, STEP, microbatch),
    )
    survivor.tried.clear()  # type: ignore[attr-defined]

    audited = survivor.makeup._audits.due
    survivor.makeup._doubts.ignorance(made, microbatch, audited=audited)

    assert survivor.present == [("own", 5)], "what it gave is set aside again"
    return len(survivor.tried)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("how", "times"), [("struck", 1), ("audited", 1), ("later", 0), ("shards", 0)]
)
def test_that_is_asked_in_the_struck_transaction_and_in_audited_ones_of_whole_replicas_alone(
    how: str, times: int
) -> None:
    assert asked(how) == times


# --------------------------------------------------------------------------- no more protection


class Refusing:
    """As much of a session as refusing needs."""

    def __init__(self, *, lost: bool, acting: bool = False) -> None:
        from recoverrun.hooks.guarantee import Guarantee
        from recoverrun.hooks.voice import Voice

        self.sent: list[Any] = []
        link: Any = SimpleNamespace(send=self.sent.append)
        self.voice = Voice(link, 1, lambda: 4, exact=False)
        self.guarantee = Guarantee(self.voice, lambda: 1)
        self.lost, self.acting = lost, acting
        self.machine = object()
        self.runtime = SimpleNamespace(active=True)

    @property
    def refusal(self) -> str:
        return self.guarantee.refusal

    def refuse(self) -> None:
        Session.refuse(cast("Session", self), "two models")


def test_while_a_replica_is_lost_a_refusal_ends_the_run_and_the_launcher_is_told() -> None:
    session = Refusing(lost=True)

    with pytest.raises(RanksDiffer, match="two models"):
        session.refuse()

    assert session.sent == [Discord(rank=1, generation=4, reason=TOO_LATE.format("two models"))]
    assert not session.refusal and session.runtime.active


@pytest.mark.parametrize(("lost", "acting"), [(False, False), (True, True)])
def test_before_that_and_in_another_rank_s_code_nothing_ends(lost: bool, acting: bool) -> None:
    session = Refusing(lost=lost, acting=acting)

    session.refuse()
    session.refuse()

    assert session.refusal == "two models"
    assert not any(isinstance(one, Discord) for one in session.sent)
