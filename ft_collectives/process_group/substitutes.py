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

SAMPLE = 4096
"""Bytes of a tensor that tell whether it has changed."""

OFTEN = 2
"""How often a root has to have said the same for it to be what it always says."""

_calls = threading.local()
"""A script's threads make calls of their own."""


def substitutes_of(ranks: Sequence[int], members: Sequence[int]) -> list[int]:
    """For every rank, the place of the member that speaks for it: itself, unless it is lost."""
    return [
        members.index(rank) if rank in members else virtual % len(members)
        for virtual, rank in enumerate(ranks)
    ]


class UsualValue:
    """What a root has said at a place so far, if that was always the same."""

    def __init__(self) -> None:
        self._said: Any = None
        self._times = 0

    def heard(self, words: Any) -> None:
        """The root said `words`; None for what is too large, or nothing that can be compared."""
        steady = words is not None and (not self._times or _alike(words, self._said))
        self._times = self._times + 1 if steady and self._times >= 0 else -1
        self._said = words if self._times > 0 else None

    @property
    def usual(self) -> Any:
        """What it always says; None if that is not known."""
        return self._said if self._times >= OFTEN else None


class CallSite:
    """A place in the script that broadcasts: who else knows what its root would say?

    All do who have always held there what the root then said, bit for bit (a check that replicas
    agree, state that each has for itself). What never changes proves nothing: it may be what all
    others hold until the root decides, as of a flag that ends training.
    """

    def __init__(self) -> None:
        self.done = False  # this rank has done for a lost root what it does before it speaks
        self.substitute: int | None = None  # the rank that spoke for a lost root
        self.usual_value = UsualValue()
        self._same = True  # so far
        self._moved = False
        self._last = b""

    def call(self, done: bool) -> None:
        """A call begins here."""
        self.done, self.substitute = done, None

    @property
    def known(self) -> bool:
        """Has this rank always held what the root said, and did that ever change?"""
        return self._same and self._moved

    def hear(self, held: torch.Tensor, said: torch.Tensor) -> None:
        """Where this rank `held` its own tensor, a root `said` another one, of the same shape."""
        small = said.numel() * said.element_size() <= SAMPLE
        self.usual_value.heard(said.detach().clone() if small else None)
        if not self._same:
            return
        words = _bits(said)
        self._same = torch.equal(_bits(held), words)
        first = bytes(words[:SAMPLE].tolist())
        self._moved |= bool(self._last) and first != self._last
        self._last = first

    def word(self) -> torch.Tensor:
        """What this rank knows of it, for the smallest of all ranks' words."""
        return torch.tensor([int(self.known), -int(self.done)])

    @staticmethod
    def tells(word: torch.Tensor) -> bool:
        """Do all know, or has anybody done what the root does?"""
        known, done = word.tolist()
        return bool(known or done)


class ObjectCallSite(CallSite):
    """The same of objects, which travel as sizes and contents, with nothing to compare them to."""

    @property
    def known(self) -> bool:
        return False

    def hear(self, held: torch.Tensor, said: torch.Tensor) -> None:
        """Neither is an object."""


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


@contextmanager
def requiring_roots(site: CallSite | None = None) -> Iterator[None]:
    """In here a broadcast whose root is lost raises PeerLost, unless somebody knows of `site`."""
    with _having("name_roots", True), _having("site", site):
        yield


def roots_are_required() -> bool:
    return bool(getattr(_calls, "name_roots", False))


def site_of_call() -> CallSite | None:
    site: CallSite | None = getattr(_calls, "site", None)
    return site


@contextmanager
def substituting_roots() -> Iterator[None]:
    """In here members have the same to say: the first live one speaks for a root that is lost."""
    with _having("for_roots", True):
        yield


def roots_are_substituted() -> bool:
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
