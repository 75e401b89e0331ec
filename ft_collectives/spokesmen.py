"""Who speaks for a lost member of a group, in the call that this thread is making.

Without a word of ours a stand-in does: a survivor whose value fills the lost one's place.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

Answer = Callable[[int], torch.Tensor | None]
"""What a lost rank would have given to a gather; None if that is not known."""

_calls = threading.local()
"""A script's threads make calls of their own."""


def stand_ins(ranks: Sequence[int], members: Sequence[int]) -> list[int]:
    """For every rank, the place of the member that speaks for it: itself, unless it is lost."""
    return [
        members.index(rank) if rank in members else virtual % len(members)
        for virtual, rank in enumerate(ranks)
    ]


@contextmanager
def naming_roots() -> Iterator[None]:
    """In here a broadcast whose root is lost raises PeerLost: only the root knows what to say."""
    with _having("name_roots", True):
        yield


def roots_are_named() -> bool:
    return bool(getattr(_calls, "name_roots", False))


@contextmanager
def speaking_for_roots() -> Iterator[None]:
    """In here members have the same to say: the first live one speaks for a root that is lost."""
    with _having("for_roots", True):
        yield


def roots_are_spoken_for() -> bool:
    return bool(getattr(_calls, "for_roots", False))


@contextmanager
def answering(answer: Answer) -> Iterator[None]:
    """In here what `answer` knows takes the place of a stand-in's value in gathers."""
    with _having("answer", answer):
        yield


def answered() -> bool:
    """Does this call have somebody who knows what lost members would have given?"""
    return getattr(_calls, "answer", None) is not None


def answer_of(rank: int) -> torch.Tensor | None:
    answer: Answer | None = getattr(_calls, "answer", None)
    return None if answer is None else answer(rank)


@contextmanager
def _having(name: str, value: Any) -> Iterator[None]:
    before = getattr(_calls, name, None)
    setattr(_calls, name, value)
    try:
        yield
    finally:
        setattr(_calls, name, before)
