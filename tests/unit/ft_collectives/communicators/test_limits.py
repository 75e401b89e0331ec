"""Time limits of the script: how long we wait, what is raised then, and who hears of it."""

import threading
from datetime import timedelta
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from ft_collectives.communicators import limits
from ft_collectives.communicators.channel import Channel, Communicator, Pending
from ft_collectives.communicators.fabric import Fabric
from ft_collectives.communicators.limits import TimedOut, TimeLimits, is_time, limit_of
from ft_collectives.process_group.point_to_point import Message
from rendezvous.protocol.views import View

SHORT = timedelta(milliseconds=20)
GLOO = "[unbound_buffer.cc:81] Timed out waiting 5000ms for recv operation to complete"


def make(limit: timedelta, heard: list[str]) -> Fabric:
    return Fabric(
        rank=0, view=View(generation=1, live=(), live_ranks=(0, 1), losses=()),
        store=lambda generation: None, changed=threading.Condition(),
        limits=TimeLimits(lambda: limit, lambda generation, reason: heard.append(reason)),
        on_hint=lambda *_: None,
    )  # fmt: skip


class Never:
    """A future of an operation that nobody completes."""

    def done(self) -> bool:
        return False


class Gave:
    """A work that gloo gave up."""

    def wait(self) -> None:
        raise RuntimeError(GLOO)


def test_an_operation_that_nobody_joins_is_the_scripts_error_when_its_limit_is_over() -> None:
    heard: list[str] = []
    fabric = make(timedelta(hours=1), heard)
    channel = Channel(name="group 0", ranks=(0, 1), limit=lambda: SHORT, what="dist.all_reduce")

    with pytest.raises(dist.DistBackendError, match=r"rank 0\] dist.all_reduce timed out") as error:
        fabric.finish([Pending(future=Never(), channel=channel)], 1)

    assert heard == [str(error.value)]
    assert "waited 20 ms for one of ranks 1 " in heard[0]
    assert not fabric._bells


def test_a_limit_that_gloo_found_first_is_no_peers_fault() -> None:
    heard: list[str] = []
    fabric = make(SHORT, heard)
    done = Pending(work=Gave(), channel=Channel(name="vote", ranks=(0, 1)))

    with pytest.raises(TimedOut):
        fabric.finish([done], 1)

    assert len(heard) == 1


def test_a_meeting_to_which_nobody_comes_is_over_in_time() -> None:
    fabric = make(SHORT, [])

    with pytest.raises(TimedOut, match="vote timed out"):
        fabric.meet(Channel(name="vote", ranks=(0, 1)))


def test_who_waits_for_anothers_word_does_not_wait_longer() -> None:
    fabric = make(SHORT, [])

    with fabric.changed, pytest.raises(TimedOut, match="step 7 timed out"):
        fabric.waits.until_ready(fabric.changed, lambda: False, "step 7")


def test_a_message_has_the_limit_of_its_group_unless_the_script_names_another() -> None:
    message = Message("recv", [], 1, 0)
    message.within_s, message.overdue = 0.01, lambda: TimedOut("the group's")

    with pytest.raises(TimedOut, match="the group's"):
        message.wait()
    with pytest.raises(RuntimeError, match="within 0:00:00.020"):
        message.wait(SHORT)


def test_the_limit_is_what_the_script_has_set_last() -> None:
    backend = SimpleNamespace(options=SimpleNamespace(_timeout=timedelta(seconds=5)))
    group: Any = SimpleNamespace(_device_types=["cpu"], _get_backend=lambda device: backend)
    allowed = TimeLimits(lambda: limit_of(group))

    before = allowed.within_s()
    backend.options._timeout = timedelta(seconds=9)

    assert (before, allowed.within_s()) == (5, 9)
    assert allowed.longest > timedelta(seconds=9), "gloo is not to give up first"
    with allowed.lengthened(20):
        assert allowed.within_s(lambda: timedelta(seconds=1)) == 21
    assert allowed.within_s() == 9


def test_no_limit_and_an_endless_one_are_waits_that_a_thread_can_make() -> None:
    allowed = TimeLimits(lambda: timedelta(0))

    assert allowed.within_s() == limits.LONGEST_S
    assert allowed.within_s(lambda: timedelta.max) == limits.LONGEST_S
    bell: SimpleQueue[object] = SimpleQueue()
    bell.put(None)
    bell.get(timeout=allowed.within_s())  # OverflowError if it were too much


def test_what_gloo_says_of_time_is_told_from_what_it_says_of_an_end() -> None:
    assert is_time(GLOO)
    assert is_time("Application timeout caused pair closure")
    assert not is_time("[pair.cc:534] Connection closed by peer [127.0.0.1]:1234")


def test_a_communicator_of_this_generation_is_met_at_once() -> None:
    channel = Channel(name="vote", ranks=(0, 1), now=Communicator(generation=1, members=(0, 1)))

    assert make(SHORT, []).meet(channel).members == (0, 1)
