"""The comparison of another rank's microbatch with what that rank noted of its own."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recoverrun.worker.context.evidence import Mark, crc_of_streams
from recoverrun.worker.context.object_graph import Holdings
from recoverrun.worker.replay.executed import TALKS, Executed
from recoverrun.worker.step import parameter_checksum
from recoverrun.worker.tracking.microbatches import Microbatch
from recoverrun.worker.verification import replica_children
from recoverrun.worker.verification.replay_trial import EMPTY, ReplayTrial, bulk_of
from recoverrun.worker.verification.trial_words import LOSS, NUMBERS
from rendezvous.protocol.layout import Layout
from tests.unit.contexts import at, loop
from tests.unit.worker.verification.test_proofs import GENERATION, PARTNER, Play, microbatch

pytestmark = pytest.mark.usefixtures("streams_put_back")

END = at(0, 0, "after")
MARK, DOOR = (11, 12), 7
TRUTH: dict[str, Any] = {
    "shown": [[[11, 12], 7]], "end": crc_of_streams(END.streams), "gradient": 55,
    "tops": [b""] * 3, "ends": [b""] * 3,
}  # fmt: skip


ELSEWHERE: Any = SimpleNamespace(native=SimpleNamespace(_device_types=[]))
"""A group that is not gloo's."""


def parts(play: Any) -> Any:
    """The parts that a trial is made with before it is told of anybody."""
    return play, play.executor, play.sources, play.alike


def _trial(
    play: Play,
    said: dict[str, Any],
    microbatch: Microbatch,
    *,
    there: Holdings | None = None,
    outward: int = 0,
) -> ReplayTrial:
    return ReplayTrial(
        *parts(play),
        partner=PARTNER,
        said=said,
        step=0,
        microbatch=microbatch,
        followed=False,
        there=there or Holdings(),
        outward=outward,
    )


def trial(
    play: Play, *, whole: bool = True, meets: bool = True, threads: int = 1, **said: Any
) -> ReplayTrial:
    first, there = play.runtime.microbatches[0], Holdings()
    outward = play.runtime.outward.get(first.places[0].top.loop.id, 0)
    made = _trial(play, {**TRUTH, **said}, first, there=there, outward=outward)
    made._whole, made._threads = whole, threads
    made._mates = [] if meets else [ELSEWHERE]
    return made


def done(**different: Any) -> Executed:
    usual: dict[str, Any] = {"mark": MARK, "entered": frozenset({11}), "door": DOOR, "after": END}
    return Executed(**{**usual, **different})


def test_the_same_microbatch_is_known() -> None:
    assert trial(Play())._unlike(done(), MARK, DOOR) == ""


@pytest.mark.parametrize(
    ("different", "mark", "said", "why"),
    [
        ({"door": 8, "mark": (99, 12)}, MARK, {}, "other data entered the model"),
        ({"door": 8}, MARK, {}, "it drew other random numbers"),  # before the model's door
        ({"mark": (99, 12)}, MARK, {}, "other data entered the model"),  # after the first forward
        ({"mark": (11, 99)}, MARK, {}, "its loss was another one"),
        ({}, MARK, {"end": 1}, "it drew other random numbers"),  # behind the door
        ({}, MARK, {"gradient": 56}, "its gradient was another one"),
        ({}, MARK, {"gradient": 0}, ""),  # it cannot be compared
        ({"mark": (11, 99)}, (11, 0), {}, ""),  # nor can its loss
        ({"mark": (99, 12), "door": 8}, (0, 12), {}, ""),  # its model was not known then
    ],
)
def test_what_is_not_the_same_is_named(
    different: dict[str, Any], mark: Mark, said: dict[str, Any], why: str
) -> None:
    assert trial(Play(), **said)._unlike(done(**different), mark, DOOR) == why


@pytest.mark.parametrize(
    ("there", "why"),
    [
        ({"x": 1, "step": 4}, ""),
        ({"x": 2, "step": 4}, "x had other values at its end"),
        ({"x": 1, "step": 5}, ""),  # no microbatch reads it
        ({"x": 0, "step": 4}, ""),  # as it began: that rank did not move it
    ],
)
def test_it_ends_where_its_own_rank_ended_it(there: dict[str, int], why: str) -> None:
    play = Play()
    play.executor.influence.matters = lambda key, value: key == "x"
    ended = at(0, 0, "after", names={"x": 1, "step": 4})
    truth = at(0, 0, "after", names=there).pack()

    began = at(0, names={"x": 0}).pack()

    made = trial(play, end=crc_of_streams(ended.streams), tops=[began], ends=[truth])

    assert made._unlike(done(after=ended), MARK, DOOR) == why


def test_where_the_forward_needs_other_ranks_what_enters_is_compared() -> None:
    stopped = done(mark=(11, 0), after=None)
    shards = trial(Play(), whole=False)

    assert shards._unlike(stopped, MARK, DOOR) == ""
    assert shards._unlike(stopped, MARK, 8) == "it drew other random numbers"


def test_sums_of_several_threads_are_not_compared_bit_for_bit() -> None:
    """A child has one thread; the streams and what entered must be the same all the more."""
    other = done(mark=(11, 99))

    assert trial(Play(), threads=4, gradient=56)._unlike(other, MARK, DOOR) == ""
    drawn = trial(Play(), threads=4, end=1)
    assert drawn._unlike(other, MARK, DOOR) == "it drew other random numbers"


@pytest.mark.parametrize("level", [0, 1])
def test_what_is_executed_from_an_iteration_is_held_against_what_that_one_has_done(
    level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since an outer iteration began, more has entered the model than since the inner one."""
    play = Play(microbatch(loop("train.py:5"), loop("train.py:1")))
    play.strategy.set_aside = play.strategy.put_back = lambda *kept: None
    play.executor.execute = lambda *what: done(mark=(21, 12), door=8)
    made = trial(play, shown=[[[11, 12], 7], [[21, 12], 8]], tops=[b"", b""], bulk={})
    lost: Any = SimpleNamespace(at=lambda point, own: None)
    monkeypatch.setattr(made, "_partner", lambda level: (lost, frozenset()))
    made.microbatch.chosen = level

    why, _ = made._try(level)

    assert (why == "") == (level == 1)


@pytest.mark.parametrize(
    ("chosen", "right", "tried", "exact"),
    [
        (None, 0, [0], [0]),
        (None, 2, [0, 1, 2], [2]),
        (1, 1, [1], [1]),
        (1, 2, [1, 2], [2]),
        (1, 0, [1, 2], []),
    ],
)
def test_loops_within_the_one_that_was_found_are_not_tried_again(
    chosen: int | None,
    right: int,
    tried: list[int],
    exact: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play = Play(microbatch(*(loop(f"train.py:{line}") for line in (7, 5, 3, 1))))
    if chosen is not None:
        play.runtime.outward["train.py:7"] = chosen
    made, found = trial(play, tops=[b"top"] * 3), list[int]()

    def attempt(level: int) -> tuple[str, frozenset[Any]]:
        found.append(level)
        return "" if level == right else "other data entered the model", frozenset()

    monkeypatch.setattr(made, "_try", attempt)
    monkeypatch.setattr(made, "_leaves_a_trace", lambda: False)
    monkeypatch.setattr(made, "_different", set)
    monkeypatch.setattr(parameter_checksum, "of", lambda strategy: 0)

    said = made.work()

    assert (found, said["exact"]) == (tried, exact)


def test_an_iteration_that_either_rank_has_not_noted_is_not_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play = Play(microbatch(*(loop(f"train.py:{line}") for line in (5, 3, 1))))
    play.runtime.microbatches[0].places[0].top.context = None
    made, found = trial(play, tops=[b"top", b"", b"top"]), list[int]()

    def attempt(level: int) -> tuple[str, frozenset[Any]]:
        found.append(level)
        return "other data entered the model", frozenset()

    monkeypatch.setattr(made, "_try", attempt)
    monkeypatch.setattr(made, "_different", set)
    monkeypatch.setattr(parameter_checksum, "of", lambda strategy: 0)

    made.work()

    assert found == [2]


@pytest.mark.parametrize(
    ("more", "gave"),
    [
        ({}, "gave the identical gradient"),
        ({"whole": False}, "gave the identical gradient"),  # its mates' children have met
        (
            {"whole": False, "meets": False},
            "gave identical inputs and random numbers (its forward pass needs",
        ),
        ({"meets": False}, "gave the identical gradient"),  # it has needed nobody
        ({"threads": 4}, "gave identical inputs and random numbers (sums of several threads"),
        ({"gradient": 0}, "gave identical inputs, random numbers and loss"),
    ],
)
def test_what_is_praised_is_what_was_compared(more: dict[str, Any], gave: str) -> None:
    assert gave in trial(Play(), **more).praise("train.py:1")


def test_the_first_known_cause_is_named() -> None:
    play = Play()
    made = trial(play, tops=[b"", b""], bulk={})
    why = made._explained("other data entered the model", frozenset(), heard=False)
    assert "rank 1's microbatch here, other data entered the model: its data come from" in why
    assert "random numbers come from" in made._explained(NUMBERS, frozenset(), heard=False)
    assert "data and random numbers are right" in made._explained(LOSS, frozenset(), heard=False)
    assert "moves them" in made._explained(
        "seen had other values at its end", frozenset(), heard=False
    )

    unknown, explained = frozenset({"seen"}), made._explained
    moves = "seen differs between ranks and moves between steps"
    assert explained("x", unknown, heard=False) == moves
    assert explained("x", unknown, heard=True) == TALKS


# --------------------------------------------------------------------------- with others


@pytest.mark.parametrize(
    ("alone", "layout", "needs"),
    [
        (True, Layout(((0,), (1,))), False),
        (True, Layout(((0, 2), (1, 3))), True),
        (False, Layout(((0,), (1,))), True),
        (False, Layout(((0, 2), (1, 3))), True),
    ],
)
def test_only_a_replica_of_one_rank_that_talks_to_nobody_needs_no_mates(
    alone: bool, layout: Layout, needs: bool
) -> None:
    play = Play()
    play.strategy.alone, play.layout = alone, layout

    made = _trial(play, TRUTH, play.runtime.microbatches[0])

    assert made.needs_mates is needs


@pytest.mark.parametrize(
    ("why", "exact", "talks"),
    [("", [1], False), ("", [1], True), ("its loss was another one", [], False)],
)
def test_who_has_met_its_mates_tries_all_of_the_loop_that_was_found(
    why: str, exact: list[int], talks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Play(microbatch(loop("train.py:5"), loop("train.py:1")))
    made, course = trial(play, whole=False), list[Any]()

    def meet(groups: Any, ask: Any, **where: Any) -> None:
        course.append((groups, ask, where))

    def attempt(level: int) -> tuple[str, frozenset[Any]]:
        course.append((level, made.microbatch.chosen, made._whole))
        play.executor.talked = talks
        return why, frozenset({"unknown"})

    monkeypatch.setattr(parameter_checksum, "of", lambda strategy: 0)
    monkeypatch.setattr(replica_children, "meet", meet)
    monkeypatch.setattr(made, "_try", attempt)
    ask: Any = object()

    said = made.work_together(1, "proof/7", 3.0, ask)

    where = {"rank": 0, "generation": GENERATION, "place": "proof/7", "within_s": 3.0}
    assert course == [(made._mates, ask, where), (1, 1, True)]
    told = {"exact": exact, "reason": why, "talked": talks, "immaterial": ["unknown"]}
    assert said == {**EMPTY, **told}


# --------------------------------------------------------------------------- what it moves


class Counting:
    """A microbatch whose code counts in a place that nobody else puts back."""

    seen = 0


@pytest.mark.parametrize("alone", [True, False])
def test_what_an_execution_moves_is_put_back_and_told(
    alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    play, counting = Play(), Counting()
    play.strategy.buffers = list
    made = trial(play, tops=[b"top"])
    made._held = [[], vars(counting), {}]

    def tried(level: int) -> tuple[str, frozenset[Any]]:
        counting.seen += 1
        return "", frozenset()

    monkeypatch.setattr(made, "_try", tried)
    monkeypatch.setattr(made, "_leaves_a_trace", lambda: counting.seen != 0)
    monkeypatch.setattr(made, "_different", set)
    monkeypatch.setattr(replica_children, "meet", lambda *args, **more: None)
    found = made.work() if alone else made.work_together(0, "here", 1.0, lambda said: said)

    assert (found["exact"], found["moved"]) == ([0], [1])
    assert counting.seen == 0
    made.learn(found["moved"])
    assert play.executor.moved == [vars(counting)], "once"


def test_the_item_of_an_iteration_is_no_data_that_a_rank_holds() -> None:
    """Those of two ranks always differ, and the next iteration has another one."""
    region = loop(live_in=frozenset({"mine", "batch"}), targets=frozenset({"batch"}))
    one = microbatch(region)
    one.places[0].top.names.update(mine=torch.zeros(9000), batch=torch.zeros(9000))

    assert [*bulk_of(one)] == ["mine#"]
