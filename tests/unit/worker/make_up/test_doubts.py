"""Unknown values of a lost rank are believed not to matter: with our own values in their place the
same has to come out.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from recoverrun.worker.context.slot_context import Key, last
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.make_up.audits import NOT_ITSELF
from recoverrun.worker.make_up.doubts import GUESSED
from recoverrun.worker.make_up.made_microbatch import MadeMicrobatch
from recoverrun.worker.replay.executed import Executed
from recoverrun.worker.replay.known_state import KnownState
from recoverrun.worker.step.forward_sync import Buffers
from recoverrun.worker.tracking.microbatches import Microbatch
from rendezvous.protocol.layout import Layout
from tests.unit.contexts import at
from tests.unit.survivors import LAYOUT, LOST, STEP, Survivor, Team

pytestmark = pytest.mark.usefixtures("streams_put_back", "exchanging")

EXACT, EQUAL = ["exact-samples"] * 2, ["equal-count"] * 2
OURS, THEIRS = {"x": 0, "y": 2, "z": 3}, {"x": 5, "y": 7, "z": 8}
COUNT, MARK = ("opt", "c"), "y#"
TOLD = "{} between ranks and move{} between steps"
IN_SHARDS = Layout(((0, 1), (LOST, LOST + 1)))
FIRST_DOES_ALL = ((0,), ())
"""Shares of two survivors."""

Differs = Callable[[str], bool]
"""Does a microbatch come out otherwise where just these values are our own?"""


def never(ours: str) -> bool:
    return False


def always(ours: str) -> bool:
    return True


def with_y(ours: str) -> bool:
    return "y" in ours


def refused(done: Executed) -> Executed:
    raise NotReplayable("random numbers move")


OTHERWISE: dict[str, Callable[[Executed], Executed]] = {
    "inputs": lambda done: replace(done, mark=(99, 12)),
    "loss": lambda done: replace(done, mark=(11, 99)),
    "what enters first": lambda done: replace(done, door=99),
    "refused": refused,
}


class Tries:
    """Executions of one survivor as another rank, by the values in them that are its own."""

    def __init__(self, survivor: Survivor, differs: Differs = never, how: str = "inputs") -> None:
        self.differs, self.how = differs, how
        self.done: list[str] = []
        self._own, self._execute = survivor.env.rank, survivor.executor.execute
        survivor.executor.execute = self

    def __call__(
        self, rank: int, state: KnownState, step: int, microbatch: Microbatch, before: Buffers = ()
    ) -> Executed:
        done: Executed = self._execute(rank, state, step, microbatch)
        if rank == self._own:
            return done
        assert microbatch.top.context is not None, "captured"
        mine, values = microbatch.top.context.values, state.context.values
        ours = "".join(sorted(last(key) for key in values if values[key] == mine[key]))
        self.done.append(ours)
        return OTHERWISE[self.how](done) if self.differs(ours) else done

    def taken(self) -> list[str]:
        """Since this was asked last."""
        found, self.done = self.done, []
        return found


class Unknowing(Team):
    """Survivors of a rank whose `moved` nobody knows: they moved since it left something."""

    def __init__(self, moved: str, differs: Differs = never, **more: Any) -> None:
        super().__init__(program=lambda x: x, **{"microbatches": 1, **more})
        self.tries = [Tries(survivor, differs) for survivor in self.survivors]
        before = {key: value - (key in moved) for key, value in OURS.items()}
        for survivor in self.survivors:
            survivor.executor.influence.matters = lambda key, value: False
            survivor.executor.captures.points.insert(0, at(STEP - 1, 0, "after", names=before))
        self.stand(OURS)
        self.inherit(at(STEP - 1, 0, "after", names=THEIRS))

    def stand(self, names: dict[str, int]) -> None:
        """There the survivors stand in the present transaction."""
        for survivor in self.survivors:
            for one in survivor.executor.captures.points:
                if one.step == survivor.step:
                    one.names |= names

    def go_on(self, **moved: int) -> None:
        self.commit()
        self.stand({**OURS, **moved})

    def taken(self) -> list[list[str]]:
        return [one.taken() for one in self.tries]


# --------------------------------------------------------------------------- a whole replica


@pytest.mark.parametrize("immaterial", ["", "y"], ids=["not proved", "proved to be no matter"])
def test_in_the_struck_transaction_it_is_executed_with_our_own_value_too(immaterial: str) -> None:
    team = Unknowing("y")
    for survivor in team.survivors:
        survivor.executor.influence.immaterial = frozenset(immaterial)

    team.makes_up(FIRST_DOES_ALL)

    assert team.taken() == [["", "y"], []]
    assert (team.promises, team.said) == (EXACT, [])
    assert team.gradients == {(LOST, 0): ("own", 5)}


def test_what_differs_with_it_is_made_up_with_fresh_data_and_told() -> None:
    team = Unknowing("y", with_y)

    team.makes_up(FIRST_DOES_ALL)

    assert team.gradients == {(LOST, 0): ("fresh", 0)}
    assert (team.promises, team.said) == (EQUAL, [TOLD.format("y differs", "s")])


def test_where_all_is_known_it_is_executed_once() -> None:
    team = Unknowing("", always)

    team.makes_up(FIRST_DOES_ALL)

    assert team.taken() == [[""], []]
    assert team.promises == EXACT


def test_it_is_asked_again_once_more_is_unknown_and_in_no_other_transaction() -> None:
    team, tried = Unknowing("y"), []

    team.makes_up(FIRST_DOES_ALL)
    for z in (OURS["z"], 4, 4):
        tried.append(team.taken()[0])
        team.go_on(z=z)
        team.makes_up(FIRST_DOES_ALL)

    assert [*tried, team.taken()[0]] == [["", "y"], [""], ["", "yz"], [""]]
    assert (team.promises, team.said) == (EXACT, [])


def test_what_becomes_unknown_later_and_matters_is_told_then() -> None:
    team = Unknowing("y", lambda ours: "z" in ours)
    team.makes_up(FIRST_DOES_ALL)
    assert team.promises == EXACT

    team.go_on(z=4)
    team.makes_up(FIRST_DOES_ALL)

    assert team.gradients == {(LOST, 0): ("fresh", 0)}
    assert (team.promises, team.said) == (EQUAL, [TOLD.format("z differs", "s")])


# --------------------------------------------------------------------------- one microbatch


class One:
    """A survivor that has made up one microbatch of a lost rank, and what it asks of that."""

    def __init__(self, *, shards: int = 1, how: str = "inputs") -> None:
        (self.survivor,) = Team(program=lambda x: x, microbatches=1, survivors=1).survivors
        if shards > 1:
            self.survivor.layout = IN_SHARDS
        self.tries = Tries(self.survivor, how=how)
        (self.microbatch,) = self.survivor.runtime.microbatches
        assert self.microbatch.top.context is not None, "captured"
        self.microbatch.top.context.names |= {**OURS, MARK: "ours"}
        self.microbatch.top.context.attributes |= {COUNT: 4}
        self.doubts = self.survivor.make_up.maker.doubts

    def made(self, *unknown: Key, rank: int = LOST) -> MadeMicrobatch:
        names, attributes = {**THEIRS, MARK: "theirs"}, {COUNT: 9}
        start = KnownState(at(STEP, names=names, attributes=attributes), frozenset(unknown))
        self.survivor.present.clear()
        executed = self.tries(rank, start, STEP, self.microbatch)
        self.tries.taken()
        return MadeMicrobatch((LOST, 0), rank, [], start, executed)

    def asks(self, *unknown: Key, rank: int = LOST, differs: Differs = never) -> list[str]:
        """The executions for it before the microbatch counts."""
        made = self.made(*unknown, rank=rank)
        with self._apart(differs):
            self.doubts.check_unknown(made, self.microbatch)
        return self.tries.taken()

    def guesses(self, *unknown: Key, differs: Differs = never) -> tuple[list[str], str]:
        """The executions for it in an audit, and what is said of that."""
        made = self.made(*unknown)
        with self._apart(differs):
            said = self.doubts.guessed(made, self.microbatch)
        return self.tries.taken(), said

    @contextmanager
    def _apart(self, differs: Differs) -> Iterator[None]:
        self.tries.differs = differs
        try:
            yield
        finally:
            self.tries.differs = never
            assert self.survivor.present == [("own", 5)], "what it gave is set aside again"


@pytest.mark.parametrize("unknown", ["", "y", "yz"])
def test_in_an_audit_shard_mates_execute_once_more_whatever_they_do_not_know(unknown: str) -> None:
    assert One(shards=2).guesses(*unknown) == ([unknown], "")


@pytest.mark.parametrize("how", OTHERWISE)
def test_of_shard_mates_each_tells_all_that_it_does_not_know(how: str) -> None:
    """They would have to agree on whose value is tried alone."""
    one = One(shards=2, how=how)

    assert one.guesses("y", "z", differs=with_y) == (["yz"], TOLD.format("y, z differ", ""))


@pytest.mark.parametrize("how", OTHERWISE)
def test_who_knows_all_tells_that_a_shard_mate_does_not(how: str) -> None:
    one = One(shards=2, how=how)

    assert one.guesses(differs=always) == ([""], GUESSED)


# --------------------------------------------------------------------------- audits


def audited(team: Unknowing, after: int, differs: Differs) -> list[list[list[str]]]:
    """The executions in each of four transactions, in which it comes to differ."""
    tried = []
    team.makes_up(FIRST_DOES_ALL)
    for number in range(1, 5):
        team.go_on()
        for one in team.tries if number == after else ():
            one.differs = differs
        team.taken()
        team.makes_up(FIRST_DOES_ALL)
        tried.append(team.taken())
        if team.promises != EXACT:
            break
    return tried


def test_with_each_audit_who_made_it_up_executes_it_with_our_own_value_too() -> None:
    team = Unknowing("y", audits=True)

    once, twice = [[""], []], [["", "y"], [""]]
    assert audited(team, 1, never) == [twice, twice, once, twice]
    assert (team.promises, team.said) == (EXACT, [])
    assert team.gradients == {(LOST, 0): ("own", 5)}


@pytest.mark.parametrize(("after", "found", "since"), [(1, 1, 0), (2, 2, 1), (3, 4, 2)])
def test_what_comes_to_matter_costs_the_promise_in_the_next_audit(
    after: int, found: int, since: int
) -> None:
    team = Unknowing("y", audits=True)

    assert len(audited(team, after, with_y)) == found
    assert team.promises == EQUAL and team.gradients == {(LOST, 0): ("fresh", 0)}
    why = TOLD.format("y differs", "s")
    assert team.said == [NOT_ITSELF.format(why=why, since=STEP + since)]


@pytest.mark.parametrize("index", [0, 1])
def test_one_guess_is_enough_and_of_the_rest_it_is_asked_all_the_same(index: int) -> None:
    """Shard mates may have none there."""
    team, asked = Unknowing("y", microbatches=2), []
    team.makes_up(((0, 1), ()))
    make_up, other = (survivor.make_up for survivor in team.survivors)

    def guessed(made: MadeMicrobatch, microbatch: Microbatch) -> str:
        assert made.identity == (LOST, microbatch.index)
        asked.append(microbatch.index)
        return "a guess" if microbatch.index == index else ""

    make_up.maker.doubts.guessed = guessed  # type: ignore[method-assign]

    assert (make_up.maker.guessed(), asked) == ("a guess", [0, 1])
    assert other.maker.guessed() == "", "it has made up nothing"


@pytest.mark.parametrize("layout", [LAYOUT, IN_SHARDS], ids=["whole", "shards"])
def test_nothing_is_asked_of_what_was_made_up_with_fresh_data(layout: Layout) -> None:
    team = Unknowing("y", with_y)
    team.makes_up(FIRST_DOES_ALL)
    assert team.gradients == {(LOST, 0): ("fresh", 0)}
    team.taken()

    team.survivors[0].layout = layout

    assert team.survivors[0].make_up.maker.guessed() == "" and team.taken() == [[], []]
