"""A microbatch ends two ranks at most."""

from pathlib import Path

import pytest

from recoverrun.worker.context.context_buffer import ContextWriter, Which
from recoverrun.worker.make_up.deadly_microbatches import DeadlyMicrobatches, microbatch_id_of
from recoverrun.worker.step.failpoints import Failpoints
from rendezvous.protocol import shared_memory
from rendezvous.protocol.shared_memory import Begun

STEP, IDENTITY = 5, (1, 0)
ONE = microbatch_id_of(STEP, IDENTITY)


def begun(which: Which, *, last: int | None = None, given_up: int = 0) -> Begun:
    slot, step, index = which
    return slot, step, index, index if last is None else last, given_up


def test_after_one_death_it_is_executed_again() -> None:
    deaths = DeadlyMicrobatches()
    deaths.learn([(1, (begun(ONE),))])

    assert deaths.objection(ONE) == ""


def test_after_two_deaths_in_it_it_is_not() -> None:
    deaths = DeadlyMicrobatches()
    deaths.learn([(1, (begun(ONE),)), (0, (begun(ONE),))])

    assert deaths.objection(ONE) == "ranks 0 and 1 died in it, or later in the same step"


def test_a_death_after_it_in_the_same_step_counts() -> None:
    """Rank 1 had gone on to its third microbatch, and rank 0, which made all up, to the last."""
    deaths = DeadlyMicrobatches()
    deaths.learn([(1, (begun((1, STEP, 0), last=2),))])
    deaths.learn([(0, (begun((0, STEP, 0), last=3), begun((1, STEP, 0), last=3)))])

    assert [bool(deaths.objection((1, STEP, index))) for index in range(4)] == [True] * 3 + [False]
    assert deaths.objection((0, STEP, 0)) == ""


def test_a_death_that_is_told_twice_is_one() -> None:
    deaths = DeadlyMicrobatches()
    deaths.learn([(1, (begun(ONE),))])
    deaths.learn([(1, (begun(ONE),))])

    assert deaths.objection(ONE) == ""


@pytest.mark.parametrize(
    "other", [microbatch_id_of(STEP + 1, IDENTITY), microbatch_id_of(STEP, (1, 1)), (0, STEP, 0)]
)
def test_deaths_in_others_do_not_count(other: tuple[int, int, int]) -> None:
    deaths = DeadlyMicrobatches()
    deaths.learn([(1, (begun(ONE),)), (0, (begun(other),))])

    assert deaths.objection(ONE) == deaths.objection(other) == ""


def test_one_who_gave_it_up_is_enough() -> None:
    deaths = DeadlyMicrobatches()
    deaths.learn([(0, (begun(ONE, given_up=1),))])

    assert deaths.objection(ONE) == "rank 0 has given it up"


def test_who_gave_it_up_itself_knows_why() -> None:
    deaths = DeadlyMicrobatches()
    deaths.give_up(ONE, "it waits at train.py:7")

    assert deaths.objection(ONE) == "it waits at train.py:7"


# ------------------------------------------------------------------------- what a rank leaves of it


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "remains")


def left(path: str, *, ended_by_us: bool = False) -> tuple[Begun, ...]:
    return shared_memory.read_begun(path, ended_by_us=ended_by_us)


def test_a_rank_leaves_the_microbatch_that_it_was_at(path: str) -> None:
    context_buffer = ContextWriter(path)
    assert left(path) == ()

    context_buffer.enters(ONE)
    context_buffer.mark(STEP, 0, (11, 12))

    assert left(path) == (begun(ONE),)
    assert shared_memory.parse_marks(shared_memory.read_marks(path)) == {(STEP, 0): (11, 12)}


def test_it_leaves_all_that_it_had_begun_in_the_step(path: str) -> None:
    """Its own ones, and those of lost slots, in stretches."""
    context_buffer = ContextWriter(path)
    context_buffer.enters((2, STEP - 1, 0))
    for index in range(3):
        context_buffer.enters((2, STEP, index))
    for slot, index in ((1, 0), (1, 1), (0, 1), (1, 1)):
        context_buffer.enters((slot, STEP, index))
        context_buffer.rests()

    assert left(path) == (
        begun((2, STEP, 0), last=2),
        begun((1, STEP, 0), last=1),
        begun((0, STEP, 1)),
        begun((1, STEP, 1)),
    )


def test_another_step_begins_with_nothing(path: str) -> None:
    context_buffer = ContextWriter(path)
    for slot in range(3):
        context_buffer.enters((slot, STEP, 0))
    context_buffer.enters((2, STEP + 1, 0))

    assert left(path) == (begun((2, STEP + 1, 0)),)


def test_the_latest_stretches_are_kept(path: str) -> None:
    context_buffer = ContextWriter(path)
    for slot in range(2 * shared_memory.BEGUNS):
        context_buffer.enters((slot, STEP, 0))

    kept = {slot for slot, *_ in left(path)}
    assert kept == set(range(shared_memory.BEGUNS, 2 * shared_memory.BEGUNS))
    context_buffer.enters((2, STEP + 1, 0))
    assert left(path) == (begun((2, STEP + 1, 0)),)


def test_who_was_ended_with_its_replica_did_not_die_in_anything(path: str) -> None:
    ContextWriter(path).enters(ONE)

    assert left(path, ended_by_us=True) == ()


def test_what_was_given_up_is_told_until_the_next_step_begins(path: str) -> None:
    context_buffer = ContextWriter(path)
    context_buffer.enters(ONE)
    context_buffer.gives_up()
    context_buffer.rests()
    context_buffer.enters((1, STEP, 1))
    assert left(path, ended_by_us=True) == (begun(ONE, given_up=1),)

    context_buffer.enters((0, STEP + 1, 0))

    assert left(path) == (begun((0, STEP + 1, 0)),)


def test_it_is_kept_as_the_file_grows(path: str) -> None:
    writer = shared_memory.Writer(path)
    writer.begin(3, begun(ONE))
    writer.write(bytes(range(256)) * 1000)

    assert left(path) == (begun(ONE),)


def test_half_a_word_is_not_believed(path: str) -> None:
    writer = shared_memory.Writer(path)
    writer.begin(0, begun(ONE))
    content = bytearray(Path(path).read_bytes())
    content[-shared_memory.BEGUNS * shared_memory.BEGUN.size] ^= 1
    Path(path).write_bytes(content)

    assert left(path) == ()


def test_nothing_is_read_where_there_is_no_file(path: str) -> None:
    assert left(path) == ()


def test_an_injected_kill_blames_no_microbatch(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    context_buffer = ContextWriter(path)
    failpoints = Failpoints("r1@step:5:redo", 1, context_buffer.blames_none)
    monkeypatch.setattr("recoverrun.worker.step.failpoints.end", lambda pid, number: None)
    context_buffer.enters((1, STEP, 1))
    context_buffer.gives_up()
    context_buffer.enters(ONE)

    failpoints.strike(STEP, "redo")

    assert left(path) == (begun((1, STEP, 1), given_up=1),)
