"""A child of ours asks its parent for what it needs."""

import os
import signal
import socket
import sys
import threading
from pathlib import Path

import pytest

from recoverrun.worker.verification import forked_child
from recoverrun.worker.verification.forked_child import Ask, ChildFailed, Plain, run_asking

pytestmark = [
    pytest.mark.usefixtures("streams_put_back"),
    pytest.mark.skipif(sys.platform != "linux", reason="/proc is read"),
]

WITHIN_S = 20.0
SOON_S = 0.3


def test_what_it_asks_for_is_given_to_it_by_its_parent() -> None:
    given = iter(range(7, 99))

    def work(ask: Ask) -> Plain:
        heard = [ask({"wanted": number}) for number in range(3)]
        return {"heard": heard, "child": os.getpid()}

    def answer(said: Plain) -> Plain:
        return {**said, "given": next(given), "parent": os.getpid()}

    found = run_asking(work, WITHIN_S, answer)

    here = {"parent": os.getpid()}
    assert found["heard"] == [{"wanted": n, "given": 7 + n, **here} for n in range(3)]
    assert (next(given), found["child"] != os.getpid()) == (10, True), "they moved here"


@pytest.mark.parametrize("size", [0, 1, 300_000])
def test_questions_and_answers_may_be_long(size: int) -> None:
    def work(ask: Ask) -> Plain:
        return ask({"key": b"k" * size})

    found = run_asking(work, WITHIN_S, lambda said: {"value": [*said.values(), "λ" * size]})

    assert found == {"value": [b"k" * size, "λ" * size]}


@pytest.mark.parametrize("error", [LookupError("superseded"), KeyboardInterrupt()])
def test_what_is_raised_instead_of_an_answer_comes_out_and_the_child_is_gone(
    error: BaseException,
) -> None:
    pids: list[int] = []

    def answer(said: Plain) -> Plain:
        pids.append(said["pid"])
        raise error

    with pytest.raises(type(error)):
        run_asking(lambda ask: ask({"pid": os.getpid()}), WITHIN_S, answer)

    (pid,) = pids
    assert not Path(f"/proc/{pid}").exists()


def test_where_nobody_answers_who_asks_fails() -> None:
    with pytest.raises(ChildFailed, match="asked for what nobody gives it"):
        run_asking(lambda ask: ask({}), WITHIN_S, forked_child._refusing)


def test_one_that_asks_for_ever_runs_into_the_bound() -> None:
    def work(ask: Ask) -> Plain:
        while True:
            ask({})

    with pytest.raises(ChildFailed, match="did not end within 0 s"):
        run_asking(work, SOON_S, lambda said: said)


def test_one_that_nobody_can_answer_any_more_is_told() -> None:
    ours, its = socket.socketpair()
    with ours, its:
        ours.shutdown(socket.SHUT_WR)

        with pytest.raises(EOFError, match="is gone"):
            forked_child._ask(its.fileno(), {})


def killed(said: Plain) -> Plain:
    """As it waits for an answer."""
    os.kill(said["pid"], signal.SIGKILL)
    os.waitid(os.P_PID, said["pid"], os.WEXITED | os.WNOWAIT)
    return {}


def unread(said: Plain) -> Plain:
    """It can be ended only once the answer lies there: it is stopped until then."""
    os.kill(said["pid"], signal.SIGSTOP)
    os.waitid(os.P_PID, said["pid"], os.WSTOPPED | os.WNOWAIT)
    threading.Timer(SOON_S, os.kill, (said["pid"], signal.SIGKILL)).start()
    return {}


@pytest.mark.parametrize("answer", [killed, unread])
def test_one_that_is_ended_as_it_is_answered_is_told(answer: Ask) -> None:
    """By the kernel, say, that is short of memory."""
    with pytest.raises(ChildFailed, match="was ended by it"):
        run_asking(lambda ask: ask({"pid": os.getpid()}), WITHIN_S, answer)
