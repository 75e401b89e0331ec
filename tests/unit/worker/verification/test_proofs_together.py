"""Code behind the door of the model, where only the ranks of a replica together come there."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ft_collectives.communicators.gather_objects import Words
from recoverrun.worker.verification import forked_child, replica_children
from recoverrun.worker.verification.forked_child import Ask, ChildLate
from recoverrun.worker.verification.replay_trial import EMPTY, ReplayTrial
from rendezvous.protocol.layout import Layout
from rendezvous.protocol.store_messages import StoreAnswer, StoreCall
from tests.unit.worker.verification.test_proofs import (
    GENERATION,
    PARTNER,
    Play,
    _gather,
    microbatch,
)

pytestmark = pytest.mark.usefixtures("streams_put_back", _gather.__name__)

UNKNOWN = ["seen", "count"]
PARTED = "count, seen differ between ranks and move between steps"
OTHERWISE = "its loss was another one"
NOBODY = 0  # the word of a rank whose child can meet none


class Behind(Play):
    """Of a rank whose children meet those of its replica; they say what `work` returns."""

    def __init__(self, **said: Any) -> None:
        super().__init__()
        self.called: list[StoreCall] = []
        self.asked: list[tuple[int, str, float]] = []
        self.found: Words = {**EMPTY, "exact": [0], "immaterial": UNKNOWN}
        self.trial: Any = SimpleNamespace(
            has_mates=True, work_together=self.work, microbatch=microbatch(), partner=PARTNER,
            outward=0,
        )  # fmt: skip
        self.work_in_child: Callable[[Ask], Words] = lambda ask: {**EMPTY, **said}

    def store(self, generation: int) -> Any:
        def call(one: StoreCall) -> StoreAnswer:
            self.called.append(one)
            return StoreAnswer(rank=one.rank, serial=1, status="ok", values=(b"7",), number=3)

        assert generation == GENERATION
        return SimpleNamespace(call=call)

    def work(self, level: int, place: str, within_s: float, ask: Ask) -> Words:
        """In a child, which tells how it was called by what it has found to be different."""
        return {**self.work_in_child(ask), "different": [level, place, within_s]}

    def together(self, level: int = 1) -> str:
        return self.verification._mutual._together(self.trial, self.found, level, 7, GENERATION)


# --------------------------------------------------------------------------- they meet


@pytest.mark.parametrize("reason", ["", OTHERWISE])
def test_the_reason_of_a_child_that_has_met_its_mates_is_the_reason(reason: str) -> None:
    """Code that the door could not judge has been executed: it is no matter any more."""
    assert Behind(reason=reason).together() == reason


@pytest.mark.parametrize(("before", "now"), [(False, False), (False, True), (True, False)])
def test_that_others_were_talked_to_is_known_from_either_child(before: bool, now: bool) -> None:
    play = Behind(talked=now)
    play.found["talked"] = before

    play.together()

    assert play.found["talked"] is (before or now)


def test_a_child_of_which_nothing_comes_is_a_reason() -> None:
    def work(ask: Ask) -> Words:
        raise RuntimeError("Connection closed by peer")

    play = Behind()
    play.work_in_child = work

    assert play.together() == (
        "train.py:1: rank 1's microbatch cannot be executed: "
        "RuntimeError: Connection closed by peer"
    )


def test_it_calls_the_store_of_the_generation_through_its_parent() -> None:
    wanted = StoreCall(
        rank=0, serial=0, generation=GENERATION, op="get", keys=("a",), values=(), amount=0,
        timeout_s=1.0,
    )  # fmt: skip

    def work(ask: Ask) -> Words:
        answer = replica_children.asking(ask)(wanted)
        return {**EMPTY, "reason": f"{answer.values} {answer.number}"}

    play = Behind()
    play.work_in_child = work

    assert (play.together(), play.called) == ("(b'7',) 3", [wanted])


def test_a_child_waits_half_as_long_for_its_mates_as_its_parent_for_it() -> None:
    play = Behind()
    play.executor.longest_s = 2.0
    done: list[Words] = []
    keep = play.verification._mutual._done

    def kept(trial: ReplayTrial, work: Callable[[], Words]) -> Words:
        done.append(keep(trial, work))
        return done[-1]

    play.verification._mutual._done = kept  # type: ignore[method-assign]

    play.together(level=2)

    assert [one["different"] for one in done] == [[2, "recoverrun/proof/7/2", 20.0]]


# --------------------------------------------------------------------------- they cannot


@pytest.mark.parametrize("who", ["this rank", "another one"])
@pytest.mark.parametrize(("unknown", "why"), [(UNKNOWN, PARTED), ([], "")])
def test_where_any_of_them_cannot_only_what_the_door_cannot_judge_is_a_reason(
    unknown: list[str], why: str, who: str
) -> None:
    play = Behind(reason="no child was made")
    play.found["immaterial"] = unknown
    if who == "this rank":
        play.trial.has_mates = False
    else:
        play.least_of_others = NOBODY

    assert play.together() == why


# --------------------------------------------------------------------------- the promise


class Proof:
    """Of the first transaction, in which the child that is alone has found the right loop."""

    def __init__(
        self, unknown: list[str], monkeypatch: pytest.MonkeyPatch, theirs: tuple[str, ...] = ()
    ) -> None:
        self.play, found = Play(), {**EMPTY, "exact": [0], "immaterial": unknown}
        self.play.heard, self.votes = [{}, {"immaterial": list(theirs)}], 0
        monkeypatch.setattr(self.play.verification._mutual, "_tried", lambda trial: dict(found))
        monkeypatch.setattr(replica_children, "can_meet", lambda groups: False)
        self.play.vote_group.least = self._least

    def _least(self, generation: int, mine: int) -> int:
        self.votes += 1
        return mine

    def conclude(self) -> tuple[str, str]:
        self.play.verification.first()
        ((promise, why),) = self.play.promises
        return promise, why


SHARDED = Layout(((0, 2), (1, 3)))
GRADIENT = "gave identical inputs, random numbers and loss"
INPUTS = "gave identical inputs and random numbers (its forward pass needs the other shards)"


@pytest.mark.parametrize("unknown", [UNKNOWN, []])
def test_a_replica_that_is_one_rank_has_nobody_to_meet(
    unknown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has gone all the way alone: what is unknown is known to be no matter."""
    proof = Proof(unknown, monkeypatch)
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)

    promise, why = proof.conclude()

    assert promise == "exact-samples" and why.endswith(GRADIENT)
    assert proof.votes == 1, "on the promise"


@pytest.mark.parametrize(("unknown", "promise"), [(UNKNOWN, "equal-count"), ([], "exact-samples")])
@pytest.mark.parametrize("divided", ["layout", "strategy"])
def test_a_divided_replica_whose_children_cannot_meet_is_judged_at_the_door(
    divided: str, unknown: list[str], promise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    proof = Proof(unknown, monkeypatch)
    if divided == "layout":
        proof.play.layout = SHARDED
    else:
        proof.play.strategy.alone = False

    found, why = proof.conclude()

    assert found == promise
    assert why == PARTED if unknown else why.endswith(INPUTS)
    assert proof.votes == 2


def test_what_several_ranks_cannot_judge_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    proof = Proof(UNKNOWN, monkeypatch, theirs=("seen", "count"))
    proof.play.layout = SHARDED

    assert proof.conclude() == ("equal-count", PARTED)


# --------------------------------------------------------------------------- before the door


@pytest.mark.parametrize(
    ("tops", "right", "level", "tried"),
    [
        ([[b"a", b"b"], [b"a", b"b"]], 0, 0, [0]),
        ([[b"a", b"b"], [b"a", b"b"]], 1, 1, [0, 1]),
        ([[b"", b"b"], [b"a", b"b"]], 1, 1, [1]),  # one rank has not noted it
        ([[b"a", b"b"], [b"a", b""]], 9, None, [0]),
    ],
)
def test_mates_find_the_loop_where_nobody_comes_to_the_door_alone(
    tops: list[list[bytes]], right: int, level: int | None, tried: list[int]
) -> None:
    play, course = Behind(), list[int]()

    def together(at: int, place: str, within_s: float, ask: Ask) -> Words:
        why = "" if at == right else OTHERWISE
        return {**EMPTY, "reason": why, "immaterial": ["x"], "different": [at]}

    keep = play.verification._mutual._done

    def kept(trial: ReplayTrial, work: Callable[[], Words]) -> Words:
        done = keep(trial, work)
        course.extend(done["different"])
        return done

    play.trial.work_together = together
    play.verification._mutual._done = kept  # type: ignore[method-assign]
    found: Words = {**EMPTY, "mates": True}

    assert (
        play.verification._mutual._found_together(play.trial, found, tops, 7, GENERATION) == level
    )
    assert course == tried
    assert found["immaterial"] == ([] if level is None else ["x"])
    assert found["reason"] == (OTHERWISE if level is None else "")


# --------------------------------------------------------------------------- a machine stood still


def test_where_any_child_did_not_come_through_all_meet_once_more_elsewhere() -> None:
    play, places = Behind(), list[str]()
    play.trial.work_together = lambda level, place, within_s, ask: {**EMPTY, "reason": place}

    def least(generation: int, mine: int) -> int:
        places.append(str(mine))
        return mine if len(places) in (1, 4) else 0  # another rank's child has failed

    play.vote_group.least = least

    assert play.together() == "recoverrun/proof/7/1/again"
    assert places == ["1"] * 4, "this rank's meets others, comes through, in time, changes nothing"


@pytest.mark.parametrize("who", ["this rank", "another one"])
def test_parameters_that_are_changed_behind_the_door_are_held_and_all_meet_once_more(
    who: str,
) -> None:
    """SAM over shards: each execution moved the weights once more."""
    play, votes = Behind(), list[int]()

    def work(level: int, place: str, within_s: float, ask: Ask) -> Words:
        held = play.executor.rewrites
        changes = who == "this rank" and not held
        return {**EMPTY, "reason": place if held else OTHERWISE, "rewrites": changes}

    def least(generation: int, mine: int) -> int:
        votes.append(mine)
        return 0 if len(votes) == 3 else mine

    play.trial.work_together = work
    play.vote_group.least = least

    assert play.together() == "recoverrun/proof/7/1/rewritten"
    assert votes == [1, 1, int(who != "this rank")]
    assert play.executor.rewrites
    play.together()
    assert len(votes) == 5, "nobody asks once it is known"


@pytest.mark.parametrize("late", ["this rank", "another one"])
def test_where_any_child_is_late_all_are_tried_once_more(
    late: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    play, tries = Play(), list[float]()
    play.layout = Layout(((0,), (1,)))

    def run(work: Any, within_s: float) -> Words:
        tries.append(within_s)
        if late == "this rank" and len(tries) == 1:
            raise ChildLate("it did not end within 10 s in a copy of this process")
        return {**EMPTY, "exact": [0]}

    monkeypatch.setattr(forked_child, "run", run)
    said = {"exact": [0], "late": late == "another one"}
    play.heard = [{}, said, {"late": False}]
    play.verification.first()

    assert len(tries) == 2
    assert play.promises[0][0] == "exact-samples"
