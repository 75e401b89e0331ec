"""A microbatch ends two ranks at most."""

from pathlib import Path

import pytest

from recoverrun.worker.context.context_buffer import ContextWriter
from recoverrun.worker.make_up.deadly_microbatches import DeadlyMicrobatches, which
from recoverrun.worker.step.failpoints import Failpoints
from rendezvous.protocol import shared_memory

STEP, IDENTITY = 5, (1, 0)
ONE = which(STEP, IDENTITY)


def test_after_one_death_it_is_executed_again() -> None:
    deaths = DeadlyMicrobatches()
    deaths.learn([(1, (*ONE, 0))])

    assert deaths.forbid(ONE) == ""


def test_after_two_deaths_in_it_it_is_not() -> None:
    deaths = DeadlyMicrobatches()
    deaths.learn([(1, (*ONE, 0)), (0, (*ONE, 0))])

    assert deaths.forbid(ONE) == "ranks 0 and 1 died in it"


def test_a_death_that_is_told_twice_is_one() -> None:
    deaths = DeadlyMicrobatches()
    deaths.learn([(1, (*ONE, 0))])
    deaths.learn([(1, (*ONE, 0))])

    assert deaths.forbid(ONE) == ""


@pytest.mark.parametrize("other", [which(STEP + 1, IDENTITY), which(STEP, (1, 1)), (0, STEP, 0)])
def test_deaths_in_others_do_not_count(other: tuple[int, int, int]) -> None:
    deaths = DeadlyMicrobatches()
    deaths.learn([(1, (*ONE, 0)), (0, (*other, 0))])

    assert deaths.forbid(ONE) == deaths.forbid(other) == ""


def test_one_who_gave_it_up_is_enough() -> None:
    deaths = DeadlyMicrobatches()
    deaths.learn([(0, (*ONE, 1))])

    assert deaths.forbid(ONE) == "rank 0 has given it up"


def test_who_gave_it_up_itself_knows_why() -> None:
    deaths = DeadlyMicrobatches()
    deaths.give_up(ONE, "it waits at train.py:7")

    assert deaths.forbid(ONE) == "it waits at train.py:7"


@pytest.mark.parametrize("doing", [(), (1, 5), (1, 5, 0, 1, 9)])
def test_what_has_another_form_is_ignored(doing: tuple[int, ...]) -> None:
    deaths = DeadlyMicrobatches()
    deaths.learn([(0, doing), (2, doing)])

    assert deaths.forbid(ONE) == ""


# ------------------------------------------------------------------------- what a rank leaves of it


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "remains")


def left(path: str, *, ended_by_us: bool = False) -> shared_memory.Doing:
    return shared_memory.read_doing(path, ended_by_us=ended_by_us)


def test_a_rank_leaves_the_microbatch_that_it_was_at(path: str) -> None:
    context_buffer = ContextWriter(path)
    assert left(path) == ()

    context_buffer.enters(ONE)
    context_buffer.mark(STEP, 0, (11, 12))

    assert left(path) == (*ONE, 0)
    assert shared_memory.parse_marks(shared_memory.read_marks(path)) == {(STEP, 0): (11, 12)}


def test_it_leaves_none_where_it_was_at_none(path: str) -> None:
    context_buffer = ContextWriter(path)
    context_buffer.enters(ONE)
    context_buffer.rests()

    assert left(path) == ()


def test_who_was_ended_with_its_replica_did_not_die_in_anything(path: str) -> None:
    ContextWriter(path).enters(ONE)

    assert left(path, ended_by_us=True) == ()


def test_what_was_given_up_is_told_until_the_next_begins(path: str) -> None:
    context_buffer = ContextWriter(path)
    context_buffer.enters(ONE)
    context_buffer.gives_up()
    context_buffer.rests()
    assert left(path, ended_by_us=True) == (*ONE, 1)

    context_buffer.enters((0, STEP + 1, 0))

    assert left(path) == (0, STEP + 1, 0, 0)


def test_it_is_kept_as_the_file_grows(path: str) -> None:
    writer = shared_memory.Writer(path)
    writer.do((*ONE, 0))
    writer.write(bytes(range(256)) * 1000)

    assert left(path) == (*ONE, 0)


def test_half_a_word_is_not_believed(path: str) -> None:
    writer = shared_memory.Writer(path)
    writer.do((*ONE, 0))
    content = bytearray(Path(path).read_bytes())
    content[-shared_memory.DOING.size] ^= 1
    Path(path).write_bytes(content)

    assert left(path) == ()


def test_nothing_is_read_where_there_is_no_file(path: str) -> None:
    assert left(path) == ()


def test_an_injected_kill_blames_no_microbatch(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    context_buffer = ContextWriter(path)
    failpoints = Failpoints("r1@step:5:redo", 1, context_buffer.rests)
    monkeypatch.setattr("recoverrun.worker.step.failpoints.end", lambda pid, number: None)
    context_buffer.enters(ONE)

    failpoints.strike(STEP, "redo")

    assert left(path) == ()
