"""Generations of a fabric without any network: what is looked at once, and what is agreed on."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch

from ft_collectives.communicators import fabric as fabric_module
from ft_collectives.communicators import left_memory
from ft_collectives.communicators.channel import Channel, Communicator
from ft_collectives.communicators.errors import Superseded
from ft_collectives.communicators.fabric import Fabric
from ft_collectives.communicators.limits import TimeLimits
from rendezvous.protocol.views import View


def view(generation: int, ranks: tuple[int, ...] = (0, 1, 2)) -> View:
    return View(generation=generation, live=(), live_ranks=ranks, losses=())


def make(generation: int = 1, on_hint: Callable[[int, str], None] = lambda *_: None) -> Fabric:
    return Fabric(
        rank=0, view=view(generation), store=lambda generation: None,
        changed=threading.Condition(), on_hint=on_hint,
        limits=TimeLimits(lambda: timedelta(seconds=5)),
    )  # fmt: skip


def fixed(fabric: Fabric, groups: dict[int, Any]) -> None:
    """Connecting gives the group of the generation."""

    def connect(channel: Channel, of: View) -> None:
        with fabric.changed:
            if of.generation == fabric.view.generation:
                channel.now = Communicator(of.generation, of.live_ranks, groups[of.generation])
                fabric.changed.notify_all()

    fabric._connect = connect  # type: ignore[method-assign]


def met_anew_at_a_hint(monkeypatch: pytest.MonkeyPatch) -> tuple[Fabric, list[tuple[int, str]]]:
    """A fabric whose members meet again as soon as it asks for that, and what it then says."""
    monkeypatch.setattr(fabric_module, "HINT_AFTER_S", 0.0)
    hints: list[tuple[int, str]] = []

    def on_hint(generation: int, reason: str) -> None:
        hints.append((generation, reason))
        fixed(fabric, {2: "group"})
        fabric.change(view(2))

    fabric = make(on_hint=on_hint)
    return fabric, hints


def test_an_operation_never_begins_on_the_group_of_a_newer_generation() -> None:
    """The view changes after the generation was checked, before gloo is asked."""
    fabric = make()
    fixed(fabric, {2: "new"})
    channel = fabric.adopt("world", (0, 1, 2), "old")
    seen = []

    def start(now: Communicator) -> list[Any]:
        fabric.change(view(2, (0, 1)))
        fabric.ready(channel)
        seen.append((now.group, now.members))
        return []

    fabric.begin(channel, 1, start)

    assert seen == [("old", (0, 1, 2))]
    with pytest.raises(Superseded):
        fabric.begin(channel, 1, start)


def test_a_native_group_is_adopted_in_the_first_generation_only() -> None:
    fabric = make(generation=2)
    fixed(fabric, {2: "rebuilt"})

    channel = fabric.adopt("world", (0, 1, 2), "native")
    fabric.ready(channel)

    assert channel.group == "rebuilt"


def test_an_older_view_changes_nothing() -> None:
    fabric = make(generation=3)

    fabric.change(view(2))

    assert fabric.view.generation == 3


def test_a_builder_that_fails_asks_for_a_new_meeting(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(channel: Channel, of: View) -> None:
        raise RuntimeError("connection refused\nand much more")

    fabric, hints = met_anew_at_a_hint(monkeypatch)
    fabric._connect = failing  # type: ignore[method-assign]

    assert fabric.ready(fabric.open("vote", (0, 1, 2))) == 2
    assert hints == [(1, "vote: connection refused")]


def test_memory_that_is_held_is_found_again_by_itself_not_by_its_list() -> None:
    fabric, tensor = make(), torch.ones(1)
    before = set(left_memory._held)

    fabric.memory.hold([tensor])
    fabric.memory.release([tensor])

    assert set(left_memory._held) == before


def test_where_the_system_gives_no_thread_a_new_meeting_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    fabric, hints = met_anew_at_a_hint(monkeypatch)
    with monkeypatch.context() as there:
        there.setattr(threading.Thread, "start", refuse)
        channel = fabric.open("vote", (0, 1, 2))

    assert fabric.ready(channel) == 2
    assert hints == [(1, "vote: can't start new thread")]
