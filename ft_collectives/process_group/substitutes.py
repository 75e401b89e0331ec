"""The substitute of a lost member of a group, in the call that this thread is making.

By default a substitute does: a survivor whose own value fills the place of the lost rank. The
context managers here change that for one call of the script, on the thread that makes it.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ft_collectives.communicators.tensor_bits import bits_of

Answer = Callable[[int], torch.Tensor | None]
"""Returns what a lost rank (global) would have given to a gather; None if that is not known."""

SAMPLE = 4096
"""Bytes at the beginning of a tensor by which a change of it is noticed."""

OFTEN = 2
"""A root has a usual value once it has sent the same one this many times."""

_calls = threading.local()
"""What holds for the call of each thread: a script's threads make calls of their own."""


def substitutes_of(ranks: Sequence[int], members: Sequence[int]) -> list[int]:
    """Return, for every rank, the place among `members` of the one that answers for it.

    That is the rank itself, unless it is lost; then it is the member at (place modulo number of
    members), which is the same on all survivors.
    """
    return [
        members.index(rank) if rank in members else virtual % len(members)
        for virtual, rank in enumerate(ranks)
    ]


class UsualValue:
    """The value that a root has always sent from one place in the script."""

    def __init__(self) -> None:
        self._said: Any = None
        self._times = 0

    def heard(self, words: Any) -> None:
        """The root sent `words`; None stands for what is too large, or cannot be compared."""
        steady = words is not None and (not self._times or _alike(words, self._said))
        self._times = self._times + 1 if steady and self._times >= 0 else -1
        self._said = words if self._times > 0 else None

    @property
    def usual(self) -> Any:
        """The value that the root always sends; None if it varies or was sent too seldom."""
        return self._said if self._times >= OFTEN else None

    def memory(self) -> tuple[Any, int]:
        """The last value, and how many times it was sent."""
        return self._said, self._times

    def remember(self, said: Any, times: int) -> None:
        """Go on with what another rank has heard."""
        self._said, self._times = said, times


class CallSite:
    """A place in the script that broadcasts a tensor, and who knows what its root would send.

    A rank knows it if it has always held, bit for bit, what the root then sent (a check that
    replicas agree, state that each computes for itself), and that value has changed at least once.
    A value that never changes proves nothing: all others may hold it until the root decides, like
    the zero of a flag that ends training.
    """

    def __init__(self) -> None:
        self.done = False  # this rank has executed what a lost root executes before it sends
        self.substitute: int | None = None  # the rank (global) that answered for a lost root
        self.usual_value = UsualValue()
        self._same = True  # so far
        self._moved = False
        self._last = b""
        self._spoke = False  # this rank itself has been the root

    def call(self, done: bool) -> None:
        """A call begins here."""
        self.done, self.substitute = done, None

    @property
    def known(self) -> bool:
        """True if this rank has always held what the root sent, and that has changed."""
        return self._same and self._moved

    def memory(self) -> list[Any]:
        """The memory of this place for another rank. A root has compared nothing."""
        compared = (True, False, b"") if self._spoke else (self._same, self._moved, self._last)
        return [*self.usual_value.memory(), *compared]

    def remember(self, said: Any, times: int, same: bool, moved: bool, last: bytes) -> None:
        """Go on with the memory of another rank."""
        self.usual_value.remember(said, times)
        self._same, self._moved, self._last = same, moved, last

    def speak(self, said: torch.Tensor) -> None:
        """This rank is the root, and has sent `said`."""
        self._spoke = True
        self.usual_value.heard(_small(said))

    def hear(self, held: torch.Tensor, said: torch.Tensor) -> None:
        """A live root has sent `said`, where this rank `held` a tensor of the same shape."""
        self.usual_value.heard(_small(said))
        if not self._same:
            return
        words = _bits(said)
        self._same = torch.equal(_bits(held), words)
        first = bytes(words[:SAMPLE].tolist())
        self._moved |= bool(self._last) and first != self._last
        self._last = first

    def word(self) -> torch.Tensor:
        """Return two integers, for an all-reduce with MIN: `known`, and minus `done`."""
        return torch.tensor([int(self.known), -int(self.done)])

    @staticmethod
    def tells(word: torch.Tensor) -> bool:
        """True if all ranks know what the root would send, or one has executed what the root does.

        `word` is the minimum of all ranks' words.
        """
        known, done = word.tolist()
        return bool(known or done)


class ObjectCallSite(CallSite):
    """A place that broadcasts objects: other ranks hold nothing to compare them with."""

    @property
    def known(self) -> bool:
        return False

    def hear(self, held: torch.Tensor, said: torch.Tensor) -> None:
        """Ignored: what travels are sizes and pickled contents."""

    def speak(self, said: torch.Tensor) -> None:
        """Ignored as well."""


def _small(said: torch.Tensor) -> torch.Tensor | None:
    small = said.numel() * said.element_size() <= SAMPLE
    return said.detach().clone() if small else None


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        alike = isinstance(other, torch.Tensor) and one.dtype == other.dtype
        return alike and torch.equal(one.cpu(), other.cpu())
    return type(one) is type(other) and bool(one == other)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return bits_of(tensor.detach().cpu())


@contextmanager
def requiring_roots(site: CallSite | None = None) -> Iterator[None]:
    """Raise PeerLost for a broadcast from a lost root, unless a rank knows its value (`site`).

    Without this, the root's substitute answers.
    """
    with _having("name_roots", True), _having("site", site):
        yield


def roots_are_required() -> bool:
    """True if the call is within `requiring_roots`."""
    return bool(getattr(_calls, "name_roots", False))


def site_of_call() -> CallSite | None:
    site: CallSite | None = getattr(_calls, "site", None)
    return site


@contextmanager
def substituting_roots() -> Iterator[None]:
    """Have a substitute answer for a lost root: all members would send the same."""
    with _having("for_roots", True):
        yield


def roots_are_substituted() -> bool:
    """True if the call is within `substituting_roots`."""
    return bool(getattr(_calls, "for_roots", False))


@contextmanager
def answering(answer: Answer) -> Iterator[None]:
    """Ask `answer` first what a lost rank would have given to a gather."""
    with _having("answer", answer):
        yield


def answered() -> bool:
    """True if the call is within `answering`."""
    return getattr(_calls, "answer", None) is not None


def answer_of(rank: int) -> torch.Tensor | None:
    """Return what lost `rank` (global) would have given; None if that is not known."""
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
