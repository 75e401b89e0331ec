"""Kinds of transactions: each is proved twice, and anew once another loop or rank comes in."""

import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from ft_collectives.communicators.errors import Superseded
from ft_collectives.step.vote import Tally
from recoverrun.worker.tracking.microbatches import Microbatch, MicrobatchPlace
from recoverrun.worker.verification import mutual_proof, proofs
from recoverrun.worker.verification.proofs import FIRST, NOTHING, PROVED, SECOND
from recoverrun.worker.verification.replay_trial import EMPTY, ReplayTrial
from rendezvous.protocol.messages import UNSAID
from tests.unit.contexts import loop
from tests.unit.worker.verification.test_proofs import GENERATION, Play, microbatch

pytestmark = pytest.mark.usefixtures("streams_put_back")


def following(before: Microbatch, crossed: int, *, skip: int = 0) -> Microbatch:
    """A later one, after this many of the loops around it began another iteration."""
    fresh = microbatch(*(place.top.loop for place in before.places), skip=skip)
    return Microbatch(0, fresh.places[:crossed] + before.places[crossed:])


@pytest.fixture(autouse=True)
def _gather(monkeypatch: pytest.MonkeyPatch) -> None:
    def gather(fabric: Play, channel: Any, generation: int, mine: Any) -> Any:
        assert generation == GENERATION
        return fabric.gather(mine)

    monkeypatch.setattr(proofs, "gather", gather)
    monkeypatch.setattr(mutual_proof, "gather", gather)


class Proving:
    """The words of a child, in the place of one; every proof that is made."""

    def __init__(self, play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[int, bool]] = []  # of which transaction; was the other rank followed
        self.begins: list[int] = []  # of each proof: the loop that is tried first
        self.words: list[int] = []  # this rank's, of each vote
        self.found: dict[str, Any] | None = {**EMPTY, "exact": [0]}
        self.play = play
        monkeypatch.setattr(play.verification._mutual, "_tried", self.tried)
        play.verification.first()

    def tried(self, made: ReplayTrial) -> dict[str, Any]:
        self.made.append((made._step, made._followed))
        self.begins.append(made.outward)
        if self.found is None:
            raise Superseded
        return dict(self.found)

    def commit(self, crossed: int, *, skip: int = 0, theirs: int | None = None) -> None:
        """The next transaction, in another iteration of this many loops."""
        (before,) = self.play.runtime.microbatches
        self.of(following(before, crossed, skip=skip), theirs=theirs)

    def of(self, *microbatches: Microbatch, theirs: int | None = None) -> None:
        """`theirs`: the other rank's word in the vote, where it is not ours."""
        self.play.runtime.microbatches = list(microbatches)
        self.play.step += 1
        self.words.append(self.play.verification.word)
        both = [self.words[-1], self.words[-1] if theirs is None else theirs]
        said = tuple(both.count(word) for word in range(4))
        self.play.verification.hear(Tally(counts=(), said=said))
        self.play.verification.committed()


@pytest.fixture
def nested(monkeypatch: pytest.MonkeyPatch) -> Proving:
    """In two loops, the first transaction of which is proved."""
    inner, outer = loop("train.py:5"), loop("train.py:1")
    return Proving(Play(microbatch(inner, outer)), monkeypatch)


def test_a_kind_of_transaction_is_proved_twice_the_second_time_as_followed(nested: Proving) -> None:
    for _ in range(3):
        nested.commit(1)

    assert nested.made == [(0, False), (1, True)]
    assert nested.play.guarantee.promise == "exact-samples"
    assert len(nested.play.promises) == 1, "a proof that holds says nothing anew"


def test_whoever_is_followed_into_another_iteration_further_out_is_proved_anew(
    nested: Proving,
) -> None:
    """Of an epoch, say."""
    for crossed in (1, 1, 2, 1, 2):
        nested.commit(crossed)

    assert nested.made == [(0, False), (1, True), (3, True), (4, True)]


def test_transactions_of_one_iteration_are_a_kind_too(nested: Proving) -> None:
    (before,) = nested.play.runtime.microbatches
    other = Microbatch(0, tuple(MicrobatchPlace(place.top, 1) for place in before.places))

    for _ in range(3):
        nested.of(other)

    assert nested.made == [(0, False), (1, False), (2, True)]


def test_another_loop_or_another_backward_in_it_is_another_kind(nested: Proving) -> None:
    nested.commit(1)
    nested.commit(1, skip=1)
    nested.of(microbatch(loop("tune.py:9")))

    assert nested.made[2:] == [(2, False), (3, False)]


def test_the_first_microbatch_tells_which_loops_were_crossed_and_the_last_one_the_kind(
    nested: Proving,
) -> None:
    (before,) = nested.play.runtime.microbatches
    for _ in range(2):
        first = following(before, 2)
        before = following(first, 1, skip=1)  # accumulation that ends in the same outer iteration
        nested.of(first, before)

    assert nested.made[1:] == [(1, False), (2, True)]
    program = ("train.py:5", 1)
    assert nested.play.verification._followed == {(program, 2)}


def test_an_iteration_that_is_over_is_not_kept_while_a_replica_is_lost(nested: Proving) -> None:
    (lost_in,) = nested.play.runtime.microbatches
    over = weakref.ref(lost_in.top)
    nested.play.lost = True
    nested.commit(2)

    del lost_in

    assert over() is None, "with it goes all that the script had made in it"


def test_where_another_loop_turns_out_to_be_the_one_all_is_shown_anew(nested: Proving) -> None:
    nested.commit(1)
    nested.found = {**EMPTY, "exact": [1]}
    nested.commit(2)
    assert nested.play.runtime.outward == {"train.py:5": 1}
    assert [one.loop for one in nested.play.left] == ["train.py:5", "train.py:1"]
    assert nested.play.runtime.regions == {"train.py:1"}

    for crossed in (1, 2, 1, 2):
        nested.commit(crossed)

    assert nested.made == [(0, False), (1, True), (2, True), (3, True), (4, True)]


def test_a_loop_that_computes_something_for_the_inner_one_is_tried_first(nested: Proving) -> None:
    """A number of microbatches, say, that is the same on all ranks so far."""
    play, asked = nested.play, list[tuple[str, str]]()
    play.executor.influence.flows = lambda outer, inner, apart: (
        asked.append((outer.id, inner.id)) or True
    )
    nested.found = {**EMPTY, "exact": [1]}

    nested.commit(2)
    nested.commit(2)

    assert asked == [("train.py:1", "train.py:5")]
    assert nested.begins == [0, 1, 1]
    assert play.runtime.outward == {"train.py:5": 1}
    assert play.guarantee.promise == "exact-samples"


def test_each_loop_is_asked_for_data_that_the_next_one_within_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Data that a loop further in has made itself are no reason to begin further out."""
    asked = list[tuple[str, str]]()
    play = Play(microbatch(*(loop(f"train.py:{line}") for line in (5, 3, 1))))
    play.executor.influence.renews = lambda outer, around, inner, within, drawn: (
        asked.append((outer.id, inner.id)) or inner.id == "train.py:5"
    )

    proving = Proving(play, monkeypatch)

    assert asked == [("train.py:3", "train.py:5"), ("train.py:1", "train.py:3")]
    assert proving.begins == [1]


@pytest.mark.parametrize("theirs", [{}, {"anew": 1}])
def test_a_loop_of_several_transactions_is_not_executed_for_each_of_them(
    theirs: dict[str, int], nested: Proving
) -> None:
    """It begins anew with the second transaction, but not with each; as any rank has seen."""
    play = nested.play
    play.executor.influence.flows = lambda *loops: True
    if theirs:
        play.heard = [theirs]
    else:
        nested.commit(1)

    nested.commit(2)

    assert set(nested.begins) == {0}


def test_where_that_is_not_right_the_inner_ones_are_tried_as_before(nested: Proving) -> None:
    nested.play.executor.influence.flows = lambda *loops: True

    def tried(made: ReplayTrial) -> dict[str, Any]:
        nested.begins.append(made.outward)
        return {**EMPTY, "exact": [] if made.outward else [0], "reason": "other data"}

    nested.play.verification._mutual._tried = tried  # type: ignore[method-assign]

    nested.commit(2)

    assert nested.begins == [0, 1, 0]
    assert nested.play.guarantee.promise == "exact-samples"


def test_gradients_are_compared_until_somebody_was_followed(nested: Proving) -> None:
    """They cost time."""
    before = nested.play.executor.proving

    nested.commit(1)

    assert (before, nested.play.executor.proving) == (True, False)


@pytest.mark.parametrize("change", ["lost", "lowered", "no loop"])
def test_nothing_is_proved_where_nothing_would_follow(change: str, nested: Proving) -> None:
    play, later = nested.play, [microbatch()]
    if change == "lost":
        play.lost = True
    elif change == "lowered":
        play.guarantee.promise = "equal-count"
    else:
        later = []

    nested.of(*later)

    assert nested.made == [(0, False)]


def test_a_loop_in_which_only_this_rank_trains_lowers_the_promise_and_nobody_waits(
    nested: Proving,
) -> None:
    play = nested.play
    nested.commit(1)
    play.step = 5

    nested.of(microbatch(loop("retry.py:9")), theirs=PROVED)

    assert len(nested.made) == 2
    assert play.guarantee.promise == "equal-count"
    (words,) = play.downgrades
    assert words.startswith("retry.py:9: ranks took different ways") and "step 5" in words


def test_where_another_rank_trains_in_a_loop_of_its_own_that_rank_says_why(nested: Proving) -> None:
    nested.commit(1)

    nested.commit(1, theirs=FIRST)

    assert nested.play.guarantee.promise == "equal-count"
    assert nested.play.downgrades == [UNSAID]


@pytest.mark.parametrize("theirs", [FIRST, SECOND])
def test_ranks_that_have_something_to_prove_enter_together_whatever_it_is(
    theirs: int, nested: Proving
) -> None:
    nested.commit(1, theirs=theirs)

    assert nested.words == [SECOND] and nested.made[1:] == [(1, True)]


def test_a_rank_that_cannot_prove_anything_keeps_nobody_waiting(nested: Proving) -> None:
    nested.commit(1, theirs=NOTHING)
    nested.play.verification.committed()  # by the coordinator's word, without a vote

    assert nested.made == [(0, False)] and nested.play.guarantee.promise == "exact-samples"


def test_each_vote_says_what_would_be_proved_after_it(nested: Proving) -> None:
    nested.commit(1)
    nested.commit(1)
    nested.of(microbatch(loop("tune.py:9")))
    nested.play.lost = True
    nested.commit(1)

    assert nested.words == [SECOND, PROVED, FIRST, NOTHING]


def test_who_was_followed_is_proved_anew_once_less_is_known_to_be_common(nested: Proving) -> None:
    nested.commit(1)
    nested.play.verification.renew()

    nested.commit(1)
    nested.commit(1)

    assert nested.made == [(0, False), (1, True), (2, True)]


def test_a_loss_during_a_proof_changes_no_promise(nested: Proving) -> None:
    nested.found = None

    nested.commit(1)

    assert nested.play.guarantee.promise == "exact-samples" and len(nested.play.promises) == 1


@pytest.mark.parametrize("crossed", [1, 2])
def test_a_later_proof_that_fails_lowers_the_promise(crossed: int, nested: Proving) -> None:
    nested.commit(3 - crossed)
    nested.found = {**EMPTY, "reason": "it drew other random numbers"}

    nested.commit(crossed)

    assert nested.play.guarantee.promise == "equal-count"
    assert nested.play.promises[1:] == [("equal-count", "it drew other random numbers")]


def top(name: str) -> Any:
    return SimpleNamespace(loop=loop(name))


def test_any_iteration_may_be_tried_before_there_was_a_proof() -> None:
    assert Play().verification.wants(top("train.py:1"))


def test_an_iteration_may_be_tried_until_somebody_was_followed_into_another_one(
    nested: Proving,
) -> None:
    inner, outer = top("train.py:5"), top("train.py:1")
    wants, found = nested.play.verification.wants, list[tuple[bool, bool]]()
    found.append((wants(inner), wants(outer)))

    for crossed in (0, 1, 2):
        nested.commit(crossed)
        found.append((wants(inner), wants(outer)))

    assert found == [(True, True), (True, True), (False, True), (False, False)]
    assert not wants(top("tune.py:9")), "no loop around what trains"
