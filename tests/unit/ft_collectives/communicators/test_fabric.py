"""Generations of a fabric without any network: what is looked at once, and what is agreed on."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch

from ft_collectives.communicators import fabric as fabric_module
from ft_collectives.communicators.channel import Channel, Communicator, Totals
from ft_collectives.communicators.errors import Superseded
from ft_collectives.communicators.fabric import Fabric
from ft_collectives.communicators.limits import TimeLimits
from ft_collectives.process_group.two_phase import Held, TwoPhaseOperations
from rendezvous.protocol.messages import View


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


# --------------------------------------------------------------------------- fabric


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
    monkeypatch.setattr(fabric_module, "HINT_AFTER_S", 0.0)
    hints = []

    def on_hint(generation: int, reason: str) -> None:
        hints.append((generation, reason))
        fixed(fabric, {2: "group"})
        fabric.change(view(2))

    def failing(channel: Channel, of: View) -> None:
        raise RuntimeError("connection refused\nand much more")

    fabric = make(on_hint=on_hint)
    fabric._connect = failing  # type: ignore[method-assign]

    assert fabric.ready(fabric.open("vote", (0, 1, 2))) == 2
    assert hints == [(1, "vote: connection refused")]


def test_what_is_buried_is_found_again_by_its_memory_not_by_its_list() -> None:
    fabric, tensor = make(), torch.ones(1)
    before = set(fabric_module._held_memory)

    fabric.hold([tensor])
    fabric.release([tensor])

    assert set(fabric_module._held_memory) == before


# --------------------------------------------------------------------------- transactions


def settled(held_in: int, *aligned: Totals) -> bool:
    operations = TwoPhaseOperations(make(), "world", (0, 1, 2), "native")
    held = Held(5, [], Communicator(held_in, (0, 1, 2), None))
    return operations._settled(held, Communicator(9, (0, 1), None, aligned))


@pytest.mark.parametrize(
    ("aligned", "expected"),
    [
        ([(4, 5, 1), (4, 5, 1)], True),  # all hold it
        ([(4, 5, 1), (5, 5, 0)], True),  # somebody has completed it, so all do
        ([(4, 5, 1), (5, 6, 2)], True),  # and is further
        ([(4, 5, 1), (4, 4, 0)], False),  # somebody does not hold it
        ([(4, 5, 1), (4, 5, 2)], False),  # held, but of other members
        ([], False),  # the first generation: nobody has met anew
    ],
)
def test_a_held_result_counts_if_it_is_everybody_s(aligned: list[Totals], expected: bool) -> None:
    assert settled(1, *aligned) == expected


def test_a_call_of_parts_is_made_again_if_a_loss_came_between_them() -> None:
    operations = TwoPhaseOperations(make(), "world", (0, 1, 2), "native")
    rounds = iter([[(0, 1, 2), (0, 1)], [(0, 1), (0, 1)]])
    calls = []

    def whole() -> str:
        calls.append(len(calls))
        assert operations._among is not None
        operations._among.update(next(rounds))
        if len(calls) == 1:
            raise EOFError("half a pickle")
        return "done"

    assert operations.call(whole) == "done"
    assert calls == [0, 1]


def test_an_error_among_the_same_members_is_the_script_s() -> None:
    operations = TwoPhaseOperations(make(), "world", (0, 1, 2), "native")

    def whole() -> None:
        raise EOFError("half a pickle")

    with pytest.raises(EOFError):
        operations.call(whole)
