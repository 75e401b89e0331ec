"""Generators, iterators and files have come as far in a process that goes back."""

import io
import itertools
import queue
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from recoverrun.worker.arrival.iterator_places import HeldIterator, items_given
from recoverrun.worker.context.object_graph import Holdings, holdings
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.instrumentation import Loop
from recoverrun.worker.snapshots import moved_sources
from recoverrun.worker.snapshots.queue_takes import QUEUES
from recoverrun.worker.tracking.microbatches import LoopFrame

NOTHING = frozenset[str]()


def loop(*, assigned: str = "", read: str = "", over: Any = None) -> LoopFrame:
    header = SimpleNamespace(
        assigned=frozenset(assigned.split()), targets=NOTHING, live_in=frozenset(read.split())
    )
    return LoopFrame(cast(Loop, header), 1, over=over)


def there(source: Any) -> Holdings:
    return holdings([{"schedule": {"a": source}}], NOTHING)


def hold(told: HeldIterator, present: Any, visible: object) -> Any:
    while items_given(present) != told.given:
        next(present)
    return present


def moved(make: Callable[[], Any], move: Callable[[Any], Any]) -> tuple[Any, Any]:
    """One that has moved, and one of a process that goes back to where it stands."""
    first, second = make(), make()
    before = moved_sources.marks(there(first))
    move(first)
    told = moved_sources.told(there(first), before, [loop()], [], NOTHING)
    moved_sources.put(told, there(second), hold)
    return first, second


RATES = [0.1, 0.2, 0.3]


@pytest.mark.parametrize(
    "make",
    [
        lambda: iter(RATES),
        lambda: itertools.count(3),
        lambda: itertools.count(3, 2),
        lambda: itertools.cycle(RATES),
        lambda: enumerate(zip(iter(RATES), itertools.count())),
        lambda: itertools.chain(iter(RATES), range(9)),
        lambda: iter(range(1, 8)),
    ],
    ids=["list", "count", "strided", "cycle", "nested", "chain", "range"],
)
@pytest.mark.parametrize("times", [0, 1, 2])
def test_an_iterator_goes_on_where_it_was(make: Callable[[], Any], times: int) -> None:
    first, second = moved(make, lambda one: [next(one) for _ in range(times)])

    assert next(first) == next(second)


def test_a_cycle_that_has_begun_again_goes_on_where_it_was() -> None:
    first, second = moved(lambda: itertools.cycle(RATES), lambda one: [next(one) for _ in range(8)])

    assert [next(first) for _ in RATES] == [next(second) for _ in RATES]


def test_a_file_is_read_on_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "rates").write_text("1\n2\n3\n")

    first, second = moved(lambda: open(tmp_path / "rates"), lambda one: one.readline())

    assert first.readline() == second.readline() == "2\n"
    first.close()
    second.close()


def test_a_file_in_memory_is_what_it_was() -> None:
    first, second = moved(io.StringIO, lambda one: one.write("since") and one.seek(2))

    assert (second.getvalue(), second.tell()) == (first.getvalue(), first.tell()) == ("since", 2)


def test_a_log_is_left_alone(tmp_path: Path) -> None:
    with open(tmp_path / "log", "a") as log:
        before = moved_sources.marks(there(log))
        log.write("line\n")

        assert not moved_sources.told(there(log), before, [loop()], [], NOTHING)


def test_what_is_at_its_end_is_ended_in_the_other_process_too() -> None:
    first, second = moved(lambda: (one for one in RATES), list)

    assert list(first) == list(second) == []


def drained(one: queue.Queue[int]) -> None:
    one.put(1)
    one.get()


def begun(one: Any) -> None:
    next(one)


@pytest.mark.parametrize(
    ("make", "move", "words"),
    [
        (queue.Queue, drained, r"schedule.a, a Queue, has come"),
        (lambda: (one for one in RATES), begun, r"schedule.a, a generator, has come"),
        (lambda: map(abs, itertools.cycle(RATES)), begun, r"schedule.a, a map, has come"),
        (queue.SimpleQueue, lambda one: None, r"schedule.a, a SimpleQueue, has come"),
    ],
    ids=["queue", "generator", "map", "unknown"],
)
def test_what_cannot_be_moved_is_told_once_it_has_moved(
    make: Callable[[], Any], move: Callable[[Any], None], words: str
) -> None:
    QUEUES.watch()
    source = make()
    before = moved_sources.marks(there(source))
    move(source)

    with pytest.raises(NotReachable, match=words):
        moved_sources.told(there(source), before, [loop()], [], NOTHING)


def test_a_queue_into_which_the_script_only_puts_something_may_stay() -> None:
    QUEUES.watch()
    jobs: queue.Queue[int] = queue.Queue()
    before = moved_sources.marks(there(jobs))
    reader = threading.Thread(target=jobs.get)
    reader.start()
    jobs.put(1)
    reader.join()

    assert not moved_sources.told(there(jobs), before, [loop()], [], NOTHING)


def test_what_a_loop_goes_over_is_not_told() -> None:
    rates = iter(RATES)
    over = zip(rates, itertools.count(), strict=False)
    before = moved_sources.marks(there(rates))
    next(over)

    assert not moved_sources.told(there(rates), before, [loop(over=over)], [], NOTHING)


def test_what_a_loop_makes_before_it_reads_it_is_not_told() -> None:
    held = holdings([{"rows": iter(RATES)}], NOTHING)

    assert not moved_sources.told(held, {}, [loop(assigned="rows")], [], NOTHING)
    with pytest.raises(NotReachable, match="rows"):
        moved_sources.told(held, {}, [loop(assigned="rows", read="rows")], [], NOTHING)


def test_what_the_other_process_does_not_have_is_missed() -> None:
    with pytest.raises(NotReachable, match="schedule.b, which has moved since the run began"):
        moved_sources.put([["schedule.b", 0, "stepped", 1]], there(iter(RATES)), hold)


def test_the_output_of_another_program_cannot_be_read_again() -> None:
    with subprocess.Popen(["echo", "1"], stdout=subprocess.PIPE) as program:
        held = holdings([{"program": program}], NOTHING)

        with pytest.raises(NotReachable, match="program.stdout, a BufferedReader, has come"):
            moved_sources.told(held, moved_sources.marks(held), [loop()], [], NOTHING)
