"""A script's handler of SIGCHLD is called for its own children alone."""

import os
import resource
import signal
import threading
from collections.abc import Iterator

import pytest

from recoverrun.worker.verification.forked_child import ChildFailed, Plain, run, run_asking
from recoverrun.worker.verification.unheard_ends import unheard_ends

pytestmark = pytest.mark.usefixtures("streams_put_back")

WITHIN_S = 20.0


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """The signals of ended children for which the script's own handler was called."""
    numbers: list[int] = []
    former = signal.signal(signal.SIGCHLD, lambda number, _: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGCHLD, former)


def test_a_script_that_watches_its_children_is_not_told_of_its_end(heard: list[int]) -> None:
    assert run(lambda: {"answer": 1}, WITHIN_S) == {"answer": 1}
    with pytest.raises(ChildFailed):
        run(lambda: os._exit(1), WITHIN_S)

    assert heard == []


def test_one_that_had_ended_before_is_not_told_of_again(heard: list[int]) -> None:
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    told = len(heard)

    assert run(lambda: {"answer": 1}, WITHIN_S) == {"answer": 1}

    assert len(heard) == told
    os.waitpid(pid, 0)


def test_where_no_file_can_be_opened_that_is_no_error_of_its(heard: list[int]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with unheard_ends():
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert heard == []


def test_a_child_of_the_script_that_ends_meanwhile_is_told_of(heard: list[int]) -> None:
    waits, release = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(release)
        os.read(waits, 1)
        os._exit(3)
    os.close(waits)

    def end_it(_: Plain) -> Plain:
        os.close(release)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return {}

    assert run_asking(lambda ask: {"answer": ask({})}, WITHIN_S, end_it) == {"answer": {}}

    assert heard == [signal.SIGCHLD]
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3


def test_a_thread_beside_the_main_one_sets_no_handler(heard: list[int]) -> None:
    handler = signal.getsignal(signal.SIGCHLD)
    found = []

    def look() -> None:
        with unheard_ends():
            found.append(signal.getsignal(signal.SIGCHLD))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()

    assert found == [handler]
