"""All members of a channel hear what each of them says, or that the generation is over."""

import threading
from typing import Any

import pytest
import torch

from ft_collectives.communicators.channel import Communicator
from ft_collectives.communicators.errors import Superseded
from ft_collectives.communicators.gather_objects import Words, gather

WITHIN_S = 20.0


class Group:
    """A stand-in for gloo, for members that are threads."""

    def __init__(self, members: int) -> None:
        self.barrier = threading.Barrier(members)
        self.said: dict[int, torch.Tensor] = {}

    def allgather(self, position: int, outs: list[torch.Tensor], mine: torch.Tensor) -> None:
        assert all(out.shape == mine.shape and out.dtype == mine.dtype for out in outs)
        self.said[position] = mine.clone()
        self.barrier.wait(WITHIN_S)
        for out, (_, one) in zip(outs, sorted(self.said.items()), strict=True):
            assert one.shape == out.shape, "all members give as much"
            out.copy_(one)
        self.barrier.wait(WITHIN_S)


class Fabric:
    """Of one member; the generation ends as its operation number `ends` begins."""

    def __init__(self, rank: int, members: tuple[int, ...], group: Any, ends: int = -1) -> None:
        self.now = Communicator(generation=2, members=members, group=group)
        self.rank = rank
        self.ends = ends
        self.launched = 0
        self.held: list[torch.Tensor] = []  # what a hanging operation may still write to
        self.memory = self  # it keeps that, too

    def meet(self, channel: Any) -> Communicator:
        return self.now

    def launch(self, channel: Any, generation: int, start: Any) -> str:
        assert generation == self.now.generation
        if self.launched == self.ends:
            raise Superseded
        self.launched += 1
        start(self)
        return "pending"

    def allgather(self, outs: list[list[torch.Tensor]], mine: list[torch.Tensor]) -> None:
        touched = {one.data_ptr() for one in (*outs[0], *mine)}
        assert touched <= {one.data_ptr() for one in self.held}, "gloo may outlive the wait"
        self.now.group.allgather(self.now.position(self.rank), outs[0], mine[0])

    def finish(self, pendings: list[str], generation: int) -> None:
        assert pendings == ["pending"]

    def hold(self, staged: list[torch.Tensor]) -> None:
        self.held += staged

    def release(self, staged: list[torch.Tensor]) -> None:
        self.held = [one for one in self.held if all(one is not other for other in staged)]


def together(*words: Words, members: tuple[int, ...]) -> dict[int, dict[int, Words]]:
    group = Group(len(members))
    heard: dict[int, dict[int, Words]] = {}

    def say(rank: int, mine: Words) -> None:
        fabric: Any = Fabric(rank, members, group)
        heard[rank] = gather(fabric, object(), 2, mine)  # type: ignore[arg-type]
        assert fabric.held == []

    threads = [
        threading.Thread(target=say, args=pair, daemon=True)
        for pair in zip(members, words, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WITHIN_S)
    return heard


def test_everybody_hears_everybody_by_rank() -> None:
    words: list[Words] = [{"n": 1}, {"text": "λ" * 5000, "bytes": b"\x00\xff"}, {}]

    heard = together(*words, members=(1, 4, 6))

    assert heard.keys() == {1, 4, 6}
    assert all(one == dict(zip((1, 4, 6), words, strict=True)) for one in heard.values())
    assert all(list(one) == [1, 4, 6] for one in heard.values())


@pytest.mark.parametrize(
    "word", [{}, {"a": [None, 1.5, [True]]}, {"x": b""}, {"long": "y" * 99_999}]
)
def test_who_is_alone_hears_itself(word: Words) -> None:
    fabric: Any = Fabric(3, (3,), None)

    assert gather(fabric, object(), 2, word) == {3: word}  # type: ignore[arg-type]
    assert fabric.launched == 0


def test_a_newer_generation_is_not_spoken_in() -> None:
    fabric: Any = Fabric(3, (3, 4), None)

    with pytest.raises(Superseded):
        gather(fabric, object(), 1, {})  # type: ignore[arg-type]
    assert fabric.launched == 0


@pytest.mark.parametrize("ends", [0, 1])
def test_a_generation_that_ends_in_between_ends_the_talk(ends: int) -> None:
    class Echo:
        def allgather(self, position: int, outs: list[torch.Tensor], mine: torch.Tensor) -> None:
            for out in outs:
                out.copy_(mine)

    fabric: Any = Fabric(3, (3, 4), Echo(), ends=ends)

    with pytest.raises(Superseded):
        gather(fabric, object(), 2, {"n": 1})  # type: ignore[arg-type]
    assert fabric.launched == ends
