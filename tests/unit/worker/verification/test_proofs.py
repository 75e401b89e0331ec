"""What ranks ask each other before anything is promised, and what they conclude from a proof."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from ft_collectives.communicators.errors import Superseded
from ft_collectives.communicators.limits import TimeLimits
from ft_collectives.step.vote import Tally
from recoverrun.worker.step.guarantee import Guarantee
from recoverrun.worker.tracking.loop_tracker import Microbatch, Place
from recoverrun.worker.verification import forked_child, mutual_proof, proofs
from recoverrun.worker.verification.mutual_proof import MutualProof
from recoverrun.worker.verification.proofs import (
    FIRST,
    NOTHING,
    PROVED,
    SECOND,
    UNEQUAL,
    UNSAID,
    Proofs,
)
from recoverrun.worker.verification.replay_trial import EMPTY, Trial
from rendezvous.coordinator.guarantees import WEAKEST_FIRST
from rendezvous.protocol.layout import Layout
from rendezvous.protocol.messages import Promise
from tests.unit.contexts import at, loop
from tests.unit.workers import protected

pytestmark = pytest.mark.usefixtures("streams_put_back")

OWN, PARTNER, GENERATION = 0, 1, 3


def microbatch(*loops: Any, skip: int = 0) -> Microbatch:
    """In these loops, the innermost first."""
    tops: list[Any] = [
        SimpleNamespace(
            loop=one, names={}, globals={}, context=at(0, attempt=9 - number, loop=one.id)
        )
        for number, one in enumerate(loops or (loop(),))
    ]
    places = [Place(top, skip) for top in tops]
    return Microbatch(0, tuple(places))


def following(before: Microbatch, crossed: int, *, skip: int = 0) -> Microbatch:
    """A later one, after this many of the loops around it began another iteration."""
    fresh = microbatch(*(place.top.loop for place in before.places), skip=skip)
    return Microbatch(0, fresh.places[:crossed] + before.places[crossed:])


class Play:
    """A session of rank 0, and what the other rank says."""

    def __init__(self, *microbatches: Microbatch) -> None:
        self.refusal = ""
        self.heard: list[dict[str, Any]] = []  # what the other rank answers, in order
        self.said: list[dict[str, Any]] = []
        self.promises: list[tuple[Promise, str]] = []
        voice: Any = SimpleNamespace(promise=lambda own, n, why: self.promises.append((own, why)))
        self.guarantee = Guarantee(voice, lambda: 1)
        self.runtime = SimpleNamespace(
            regions=set(),
            microbatches=list(microbatches) or [microbatch()],
            why_no_loop=lambda: "no loop was seen",
            outward={},
            sources=[],
            own_modules=frozenset(),
        )
        self.strategy: Any = SimpleNamespace(
            terms="2 buckets", unlike="ranks hold other parameters", alone=True, digest=lambda: 55,
            parameters=dict,
        )  # fmt: skip
        self.view = SimpleNamespace(generation=GENERATION)
        self.fabric: Any = self
        self.limits = TimeLimits(lambda: timedelta(seconds=1))
        self.downgrades: list[str] = []
        voice.downgraded = self.downgrades.append
        self.least_of_others = WEAKEST_FIRST.index("exact-samples")
        self.vote_group: Any = SimpleNamespace(
            channel=object(), least=lambda generation, mine: min(mine, self.least_of_others)
        )
        self.peers = object()
        self.left: list[Any] = []  # for successors: where this rank began
        self.remnants = SimpleNamespace(top=self.left.append, after=lambda context: None)
        captures = SimpleNamespace(
            points=[], at=lambda point: None, include=lambda context: None,
            after=lambda step, microbatch: None,
        )  # fmt: skip
        bearing = SimpleNamespace(immaterial=frozenset())
        self.impersonator: Any = SimpleNamespace(
            talked=False, longest_s=0.0, captures=captures, proving=True, fed={},
            shares=SimpleNamespace(own=lambda keys, visible: []),
            bearing=bearing, lost={}, rewrites=False, optimizers=[], moved=[],
            constants=SimpleNamespace(
                exchange=lambda there, own, seen, tell: None, settle=lambda: None
            ),
        )  # fmt: skip
        self.trusts = 0
        self.sources = SimpleNamespace(trust=self._trust)
        self.machine = SimpleNamespace(slot=0)
        self.alike = SimpleNamespace(informs=lambda lost: lost, learn=lambda tops: None)
        self.layout = Layout(((OWN,), (PARTNER,)))
        self.env = SimpleNamespace(exact=False, error_file="", rank=OWN)
        self.faults = SimpleNamespace(disarm=lambda: None)
        self.lost, self.step = False, 1
        drift: Any = self.alike
        sources: Any = self.sources
        mutual = MutualProof(protected(self), self.impersonator, sources, drift)
        self.verification = Proofs(self, self.impersonator, mutual, lambda generation: None)

    def _trust(self) -> None:
        self.trusts += 1

    def gather(self, mine: dict[str, Any]) -> dict[int, Any]:
        self.said.append(mine)
        return {OWN: mine, PARTNER: {**mine, **(self.heard.pop(0) if self.heard else {})}}

    def fitness(self, **other: Any) -> str:
        self.heard = [other]
        return self.verification.fitness(self.fabric, self.vote_group)


@pytest.fixture(autouse=True)
def _gather(monkeypatch: pytest.MonkeyPatch) -> None:
    def gather(fabric: Play, channel: Any, generation: int, mine: Any) -> Any:
        assert generation == GENERATION
        return fabric.gather(mine)

    monkeypatch.setattr(proofs, "gather", gather)
    monkeypatch.setattr(mutual_proof, "gather", gather)


# --------------------------------------------------------------------------- fitness


def test_a_script_that_all_ranks_can_serve_is_served() -> None:
    assert Play().fitness() == ""


def test_what_another_rank_cannot_serve_no_rank_serves() -> None:
    assert Play().fitness(refusal="its loop is in C") == "its loop is in C"


def test_a_rank_s_own_reason_comes_first() -> None:
    play = Play()
    play.refusal = "my own"

    assert play.fitness(refusal="its loop is in C") == "my own"
    assert play.said[0]["refusal"] == "my own"


def test_where_no_loop_was_seen_that_is_the_reason() -> None:
    play = Play()
    play.runtime.microbatches = []

    assert play.fitness() == "no loop was seen"


@pytest.mark.parametrize(("outer", "reason"), [("", ""), ("it yields", "it returns")])
def test_one_loop_that_can_be_executed_again_is_enough(outer: str, reason: str) -> None:
    inner = loop("train.py:5", refusal="it returns")

    assert Play(microbatch(inner, loop("train.py:1", refusal=outer))).fitness() == reason


def test_ranks_that_were_given_other_terms_are_not_served() -> None:
    assert Play().fitness(terms="3 buckets") == "ranks hold other parameters"


def test_unequal_numbers_of_microbatches_are_named() -> None:
    words = "1 on rank 0, 4 on rank 1"

    assert Play().fitness(count=4) == UNEQUAL.format(words)


# --------------------------------------------------------------------------- conclusions


@pytest.mark.parametrize(
    ("own", "other", "promise"),
    [
        ("exact-samples", "exact-samples", "exact-samples"),
        ("exact-samples", "equal-count", "equal-count"),
        ("equal-count", "exact-samples", "equal-count"),
        ("equal-count", "unprotected", "unprotected"),
    ],
)
def test_the_weakest_promise_of_any_rank_holds(
    own: Promise, other: Promise, promise: Promise
) -> None:
    play = Play()
    play.least_of_others = WEAKEST_FIRST.index(other)

    weakest = play.verification._everybody(GENERATION, own)
    play.verification._conclude(weakest, own, "what was found")

    assert play.guarantee.promise == promise
    assert play.promises == [(own, "what was found")]


def test_a_second_proof_that_holds_says_nothing_anew() -> None:
    play = Play()
    for _ in range(2):
        play.verification._conclude("exact-samples", "exact-samples", "checked")

    assert len(play.promises) == 1


@pytest.mark.parametrize(("own", "words"), [("equal-count", "it moves"), ("exact-samples", UNSAID)])
def test_who_asked_for_exact_sums_is_refused_them_with_a_reason(
    own: Promise, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    play = Play()
    play.env.exact = True

    with pytest.raises(SystemExit):
        play.verification._conclude("equal-count", own, "it moves")

    assert words in capsys.readouterr().err


class Proving:
    """What a child would say, in the place of one; every proof that is made."""

    def __init__(self, play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[int, bool]] = []  # of which transaction; was the other rank followed
        self.words: list[int] = []  # this rank's, of each vote
        self.found: dict[str, Any] | None = {**EMPTY, "exact": [0]}
        self.play = play
        monkeypatch.setattr(play.verification._mutual, "_tried", self.tried)
        play.verification.first()

    def tried(self, made: Trial) -> dict[str, Any]:
        self.made.append((made._step, made._followed))
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
        self.play.verification.hear(Tally(counts=(), said=said, taken={}))
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
    other = Microbatch(0, tuple(Place(place.top, 1) for place in before.places))

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


def test_gradients_are_compared_until_somebody_was_followed(nested: Proving) -> None:
    """They cost time."""
    before = nested.play.impersonator.proving

    nested.commit(1)

    assert (before, nested.play.impersonator.proving) == (True, False)


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
    assert words.startswith("retry.py:9: ranks took different ways") and "transaction 5" in words


def test_where_another_rank_trains_in_a_loop_of_its_own_that_rank_says_so(nested: Proving) -> None:
    nested.commit(1)

    nested.commit(1, theirs=FIRST)

    assert nested.play.guarantee.promise == "equal-count" and nested.play.downgrades == []


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


# --------------------------------------------------------------------------- what is noted for it


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


# --------------------------------------------------------------------------- levels


@pytest.mark.parametrize(
    ("mine", "theirs", "level"),
    [([0], [0], 0), ([1], [1], 1), ([0], [1], None), ([0, 1], [1], 1), ([], [0], None)],
)
def test_all_ranks_execute_from_the_same_loop(
    mine: list[int], theirs: list[int], level: int | None
) -> None:
    play = Play()
    play.heard = [{"exact": theirs, "immaterial": ["y"]}]
    found = {**EMPTY, "exact": mine, "immaterial": ["x"]}

    assert play.verification._mutual._agreed(found, GENERATION) == level
    assert found["immaterial"] == ["x", "y"], "what one has tried is known to all"
    assert EMPTY["immaterial"] == []


@pytest.mark.parametrize(
    "found", [{"failed": "LookupError: no batch"}, forked_child.Failed("LookupError: no batch")]
)
def test_a_child_of_which_nothing_comes_is_a_reason(
    found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds: list[float] = []

    def run(work: Any, within_s: float) -> dict[str, Any]:
        bounds.append(within_s)
        if isinstance(found, Exception):
            raise found
        return dict(found)

    monkeypatch.setattr(forked_child, "run", run)
    play = Play()
    play.impersonator.longest_s = 2.0

    said = play.verification._mutual._tried(SimpleNamespace(  # type: ignore[arg-type]
        work=None, microbatch=microbatch(), partner=PARTNER
    ))  # fmt: skip

    assert (said["promise"], said["exact"]) == ("equal-count", [])
    assert said["reason"] == (
        "train.py:1: rank 1's microbatch cannot be executed: LookupError: no batch"
    )
    assert bounds == [40.0]
