"""Calls that would end the process or its groups, made by code executed for another rank."""

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch.distributed as dist

from recoverrun.worker.replay.exit_calls import TABLE, Interrupts, deadly, refused


class Refused(BaseException):
    pass


def _refuse(what: str, frame: FrameType) -> None:
    raise Refused(what)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("os._exit", lambda: os._exit(7)),
        ("os.abort", lambda: os.abort()),
        ("os.kill", lambda: os.kill(os.getpid(), signal.SIGSEGV)),
        ("os.kill", lambda: os.kill(0, signal.SIGKILL)),
        ("os.killpg", lambda: os.killpg(os.getpgrp(), signal.SIGTERM)),
        ("signal.raise_signal", lambda: signal.raise_signal(signal.SIGABRT)),
        (
            "signal.pthread_kill",
            lambda: signal.pthread_kill(threading.get_ident(), signal.SIGBUS),
        ),
        ("signal.setitimer", lambda: signal.setitimer(signal.ITIMER_VIRTUAL, seconds=60.0)),
        ("signal.setitimer", lambda: signal.setitimer(signal.ITIMER_PROF, 60.0)),
        (
            "resource.setrlimit",
            lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0)),
        ),
        ("os.execv", lambda: os.execvp(sys.executable, [sys.executable])),
        ("os.execve", lambda: os.execve(sys.executable, [sys.executable], {})),
        ("torch.distributed.destroy_process_group", lambda: dist.destroy_process_group()),
        ("torch.distributed.new_group", lambda: dist.new_group([0])),
    ],
)
def test_what_would_end_the_process_or_its_groups_is_refused(
    name: str, call: Callable[[], Any]
) -> None:
    with refused(_refuse, ()), pytest.raises(Refused, match=name):
        call()


def test_signals_that_end_nobody_are_the_scripts_own() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: came.append(number))
    try:
        with refused(_refuse, ()):
            os.kill(os.getpid(), signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGCHLD)
            os.kill(os.getpid(), 0)
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert came == [signal.SIGUSR1]
    assert deadly(signal.SIGKILL)


def test_timers_that_are_handled_or_stopped_and_limits_that_stay_are_the_scripts_own() -> None:
    timer, limits = signal.ITIMER_VIRTUAL, resource.getrlimit(resource.RLIMIT_NOFILE)
    before = signal.signal(signal.SIGVTALRM, lambda number, frame: None)
    try:
        with refused(_refuse, ()):
            signal.setitimer(timer, 60.0)
            assert signal.getitimer(timer)[0] > 0
            signal.setitimer(timer, 0.0)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    finally:
        signal.signal(signal.SIGVTALRM, before)
    with refused(_refuse, ()):
        signal.setitimer(timer, 0.0)

    assert signal.getitimer(timer) == (0.0, 0.0)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits


def test_another_process_may_be_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with child:
        with refused(_refuse, ()):
            os.kill(child.pid, signal.SIGKILL)
        assert child.wait(20) == -signal.SIGKILL


def test_a_forked_child_may_end_itself() -> None:
    with refused(_refuse, ()):
        child = os.fork()
        if not child:
            os._exit(3)
        _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 3


def test_other_threads_are_not_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    with refused(_refuse, ()):
        thread = threading.Thread(target=lambda: os._exit(4))
        thread.start()
        thread.join(20)

    assert ended == [4]


def test_all_is_put_back_and_copies_of_the_script_are_covered() -> None:
    before = [vars(module)[name] for module, name, *_ in TABLE]
    own = sys.modules[__name__]
    vars(own)["leave"] = os._exit
    try:
        with refused(_refuse, (__name__,)), pytest.raises(Refused):
            vars(own)["leave"](7)
        assert vars(own)["leave"] is os._exit
    finally:
        del vars(own)["leave"]

    assert [vars(module)[name] for module, name, *_ in TABLE] == before


def test_a_users_interruption_is_told_from_one_that_code_raises() -> None:
    interrupts = Interrupts()
    with pytest.raises(KeyboardInterrupt), interrupts.noted():
        raise KeyboardInterrupt
    assert not interrupts.came

    with pytest.raises(KeyboardInterrupt), interrupts.noted():
        os.kill(os.getpid(), signal.SIGINT)
        signal.sigtimedwait([], 5)  # the handler runs at the latest where a wait ends

    assert interrupts.came
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_code_may_not_interrupt_the_process_while_interruptions_are_noted() -> None:
    interrupts = Interrupts()
    with interrupts.noted(), refused(_refuse, ()), pytest.raises(Refused, match=r"os\.kill"):
        os.kill(os.getpid(), signal.SIGINT)

    assert not interrupts.came
