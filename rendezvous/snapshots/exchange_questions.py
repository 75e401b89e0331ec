"""The open questions of an exchange, and when they are asked again."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rendezvous.protocol.exchange_messages import Request
from rendezvous.snapshots.exchange_work import Decoding, Encoding, Restoring, Unit

RETRY_S, RETRY_MOST_S = 2.0, 8.0
"""After that what has no answer is asked again; each time later, as a wire may be slow."""

AGAIN_S = 0.1
"""After that what was not there is asked for again."""


@dataclass(slots=True, eq=False)
class Question:
    node: int
    request: Request
    of: Unit | Encoding | Restoring
    column: int  # of a unit; the slot whose bays are asked for
    nbytes: int  # that must come
    due: float = 0.0  # when it is asked again
    times: int = 0  # that it was asked

    def asked(self, now: float) -> None:
        self.due = now + min(RETRY_MOST_S, RETRY_S * 2**self.times)
        self.times = min(self.times + 1, 2)

    def is_for(self, work: Encoding | Restoring | Decoding) -> bool:
        return self.of is work or (isinstance(self.of, Unit) and self.of.work is work)


class Questions:
    """The questions by serial. No two have the same."""

    def __init__(self) -> None:
        self._serials = itertools.count(1)
        self._open: dict[int, Question] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(
        self, node: int, request: Request, of: Unit | Encoding | Restoring, column: int, nbytes: int
    ) -> Question:
        """One more, with a serial of its own."""
        serial = next(self._serials)
        question = Question(node, replace(request, serial=serial), of, column, nbytes)
        self._open[serial] = question
        return question

    def find(self, serial: int) -> Question | None:
        return self._open.get(serial)

    def close(self, question: Question) -> None:
        """Close a question that is answered."""
        del self._open[question.request.serial]

    def forget(self, work: Encoding | Restoring) -> None:
        """Nothing is asked for it any more."""
        self._open = {n: one for n, one in self._open.items() if not one.is_for(work)}

    def clear(self) -> None:
        self._open.clear()

    def is_decoding(self, peer: str, serial: int) -> bool:
        """True if this request of a peer is being worked on."""
        return any(
            isinstance(one.of, Unit)
            and isinstance(one.of.work, Decoding)
            and (one.of.work.peer, one.of.work.serial) == (peer, serial)
            for one in self._open.values()
        )

    def due(self, now: float) -> Iterator[Question]:
        """Those that are to be asked again, as long as they are open."""
        for serial, question in list(self._open.items()):
            if question.due <= now and serial in self._open:
                yield question

    def hasten(self, node: int, now: float) -> None:
        """Ask again: what this node was asked was lost."""
        for question in self._open.values():
            if question.node == node:
                question.due, question.times = now, 0

    def deadline(self) -> float | None:
        """The time at which one is next due, or None."""
        return min((one.due for one in self._open.values()), default=None)
