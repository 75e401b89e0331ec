"""Audits: when they are due, who executes what again, and what two survivors conclude from it."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recoverrun.worker.context.slot_context import Context
from recoverrun.worker.make_up import audits as audits_module
from recoverrun.worker.make_up.audits import EVERY, WHAT, Audits, difference, report_of
from recoverrun.worker.make_up.made_microbatch import MadeMicrobatch
from recoverrun.worker.replay.executed import Executed
from rendezvous.protocol.layout import Layout
from rendezvous.protocol.views import Identity
from tests.unit.contexts import at, draw
from tests.unit.survivors import LOST, STEP
from tests.unit.workers import protected

pytestmark = pytest.mark.usefixtures("streams_put_back")

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
        executor: Any = object()
        self.audits = Audits(protected(self), executor)

    def run(self, executors: dict[tuple[int, int], int]) -> tuple[set[Identity], str]:
        return self.audits.run(GENERATION, executors, {}, self._execute, self._guessed)

    def _execute(self, identity: Identity, rank: int) -> MadeMicrobatch:
        self.executed.append((identity, rank))
        return MadeMicrobatch(identity, rank, [])

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


def made(gradient: torch.Tensor = GRADIENT, **different: Any) -> MadeMicrobatch:
    """A microbatch that was made up, with this gradient."""
    usual: dict[str, Any] = {"mark": (11, 12), "entered": frozenset(), "door": 0, "after": at(STEP)}
    reducer: Any = object()
    executed = Executed(**{**usual, **different})
    return MadeMicrobatch((LOST, 0), LOST, [(reducer, {"weights": gradient})], executed=executed)


def report(
    one: MadeMicrobatch | None, *, whole: bool = True, shards: int = 1, threads: int = 1
) -> list[int]:
    session: Any = Rank(layout=Layout(tuple(tuple(range(n, n + shards)) for n in (0, shards))))
    session.strategy.alone = whole
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: threads)
        return report_of(session, one)


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
def test_each_number_of_a_report_tells_of_one_thing(
    place: int, other: Callable[[], MadeMicrobatch]
) -> None:
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
    [None, MadeMicrobatch((LOST, 0), LOST, []), made(after=None)],
    ids=["made up elsewhere", "of fresh data", "only to the model's door"],
)
def test_who_has_executed_nothing_has_nothing_to_tell(one: MadeMicrobatch | None) -> None:
    assert report(one) == []
