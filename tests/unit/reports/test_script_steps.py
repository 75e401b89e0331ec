"""Steps that were done before a restart are known where the script's own count is."""

import pytest

from recoverrun.reports.script_steps import ScriptSteps
from rendezvous.journal.reader import Entry
from rendezvous.protocol.records import Json


def _entry(event: str, **fields: Json) -> Entry:
    return Entry(ts=0.0, mono=0.0, seq=0, node="n", event=event, reason="", fields=fields)


def _promise(step: int, steps: int) -> Entry:
    return _entry("promise.state", script_step=step, script_steps=steps)


def _attempt(
    book: ScriptSteps, attempt: int, numbers: range, promise: Entry | None, *, late: bool = False
) -> list[bool]:
    """Of each step whether it had been done before; the promise comes before them, or `late`."""
    if attempt:
        book.begin(attempt)
    if promise is not None and not late:
        book.hear(promise)
    found = []
    for number in numbers:
        book.commit(number)
        if promise is not None and late and number == numbers[0]:
            book.hear(promise)
        found.append(book.newest_again)
    return found


@pytest.mark.parametrize("late", [False, True])
def test_from_a_checkpoint_on_steps_are_done_again(late: bool) -> None:
    book = ScriptSteps()
    assert not any(_attempt(book, 0, range(30), _promise(0, 100), late=late))
    assert book.of == 100

    again = _attempt(book, 1, range(80), _promise(20, 80), late=late)

    assert again == [True] * 10 + [False] * 70
    assert (book.again, book.of) == (10, 80)


def test_steps_that_a_third_attempt_does_once_more_count_once_more() -> None:
    book = ScriptSteps()
    _attempt(book, 0, range(30), _promise(0, 100))
    _attempt(book, 1, range(5), _promise(20, 80))

    assert sum(_attempt(book, 2, range(80), _promise(20, 80))) == 10


def test_a_run_that_begins_late_in_its_script_has_done_nothing_before() -> None:
    book = ScriptSteps()

    assert not any(_attempt(book, 0, range(10), _promise(500, 100)))


def test_where_the_script_does_not_tell_nothing_was_done_before() -> None:
    book = ScriptSteps()
    assert book.of == -1
    assert not any(_attempt(book, 0, range(30), None))
    assert not any(_attempt(book, 1, range(30), None))

    assert not any(_attempt(book, 2, range(30), _promise(0, 30)))  # nothing to compare with


def test_an_attempt_that_went_back_begins_with_the_step_of_the_snapshot() -> None:
    book = ScriptSteps()
    _attempt(book, 0, range(30), None)
    book.hear(_entry("snapshot.plan", attempt=1, of=0, step=20, back=10))

    assert sum(_attempt(book, 1, range(40), None)) == 10
    assert (book.again, book.done) == (10, 60)

    book.hear(_entry("snapshot.plan", attempt=2, of=1, step=50, back=10))
    assert sum(_attempt(book, 2, range(20), None)) == 10
    assert (book.again, book.done) == (20, 70)


def test_snapshots_of_a_script_that_resumed_by_itself_count_from_there() -> None:
    book = ScriptSteps()
    _attempt(book, 0, range(30), _promise(500, 100))
    book.hear(_entry("snapshot.plan", attempt=1, of=0, step=20, back=10))

    _attempt(book, 1, range(2), _promise(520, 80))

    assert (book.again, book.done, book.of) == (2, 30, 80)


def test_a_run_that_begins_from_a_snapshot_of_a_former_one_has_done_nothing_before() -> None:
    book = ScriptSteps()
    book.hear(_entry("snapshot.plan", attempt=0, of=0, step=20))

    assert not any(_attempt(book, 0, range(10), None))
    assert book.done == 10


def test_a_promise_that_is_said_again_is_of_a_later_step() -> None:
    book = ScriptSteps()
    _attempt(book, 0, range(3), _promise(0, 100))

    book.hear(_promise(3, 97))

    assert book.of == 100
