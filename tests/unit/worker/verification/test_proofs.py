"""The questions of ranks to each other before anything is promised, and what they conclude from a
proof.
"""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from ft_collectives.communicators.limits import TimeLimits
from recoverrun.worker.replay.data_set_shares import DataSetShares
from recoverrun.worker.step.guarantee import Guarantee
from recoverrun.worker.tracking.microbatches import Microbatch, MicrobatchPlace
from recoverrun.worker.tracking.mode import ExecutionMode
from recoverrun.worker.verification import forked_child, mutual_proof, proofs
from recoverrun.worker.verification.mutual_proof import MutualProof, Proved
from recoverrun.worker.verification.proofs import UNEQUAL, Proofs
from recoverrun.worker.verification.replay_trial import EMPTY
from rendezvous.coordinator.guarantees import WEAKEST_FIRST
from rendezvous.protocol.layout import Layout
from rendezvous.protocol.messages import UNSAID, Promise
from tests.unit.contexts import at, loop
from tests.unit.workers import protected

pytestmark = pytest.mark.usefixtures("streams_put_back")

OWN, PARTNER, GENERATION = 0, 1, 3


class Iteration(SimpleNamespace):
    """Stands for a `Top`. Its base alone cannot be held weakly."""


def microbatch(*loops: Any, skip: int = 0) -> Microbatch:
    """In these loops, the innermost first."""
    tops: list[Any] = [
        Iteration(loop=one, names={}, globals={}, context=at(0, attempt=9 - number, loop=one.id))
        for number, one in enumerate(loops or (loop(),))
    ]
    places = [MicrobatchPlace(top, skip) for top in tops]
    return Microbatch(0, tuple(places))


def _no(*loops: object) -> bool:
    return False


def _ended(step: int, index: int, top: Any) -> Any:
    return at(step, index, "after")


class Play:
    """A session of rank 0, and what the other rank says."""

    def __init__(self, *microbatches: Microbatch) -> None:
        self.refusal = ""
        self.without_survivors: Promise = "unprotected"
        self.heard: list[dict[str, Any]] = []  # what the other rank answers, in order
        self.said: list[dict[str, Any]] = []
        self.promises: list[tuple[Promise, str]] = []
        reporter: Any = SimpleNamespace(
            promise=lambda own, n, why, extent: self.promises.append((own, why))
        )
        self.guarantee = Guarantee(reporter, lambda: 1)
        self.runtime = SimpleNamespace(
            regions=set(),
            microbatches=list(microbatches) or [microbatch()],
            why_no_loop=lambda: "no loop was seen",
            outward={},
            sources=[],
            own_modules=frozenset(),
            mode=ExecutionMode(),
        )
        self.strategy: Any = SimpleNamespace(
            terms="2 buckets", unlike="ranks hold other parameters", alone=True, digest=lambda: 55,
            parameters=dict,
        )  # fmt: skip
        self.view = SimpleNamespace(generation=GENERATION)
        self.fabric: Any = self
        self.limits = TimeLimits(lambda: timedelta(seconds=1))
        self.downgrades: list[str] = []
        reporter.downgraded = self.downgrades.append
        self.least_of_others = WEAKEST_FIRST.index("exact-samples")
        self.vote_group: Any = SimpleNamespace(
            channel=object(), least=lambda generation, mine: min(mine, self.least_of_others)
        )
        self.peers, self.withdraw = object(), None  # it was never lost
        self.left: list[Any] = []  # for successors: where this rank began
        self.context_buffer = SimpleNamespace(top=self.left.append, after=lambda context: None)
        captures = SimpleNamespace(
            points=[], at=lambda point: None, include=lambda context: None,
            after=lambda step, microbatch: None, present=_ended,
        )  # fmt: skip
        influence = SimpleNamespace(shown=lambda loop, keys: None, flows=_no, renews=_no)
        self.executor: Any = SimpleNamespace(
            talked=False, longest_s=0.0, captures=captures, proving=True,
            items=SimpleNamespace(fed={}), influence=influence, lost={}, rewrites=False,
            shares=SimpleNamespace(own=lambda keys, visible: []), optimizers=[], moved=[],
            constants=SimpleNamespace(exchange=lambda *_: None, settle=lambda: None, apart=()),
        )  # fmt: skip
        self.trusts = 0
        self.sources = SimpleNamespace(
            proved=SimpleNamespace(trust=self._trust), roots=dict, bulk=dict, shares=DataSetShares()
        )  # fmt: skip
        self.machine = SimpleNamespace(slot=0)
        self.alike = SimpleNamespace(informs=lambda lost: lost, learn=lambda tops: None)
        self.layout = Layout(((OWN,), (PARTNER,)))
        self.env = SimpleNamespace(exact=False, error_file="", rank=OWN)
        self.failpoints = SimpleNamespace(disarm=lambda: None)
        self.lost, self.step, self.joined = False, 1, tuple[int, ...]()
        drift: Any = self.alike
        sources: Any = self.sources
        mutual = MutualProof(protected(self), self.executor, sources, drift)
        self.verification = Proofs(self, self.executor, mutual, lambda generation: None)

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
    ("own", "other", "promise", "snapshots"),
    [
        ("exact-samples", "exact-samples", "exact-samples", False),
        ("exact-samples", "equal-count", "equal-count", False),
        ("equal-count", "exact-samples", "equal-count", True),
        ("equal-count", "unprotected", "unprotected", False),
        ("equal-count", "unprotected", "rollback", True),
    ],
)
def test_the_weakest_promise_of_any_rank_holds(
    own: Promise, other: Promise, promise: Promise, snapshots: bool
) -> None:
    play = Play()
    play.without_survivors = "rollback" if snapshots else "unprotected"
    play.least_of_others = WEAKEST_FIRST.index(other)

    weakest = play.verification._everybody(GENERATION, own)
    play.verification._conclude(weakest, Proved(own, "what was found"))

    assert play.guarantee.promise == promise
    assert play.promises == [(own, "what was found")]


def test_who_finds_that_nothing_can_be_made_good_says_what_the_run_goes_back_to() -> None:
    play = Play()
    play.without_survivors = "rollback"

    play.verification._conclude("unprotected", Proved("unprotected", "it leaves a trace"))

    assert play.promises == [("rollback", "it leaves a trace")]


def test_a_second_proof_that_holds_says_nothing_anew() -> None:
    play = Play()
    for _ in range(2):
        play.verification._conclude("exact-samples", Proved("exact-samples", "checked"))

    assert len(play.promises) == 1


@pytest.mark.parametrize(("own", "words"), [("equal-count", "it moves"), ("exact-samples", UNSAID)])
def test_who_asked_for_exact_sums_is_refused_them_with_a_reason(
    own: Promise, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    play = Play()
    play.env.exact = True

    with pytest.raises(SystemExit):
        play.verification._conclude("equal-count", Proved(own, "it moves"))

    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("own", "told"), [("equal-count", ["it moves"]), ("exact-samples", [UNSAID])]
)
def test_once_a_replica_has_come_back_a_proof_that_fails_takes_exact_sums_back_and_the_run_goes_on(
    own: Promise, told: list[str]
) -> None:
    play = Play()
    play.env.exact, play.joined = True, (PARTNER,)
    play.verification._conclude("exact-samples", Proved("exact-samples", "checked"))

    play.verification._conclude("equal-count", Proved(own, "it moves"))

    assert play.guarantee.promise == "equal-count"
    assert play.downgrades == told
    assert len(play.promises) == 1


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
    "found",
    [{"failed": "LookupError: no batch"}, forked_child.ChildFailed("LookupError: no batch")],
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
    play.executor.longest_s = 2.0

    said = play.verification._mutual._tried(SimpleNamespace(  # type: ignore[arg-type]
        work=None, microbatch=microbatch(), partner=PARTNER
    ))  # fmt: skip

    assert (said["promise"], said["exact"]) == ("equal-count", [])
    assert said["reason"] == (
        "train.py:1: rank 1's microbatch cannot be executed: LookupError: no batch"
    )
    assert bounds == [40.0]


@pytest.mark.parametrize("who", [OWN, PARTNER])
def test_where_some_rank_cannot_execute_anything_no_rank_tries(
    who: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forked_child, "hindrance", lambda: "no CUDA there" if who == OWN else "")
    monkeypatch.setattr(forked_child, "run", lambda work, within_s: pytest.fail("it was tried"))
    play = Play(microbatch())
    play.heard = [{"hindered": "no CUDA there" if who == PARTNER else ""}]

    play.verification.first()

    ((promise, reason),) = play.promises
    assert (promise, play.guarantee.promise) == ("equal-count", "equal-count")
    assert reason.startswith("train.py:1: ") and reason.endswith(": no CUDA there")
    assert play.left == []


def test_a_process_that_uses_cuda_has_no_child_that_executes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert forked_child.hindrance() == ""
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    assert forked_child.hindrance() == forked_child.NO_CUDA


# --------------------------------------------------------------------------- what they tell first


def test_what_contexts_see_as_a_transaction_ends_is_no_constant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`metrics["loss"] = step(batch)`: its first value comes between two microbatches."""
    play, metrics, seen = Play(), {"loss": 0.5}, list[Any]()
    (place,) = play.runtime.microbatches[0].places
    place.top.names = {"metrics": metrics}
    entry = ("metrics", "['loss']")
    now = at(0, kind="after", attributes={entry: 0.5})
    play.executor.captures.present = lambda *_: now
    play.executor.constants.exchange = lambda there, own, known, tell: seen.append(known)
    monkeypatch.setattr(play.verification._mutual, "_tried", lambda trial: {**EMPTY, "exact": [0]})

    play.verification.first()

    assert seen == [{(id(metrics), entry[-1])}]


def test_the_item_of_a_loop_is_told_by_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that came back had no such item, or a shorter one, and did not take part."""
    play, batch, told = Play(microbatch(loop(targets=frozenset({"batch"})))), [1, 2], list[Any]()
    (place,) = play.runtime.microbatches[0].places
    place.top.names = {"batch": batch, "rows": [[3]]}
    play.executor.constants.exchange = lambda there, *_: told.append(there.held)
    monkeypatch.setattr(play.verification._mutual, "_tried", lambda trial: {**EMPTY, "exact": [0]})

    play.verification.first()

    names = {path for path, _ in told[0]}
    assert {"rows", "rows[0]"} <= names and not any(name.startswith("batch") for name in names)
    assert any(one is batch for _, one in told[0])
