"""What ranks ask each other before anything is promised, and what they conclude from a proof."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from ft_collectives.faults import Superseded
from ft_collectives.limits import Patience
from ft_collectives.vote import Tally
from recoverrun.hooks import forked, verification
from recoverrun.hooks.evidence import crc_of_streams
from recoverrun.hooks.guarantee import Guarantee
from recoverrun.hooks.impersonate import TALKS, Executed
from recoverrun.hooks.runtime import Microbatch, Place
from recoverrun.hooks.verification import (
    EMPTY,
    FIRST,
    NOTHING,
    PROVED,
    UNEQUAL,
    UNSAID,
    Verification,
    _Trial,
)
from rendezvous.layout import Layout
from rendezvous.messages import Promise
from rendezvous.promises import WEAKEST_FIRST
from tests.unit.contexts import at, loop

pytestmark = pytest.mark.usefixtures("streams_put_back")

OWN, PARTNER, GENERATION = 0, 1, 3


def microbatch(*loops: Any, skip: int = 0) -> Microbatch:
    """In these loops, the innermost first."""
    tops: list[Any] = [
        SimpleNamespace(loop=one, names={}, globals={}, context=at(0, loop=one.id))
        for one in loops or (loop(),)
    ]
    places = [Place(top, skip) for top in tops]
    return Microbatch(0, tuple(places))


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
            microbatches=list(microbatches) or [microbatch()],
            why_no_loop=lambda: "no loop was seen",
        )
        self.strategy: Any = SimpleNamespace(
            terms="2 buckets", unlike="ranks hold other parameters", alone=True, digest=lambda: 55
        )
        self.view = SimpleNamespace(generation=GENERATION)
        self.fabric: Any = self
        self.patience = Patience(timedelta(seconds=1))
        self.downgrades: list[str] = []
        voice.downgraded = self.downgrades.append
        self.least_of_others = WEAKEST_FIRST.index("exact-samples")
        self.booth: Any = SimpleNamespace(
            channel=object(), least=lambda generation, mine: min(mine, self.least_of_others)
        )
        captures = SimpleNamespace(points=[], at=lambda point: None)
        self.impersonator: Any = SimpleNamespace(talked=False, longest_s=0.0, captures=captures)
        self.layout = Layout(((OWN,), (PARTNER,)))
        self.env = SimpleNamespace(exact=False, error_file="", rank=OWN)
        self.lost, self.step = False, 1
        self.verification = Verification(self)  # type: ignore[arg-type]

    def gather(self, mine: dict[str, Any]) -> dict[int, Any]:
        self.said.append(mine)
        return {OWN: mine, PARTNER: {**mine, **self.heard.pop(0)}}

    def fitness(self, **other: Any) -> str:
        self.heard = [other]
        return self.verification.fitness(self.fabric, self.booth)


@pytest.fixture(autouse=True)
def _gather(monkeypatch: pytest.MonkeyPatch) -> None:
    def gather(fabric: Play, channel: Any, generation: int, mine: Any) -> Any:
        assert generation == GENERATION
        return fabric.gather(mine)

    monkeypatch.setattr(verification, "gather", gather)


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


class Proofs:
    """Counts proofs in the place of the real one."""

    def __init__(self, play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[int, bool]] = []
        self.result: tuple[Promise, str] | None = ("exact-samples", "checked")
        self.play = play
        monkeypatch.setattr(play.verification, "_prove", self.prove)
        play.guarantee.promise = "exact-samples"

    def prove(self, step: int, generation: int, *, followed: bool) -> tuple[Promise, str]:
        self.made.append((step, followed))
        last = self.play.runtime.microbatches[-1]
        known = self.play.verification._programs
        known[self.play.verification._program(last)] = 1 + followed
        if self.result is None:
            raise Superseded
        return self.result

    def commit(self, *steps: int, theirs: int | None = None) -> None:
        """`theirs`: the other rank's word, where it is not ours."""
        for step in steps:
            self.play.step = step
            words = [self.play.verification.word()]
            words.append(words[0] if theirs is None else theirs)
            said = tuple(words.count(word) for word in range(4))
            self.play.verification.hear(Tally(counts=(), said=said, taken={}))
            self.play.verification.committed()


def test_a_kind_of_transaction_is_proved_twice_the_second_time_as_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play = Play()
    proofs = Proofs(play, monkeypatch)

    proofs.commit(1, 2, 3, 4)

    assert proofs.made == [(0, False), (1, True)]


def test_another_loop_or_another_backward_in_it_is_another_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play = Play()
    proofs = Proofs(play, monkeypatch)
    proofs.commit(1, 2)
    for later in (microbatch(loop("tune.py:9")), microbatch(skip=1)):
        play.runtime.microbatches = [later]
        proofs.commit(3)

    assert proofs.made[2:] == [(2, False), (2, False)]


@pytest.mark.parametrize("change", ["lost", "lowered", "no loop"])
def test_nothing_is_proved_where_nothing_would_follow(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Play()
    proofs = Proofs(play, monkeypatch)
    if change == "lost":
        play.lost = True
    elif change == "lowered":
        play.guarantee.promise = "equal-count"
    else:
        play.runtime.microbatches = []

    proofs.commit(1)

    assert proofs.made == []


def test_a_loop_in_which_only_this_rank_trains_lowers_the_promise_and_nobody_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play = Play()
    proofs = Proofs(play, monkeypatch)
    proofs.commit(1, 2)
    play.runtime.microbatches = [microbatch(loop("retry.py:9"))]

    proofs.commit(6, theirs=PROVED)

    assert len(proofs.made) == 2
    assert play.guarantee.promise == "equal-count"
    (words,) = play.downgrades
    assert words.startswith("retry.py:9: ranks took different ways") and "transaction 5" in words


def test_where_another_rank_trains_in_a_loop_of_its_own_that_rank_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play = Play()
    proofs = Proofs(play, monkeypatch)
    proofs.commit(1, 2)

    proofs.commit(6, theirs=FIRST)

    assert play.guarantee.promise == "equal-count" and play.downgrades == []


def test_a_rank_that_cannot_prove_anything_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play = Play()
    proofs = Proofs(play, monkeypatch)

    proofs.commit(1, theirs=NOTHING)
    play.verification.committed()  # by the coordinator's word, without a vote

    assert proofs.made == [] and play.guarantee.promise == "exact-samples"


def test_a_loss_during_a_proof_changes_no_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play()
    proofs = Proofs(play, monkeypatch)
    proofs.result = None

    proofs.commit(1)

    assert play.guarantee.promise == "exact-samples" and play.promises == []


def test_a_later_proof_that_fails_lowers_the_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play()
    proofs = Proofs(play, monkeypatch)
    proofs.commit(1)
    proofs.result = "equal-count", "it drew other random numbers"

    proofs.commit(2)

    assert play.guarantee.promise == "equal-count"
    assert play.promises == [("equal-count", "it drew other random numbers")]


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

    assert play.verification._agreed(found, GENERATION) == level
    assert found["immaterial"] == ["x", "y"], "what one has tried is known to all"
    assert EMPTY["immaterial"] == []


@pytest.mark.parametrize(
    "found", [{"failed": "LookupError: no batch"}, forked.Failed("LookupError: no batch")]
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

    monkeypatch.setattr(forked, "run", run)
    play = Play()
    play.impersonator.longest_s = 2.0

    said = play.verification._tried(SimpleNamespace(  # type: ignore[arg-type]
        work=None, microbatch=microbatch(), partner=PARTNER
    ))  # fmt: skip

    assert (said["promise"], said["exact"]) == ("equal-count", [])
    assert said["reason"] == (
        "train.py:1: rank 1's microbatch cannot be executed: LookupError: no batch"
    )
    assert bounds == [40.0]


# --------------------------------------------------------------------------- the comparison

END = at(0, 0, "after")
TRUTH: dict[str, Any] = {
    "door": 7, "mark": [11, 12], "end": crc_of_streams(END.streams), "gradient": 55,
}  # fmt: skip


def trial(play: Play, *, whole: bool = True, threads: int = 1, **said: Any) -> _Trial:
    made = _Trial(
        play,
        PARTNER,
        {**TRUTH, **said},
        0,
        play.runtime.microbatches[0],
        False,  # type: ignore[arg-type]
    )
    made._whole, made._threads = whole, threads
    return made


def done(**different: Any) -> Executed:
    usual: dict[str, Any] = {"mark": (11, 12), "entered": frozenset({11}), "door": 7, "after": END}
    return Executed(**{**usual, **different})


def test_the_same_microbatch_is_known() -> None:
    assert trial(Play())._unlike(done()) == ""


@pytest.mark.parametrize(
    ("different", "said", "why"),
    [
        ({"door": 8, "mark": (99, 12)}, {}, "other data entered the model"),
        ({"door": 8}, {}, "it drew other random numbers"),  # before the model's door
        ({"mark": (99, 12)}, {}, "other data entered the model"),  # later than the first forward
        ({"mark": (11, 99)}, {}, "its loss was another one"),
        ({}, {"end": 1}, "it drew other random numbers"),  # behind the door
        ({}, {"gradient": 56}, "its gradient was another one"),
        ({}, {"gradient": 0}, ""),  # it cannot be compared
        ({"mark": (11, 99)}, {"mark": [11, 0]}, ""),  # nor can its loss
    ],
)
def test_what_is_not_the_same_is_named(
    different: dict[str, Any], said: dict[str, Any], why: str
) -> None:
    assert trial(Play(), **said)._unlike(done(**different)) == why


def test_where_the_forward_needs_other_ranks_what_enters_is_compared() -> None:
    stopped = done(mark=(11, 0), after=None)

    assert trial(Play(), whole=False)._unlike(stopped) == ""
    assert trial(Play(), whole=False, door=8)._unlike(stopped) == "it drew other random numbers"


def test_sums_of_several_threads_are_not_compared_bit_for_bit() -> None:
    """A child has one thread; the streams and what entered must be the same all the more."""
    other = done(mark=(11, 99))

    assert trial(Play(), threads=4, gradient=56)._unlike(other) == ""
    assert trial(Play(), threads=4, end=1)._unlike(other) == "it drew other random numbers"


@pytest.mark.parametrize(
    ("more", "gave"),
    [
        ({}, "gave the identical gradient"),
        ({"whole": False}, "gave identical inputs and random numbers (its forward pass needs"),
        ({"threads": 4}, "gave identical inputs and random numbers (sums of several threads"),
        ({"gradient": 0}, "gave identical inputs, random numbers and loss"),
    ],
)
def test_what_is_praised_is_what_was_compared(more: dict[str, Any], gave: str) -> None:
    assert gave in trial(Play(), **more).praise("train.py:1")


def test_the_first_known_cause_is_named() -> None:
    play = Play()
    made = trial(play, tops=[b""], bulk={})
    why = made._explained("other data entered the model", frozenset())
    assert "rank 1's microbatch here, other data entered the model: its data or random" in why

    unknown = frozenset({"seen"})
    assert made._explained("x", unknown) == "seen differs between ranks and moves between steps"
    play.impersonator.talked = True
    assert made._explained("x", unknown) == TALKS
