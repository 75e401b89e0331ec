"""An exchange's talk with others: what it asks, what it is asked, and what has come of it.

What is complete waits in `complete`, until it is taken: a part of parity, a part that was rebuilt,
or which bays make up a stream.
"""

from collections import deque
from dataclasses import dataclass
from zlib import crc32

from rendezvous.protocol.exchange_messages import Bytes, Describe, Described, Rebuild, Request
from rendezvous.protocol.snapshot_messages import Circle
from rendezvous.snapshots import exchange_units
from rendezvous.snapshots.exchange_answers import Answers, of_bytes
from rendezvous.snapshots.exchange_questions import AGAIN_S, Question, Questions
from rendezvous.snapshots.exchange_work import (
    Ask,
    Decoding,
    Effect,
    Encoding,
    KeptSnapshot,
    NodeMemory,
    Restoring,
    Unit,
)
from rendezvous.snapshots.member_stream import Extents
from rendezvous.snapshots.parity_code import Part, Xor
from rendezvous.snapshots.parity_groups import ParityGroup


@dataclass(frozen=True, slots=True)
class Stream:
    """These bays make up the stream of a slot."""

    work: Encoding | Restoring
    slot: int
    bays: Extents


class Asking:
    def __init__(self, memory: NodeMemory, xor: Xor, part: int, *, authenticated: bool) -> None:
        """`authenticated`: no byte that comes was changed on its way."""
        self._authenticated = authenticated
        self._answers = Answers(memory, part)
        self._xor = xor
        self._part = part
        self.circle: Circle | None = None
        self.questions = Questions()
        self.effects: list[Effect] = []
        self.complete: deque[Unit | Stream] = deque()

    def begin(self, circle: Circle) -> None:
        """Begin with this circle: from now on this is where others are. Whoever had asked something
        asks again.
        """
        self.circle = circle
        self.questions.clear()

    # --------------------------------------------------------------------------- asking

    def describe(
        self,
        work: Encoding | Restoring,
        of: KeptSnapshot,
        group: ParityGroup,
        *,
        slot: int,
        node: int,
        now: float,
    ) -> None:
        """Ask a node which bays make up the stream of a slot."""
        first, many = group.members[slot]
        request = Describe(
            serial=0, attempt=of.attempt, step=of.step, world=of.world,
            first_rank=first, nproc=many,
        )  # fmt: skip
        self._put(self.questions.add(node, request, work, slot, 0), now)

    def fetch(self, unit: Unit, now: float) -> None:
        """Ask for all columns of a unit."""
        for want in unit.wants:
            asked = self.questions.add(want.node, want.request, unit, want.column, want.nbytes)
            self._put(asked, now)
        if not unit.wants:
            self.complete.append(unit)

    def again(self, now: float) -> None:
        """Ask again what has no answer."""
        for question in self.questions.due(now):
            self._put(question, now)

    def _put(self, question: Question, now: float) -> None:
        """Ask; what this node has itself is taken at once."""
        circle, request = self.circle, question.request
        question.asked(now)
        if circle is None or question.node != circle.node:
            self.effects.append(Ask(question.node, request))
        elif isinstance(request, Rebuild):
            self._decode(Decoding("", request.serial), request, now)
        else:
            found = self._answers.answer("", request)
            self._take(question, found.message, found.data, now)

    # --------------------------------------------------------------------------- answers

    def take(self, message: Described | Bytes, data: Part, now: float) -> None:
        """An answer, which may be to nothing that is asked any more."""
        question = self.questions.find(message.serial)
        if question is not None:
            self._take(question, message, data, now)

    def _take(self, question: Question, message: Described | Bytes, data: Part, now: float) -> None:
        work = question.of
        if isinstance(message, Described):
            if message.bays and not isinstance(work, Unit):
                self.questions.close(question)
                self.complete.append(Stream(work, question.column, message.bays))
                return
        elif message.there and len(data) == question.nbytes and self._came_whole(message, data):
            if isinstance(work, Unit):
                self.questions.close(question)
                work.columns[question.column] = data
                work.checks[question.column] = message.check
                if work.is_complete:
                    self._complete(work, now)
                return
        question.due = now + AGAIN_S

    def _came_whole(self, message: Bytes, data: Part) -> bool:
        return self._authenticated or crc32(data) == message.check

    def _complete(self, unit: Unit, now: float) -> None:
        work = unit.work
        if not isinstance(work, Decoding):
            self.complete.append(unit)
            return
        data = exchange_units.lost_part(unit, self._part, self._xor)
        if work.peer:
            self.effects.append(of_bytes(work.peer, work.serial, data))
        else:
            self.take(Bytes(serial=work.serial, there=True, check=crc32(data)), data, now)

    # --------------------------------------------------------------------------- being asked

    def answer(self, peer: str, request: Request, now: float) -> None:
        """Another exchange asks something."""
        if isinstance(request, Rebuild):
            self._decode(Decoding(peer, request.serial), request, now)
        else:
            self.effects.append(self._answers.answer(peer, request))

    def _decode(self, work: Decoding, request: Rebuild, now: float) -> None:
        """Ask for what is left of a stripe whose parity is here."""
        if self.questions.is_decoding(work.peer, work.serial):
            return
        unit = self._answers.lost_part(work, request, self.circle)
        if unit is not None:
            self.fetch(unit, now)
        elif work.peer:
            self.effects.append(of_bytes(work.peer, work.serial, None))
        elif (question := self.questions.find(work.serial)) is not None:
            question.due = now + AGAIN_S
