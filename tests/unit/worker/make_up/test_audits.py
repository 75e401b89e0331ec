"""Audits: when they are due, who executes what again, and what two survivors conclude from it."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recoverrun.worker.context.slot_context import Context
from recoverrun.worker.make_up import audits as audits_module
from recoverrun.worker.make_up.audits import (
    EVERY,
    NOT_ITSELF,
    UNLIKE,
    WHAT,
    Audits,
    _report,
    difference,
)
from recoverrun.worker.make_up.made_microbatch import Made
from recoverrun.worker.make_up.noted_evidence import OWN
from recoverrun.worker.replay.executor import Executed
from rendezvous.protocol.layout import Layout
from rendezvous.protocol.messages import Identity
from tests.unit.contexts import at, draw
from tests.unit.survivors import LOST, STEP, Crew, left_at_top
from tests.unit.workers import protected

pytestmark = pytest.mark.usefixtures("streams_put_back")

EXACT, EQUAL = ["exact-samples"] * 2, ["equal-count"] * 2
GENERATION = 2


class Rank:
    """As much of one survivor as an audit needs; whatever it executes, it says nothing of it."""

    def __init__(self, slot: int = 0, live: Sequence[int] = (0, 1), layout: Layout | None = None):
        self.step = STEP
        self.layout = layout or Layout(tuple((rank,) for rank in range(5)))
        self.machine: Any = SimpleNamespace(slot=slot, view=SimpleNamespace(live=live))
        self.fabric, self.peers = object(), object()
        self.strategy = SimpleNamespace(alone=True)
        self.runtime = SimpleNamespace(microbatches=[])
        self.executed: list[tuple[Identity, int]] = []
        self.guess, self.guesses = "", 0  # what it says of its own guesses, and how often
        actor: Any = object()
        self.audits = Audits(protected(self), actor)

    def run(self, executors: dict[tuple[int, int], int]) -> tuple[set[Identity], str]:
        return self.audits.run(GENERATION, executors, {}, self._execute, self._guessed)

    def _execute(self, identity: Identity, rank: int) -> Made:
        self.executed.append((identity, rank))
        return Made(identity, rank, [])

    def _guessed(self) -> str:
        self.guesses += 1
        return self.guess

    def commit(self, *lost: int) -> None:
        self.audits.committed(self.step, list(lost))
        self.step += 1

    def audited(self, count: int, *lost: int) -> list[int]:
        """Of so many transactions from now on, those that are audited."""
        found = []
        for number in range(1, count + 1):
            if self.audits.due:
                self.run({(LOST, 0): 0})
                found.append(number)
            self.commit(*lost)
        return found


@pytest.fixture
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else says anything."""

    def gather(fabric: Any, channel: Any, generation: int, mine: Any) -> dict[int, Any]:
        assert generation == GENERATION
        return {0: mine}

    monkeypatch.setattr(audits_module, "gather", gather)


alone = pytest.mark.usefixtures("_alone")


# --------------------------------------------------------------------------- when


@alone
def test_audits_are_far_between_the_longer_nothing_is_lost() -> None:
    rank = Rank()
    rank.commit(LOST)

    found = rank.audited(4 * EVERY, LOST)

    doubled = [2**power for power in range(EVERY.bit_length())]
    assert found == [*doubled, 2 * EVERY, 3 * EVERY, 4 * EVERY] and EVERY in doubled


@alone
def test_where_nothing_is_lost_nothing_is_audited() -> None:
    assert Rank().audited(20) == []


@alone
def test_where_no_replicas_are_known_nothing_is_audited() -> None:
    rank = Rank()
    rank.machine = None

    assert rank.audited(20, LOST) == []


@alone
def test_who_is_alone_has_nobody_to_compare_with_and_is_audited_all_the_same() -> None:
    rank = Rank(live=(0,))
    rank.commit(LOST)

    assert rank.audited(9, LOST) == [1, 2, 4, 8] and rank.executed == []


@alone
def test_another_loss_begins_anew() -> None:
    rank = Rank()
    rank.commit(LOST)
    assert rank.audited(9, LOST) == [1, 2, 4, 8]

    rank.commit(LOST, LOST + 1)

    assert rank.audited(5, LOST, LOST + 1) == [1, 2, 4]


@alone
@pytest.mark.parametrize("before", [0, 1, 7])
def test_a_transaction_in_which_a_rank_is_lost_counts_for_none_and_is_not_audited(
    before: int,
) -> None:
    rank = Rank()
    assert rank.audited(before) == []

    assert rank.audited(5, LOST) == [2, 3, 5], "the first, second and fourth after the struck one"


@alone
@pytest.mark.parametrize("off", [1, 2, 3])
def test_ranks_that_count_otherwise_still_meet(off: int) -> None:
    """All have to find that it is due; who does so first waits for the others."""
    early, late = Rank(0), Rank(1)
    for _ in range(1 + off):
        early.commit(LOST)
    late.commit(LOST)
    met = []

    for number in range(1, 100):
        if early.audits.due and late.audits.due:
            early.run({(LOST, 0): 0})
            late.run({(LOST, 0): 0})
            met.append(number)
        early.commit(LOST)
        late.commit(LOST)

    assert met[0] == 1 and len(met) >= 5


# --------------------------------------------------------------------------- who, and what


@alone
@pytest.mark.parametrize(
    ("live", "executor", "auditor"),
    [
        ((0, 1, 3), 0, 1),
        ((0, 1, 3), 1, 3),
        ((0, 1, 3), 3, 0),
        ((3, 0, 1), 1, 3),
        ((1, 4), 4, 1),
    ],
)
def test_the_next_live_slot_after_the_executor_s_executes_it_again(
    live: tuple[int, ...], executor: int, auditor: int
) -> None:
    ranks = [Rank(slot, live) for slot in live]

    for rank in ranks:
        rank.run({(LOST, 0): executor})

    busy = [rank.machine.slot for rank in ranks if rank.executed]
    assert busy == [auditor]


@alone
def test_it_is_the_first_microbatch_of_the_first_lost_rank_and_no_other() -> None:
    rank = Rank(1, (0, 1))

    audited, why = rank.run({(3, 0): 1, (2, 1): 1, (2, 0): 0, (3, 1): 0})

    assert rank.executed == [((2, 0), 2)]
    assert (audited, why) == ({(2, 0)}, "")


@alone
def test_shards_of_a_lost_slot_are_executed_by_those_of_another_one() -> None:
    """Each shard position for itself; who sits there is told by its slot."""
    rank = Rank(1, (0, 1), Layout(((0, 1), (2, 3), (4, 5))))

    audited, _ = rank.run({(5, 1): 3, (5, 0): 1})

    assert audited == {(2, 0)} and rank.executed == [((2, 0), 5)]


# --------------------------------------------------------------------------- reports

SAME = [1, 2, 3, 4]


@pytest.mark.parametrize("place", range(len(WHAT)))
def test_what_two_reports_differ_in_first_is_said(place: int) -> None:
    other = SAME[:place] + [9] * (len(SAME) - place)

    assert difference([SAME, other]) == difference([SAME, SAME, other]) == WHAT[place]


@pytest.mark.parametrize("reports", [[], [SAME], [SAME, SAME[:]]], ids=["none", "one", "alike"])
def test_reports_that_do_not_differ_say_nothing(reports: list[list[int]]) -> None:
    assert difference(reports) == ""


GRADIENT = torch.arange(4.0)


def made(gradient: torch.Tensor = GRADIENT, **different: Any) -> Made:
    """A microbatch that was made up, with this gradient."""
    usual: dict[str, Any] = {"mark": (11, 12), "entered": frozenset(), "door": 0, "after": at(STEP)}
    reducer: Any = object()
    executed = Executed(**{**usual, **different})
    return Made((LOST, 0), LOST, [(reducer, {"weights": gradient})], executed=executed)


def report(one: Made | None, *, whole: bool = True, shards: int = 1, threads: int = 1) -> list[int]:
    session: Any = Rank(layout=Layout(tuple(tuple(range(n, n + shards)) for n in (0, shards))))
    session.strategy.alone = whole
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: threads)
        return _report(session, one)


def later() -> Context:
    draw(1)
    return at(STEP)


@pytest.mark.parametrize(
    ("place", "other"),
    [
        (0, lambda: made(mark=(99, 12))),
        (1, lambda: made(after=later())),
        (2, lambda: made(mark=(11, 99))),
        (3, lambda: made(-GRADIENT)),
    ],
    ids=WHAT,
)
def test_each_number_of_a_report_tells_of_one_thing(place: int, other: Callable[[], Made]) -> None:
    before = report(made())

    after = report(other())

    assert [n for n in range(4) if before[n] != after[n]] == [place] and all(before)


@pytest.mark.parametrize(
    ("how", "told"),
    [({"whole": False}, 3), ({"shards": 2}, 3), ({"threads": 4}, 2)],
    ids=["with others", "shards", "threads"],
)
def test_what_may_differ_in_its_bits_is_not_told(how: dict[str, Any], told: int) -> None:
    """The gradient where shards sum it among them; the loss, too, where threads share sums."""
    known = report(made())[:told]

    assert report(made(), **how) == [*known, *[0] * (4 - told)]


def test_on_an_accelerator_neither_loss_nor_gradient_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = report(made())[:2]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)

    assert report(made()) == [*known, 0, 0]


@pytest.mark.parametrize(
    "one",
    [None, Made((LOST, 0), LOST, []), made(after=None)],
    ids=["made up elsewhere", "of fresh data", "only to the model's door"],
)
def test_who_has_executed_nothing_has_nothing_to_tell(one: Made | None) -> None:
    assert report(one) == []


# --------------------------------------------------------------------------- all survivors


def crew_of(
    change: Callable[[Crew], None],
    after: int,
    shares: tuple[tuple[int, ...], ...] = ((0,), (1,)),
) -> Crew:
    """One rank of three was lost; transactions later, what the others execute changes."""
    crew = Crew(program=lambda x: x, survivors=len(shares), audits=True)
    crew.inherit(left_at_top())
    crew.make_up(shares)
    for number in range(1, 5):
        crew.commit()
        if number == after:
            change(crew)
        for one in crew.survivors:
            one.executions.clear()
        crew.make_up(shares)
        if not all(one.guarantee.exact for one in crew.survivors):
            break
    return crew


def otherwise(rank: int) -> Callable[[Crew], None]:
    def change(crew: Crew) -> None:
        crew.survivors[rank].mark = (99, 12)

    return change


def not_itself(rank: int) -> Callable[[Crew], None]:
    """What this rank does itself comes out otherwise; what it executes for others does not."""

    def change(crew: Crew) -> None:
        crew.survivors[rank].own = (99, 22)

    return change


def refusing(crew: Crew) -> None:
    crew.survivors[1].refuses = {0}


WHOLE = {(LOST, 0): ("own", 5), (LOST, 1): ("own", 5)}
exchanging = pytest.mark.usefixtures("exchanging")
CHANGES = pytest.mark.parametrize(("after", "audited", "since"), [(1, 1, 0), (2, 2, 1), (3, 4, 2)])


@exchanging
def test_survivors_who_agree_keep_their_promise() -> None:
    crew = crew_of(lambda crew: None, 1)

    assert (crew.promises, crew.said) == (EXACT, [])
    assert crew.executions == [[(0, 5)], [(1, 5), (0, 5)]], "in an audited transaction"
    assert crew.gradients == WHOLE, "what was executed twice is in the sum once"


@exchanging
@pytest.mark.parametrize("rank", [0, 1], ids=["the executor", "the auditor"])
@CHANGES
def test_an_execution_that_comes_out_otherwise_costs_the_promise_in_the_next_audit(
    after: int, audited: int, since: int, rank: int
) -> None:
    crew = crew_of(otherwise(rank), after)

    assert crew.promises == EQUAL and crew.survivors[0].step == STEP + audited
    assert crew.said == [
        UNLIKE.format(
            rank=LOST, index=0, step=STEP + audited, by="0 and 1", what=WHAT[0], since=STEP + since
        )
    ]


@exchanging
def test_what_nobody_can_believe_is_made_up_with_fresh_data() -> None:
    """The transaction has all its microbatches, each of them once."""
    crew = crew_of(otherwise(1), 1)

    assert crew.gradients == {(LOST, 0): ("fresh", 0), (LOST, 1): ("own", 5)}


@exchanging
def test_who_cannot_execute_what_another_one_has_costs_no_promise() -> None:
    crew = crew_of(refusing, 1)

    assert (crew.promises, crew.said, crew.gradients) == (EXACT, [], WHOLE)


@exchanging
def test_nothing_is_audited_unless_all_find_that_it_is_due() -> None:
    def unaware(crew: Crew) -> None:
        crew.survivors[0].machine = None

    crew = crew_of(unaware, 1)

    assert crew.executions == [[(0, 5)], [(1, 5)]]


# --------------------------------------------------------------------------- each of itself


def said_of(rank: int, audited: int, since: int) -> str:
    what = {"rank": rank, "step": STEP + audited, "what": "had other inputs"}
    return NOT_ITSELF.format(why=OWN.format(loop="train.py:9", **what), since=STEP + since)


@exchanging
def test_each_survivor_executes_its_own_once_more_in_every_audit_and_in_no_other_transaction() -> (
    None
):
    crew = crew_of(lambda crew: None, 1)

    first, *audits = [(STEP + number, 0) for number in (0, 1, 2, 4)]
    assert [one.recalled for one in crew.survivors] == [[first, *audits]] * 2


@exchanging
@pytest.mark.parametrize("rank", [0, 1], ids=["the executor", "the auditor"])
@CHANGES
def test_one_that_is_not_what_it_was_costs_the_promise_in_the_next_audit(
    after: int, audited: int, since: int, rank: int
) -> None:
    crew = crew_of(not_itself(rank), after)

    assert crew.promises == EQUAL and crew.survivors[0].step == STEP + audited
    assert crew.said == [said_of(rank, audited, since)] * 2, "each has made something up"


@exchanging
@pytest.mark.parametrize("rank", [0, 1])
def test_then_nothing_that_anybody_made_up_is_believed(rank: int) -> None:
    crew = crew_of(not_itself(rank), 1)

    assert crew.gradients == {(LOST, 0): ("fresh", 0), (LOST, 1): ("fresh", 1)}


@exchanging
@CHANGES
def test_a_survivor_that_is_alone_audits_itself(after: int, audited: int, since: int) -> None:
    crew = crew_of(not_itself(0), after, ((0, 1),))

    assert crew.promises == EQUAL[:1] and crew.said == [said_of(0, audited, since)]
    assert crew.gradients == {(LOST, 0): ("fresh", 0), (LOST, 1): ("fresh", 0)}


@exchanging
def test_a_survivor_that_is_alone_and_what_it_was_keeps_its_promise() -> None:
    crew = crew_of(lambda crew: None, 1, ((0, 1),))

    assert (crew.promises, crew.said, crew.gradients) == (EXACT[:1], [], WHOLE)
    assert crew.executions == [[(0, 5), (1, 5)]], "nothing of the lost rank's once more"


# --------------------------------------------------------------------------- what are guesses

GUESS = "y differs between ranks and moves between steps"


@alone
def test_a_rank_that_has_only_guessed_believes_nothing_that_was_made_up() -> None:
    rank = Rank()
    rank.guess = GUESS

    audited, why = rank.run({(LOST, 0): 0, (LOST, 1): 1})

    assert audited == {(LOST, 0), (LOST, 1)}
    assert why == NOT_ITSELF.format(why=GUESS, since=0)


@alone
@pytest.mark.parametrize("own", ["", "moves"])
@pytest.mark.parametrize("slot", [0, 1, 4], ids=["the executor", "the auditor", "another one"])
def test_each_rank_is_asked_for_guesses_once_it_has_executed_its_own(
    slot: int, own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever came of that: shard mates do both together."""
    rank, before = Rank(slot, (0, 1, 4)), []

    def disowned(session: Any, actor: Any) -> str:
        before.append(rank.guesses)
        return own

    monkeypatch.setattr(audits_module, "disowned", disowned)

    _, why = rank.run({(LOST, 0): 0})

    assert (before, rank.guesses) == ([0], 1)
    assert why == (NOT_ITSELF.format(why=own, since=0) if own else "")


@exchanging
@pytest.mark.parametrize("rank", [0, 1], ids=["the executor", "the auditor"])
@CHANGES
def test_a_guess_of_one_survivor_costs_the_promise_of_all_in_the_next_audit(
    after: int, audited: int, since: int, rank: int
) -> None:
    def change(crew: Crew) -> None:
        crew.survivors[rank].makeup._guessed = lambda: GUESS  # type: ignore[method-assign]

    crew = crew_of(change, after)

    assert crew.promises == EQUAL and crew.survivors[0].step == STEP + audited
    assert crew.said == [NOT_ITSELF.format(why=GUESS, since=STEP + since)] * 2
    assert crew.gradients == {(LOST, 0): ("fresh", 0), (LOST, 1): ("fresh", 1)}
