"""The shared memory in which this rank leaves its contexts for those that would take over its
microbatches. A SIGKILL takes none of it.

| what is left | why |
|---|---|
| the context as the first microbatch of this transaction began | others begin there in our place |
| those as the iterations around it began | a microbatch may be executed from their tops |
| the context as the last microbatch of the transaction before ended | what lies between is known |
| the context as the first microbatch of that transaction began | it proves that we are followed |
| a mark of each microbatch (`evidence`) | a survivor's execution must have the same |
| the microbatches of this transaction that were begun | this rank may have died of one of them |
"""

from collections.abc import Sequence

import msgpack

from recoverrun.worker.context.evidence import Mark
from recoverrun.worker.context.slot_context import Context
from rendezvous.protocol.context_copies import unpacked
from rendezvous.protocol.shared_memory import BEGUNS, MOST_BYTES, Begun, Writer

Which = tuple[int, int, int]
"""Slot, transaction and index of a microbatch."""


class ContextWriter:
    """Writes to the file at `path`; "" if nothing is to be left. Raises OSError."""

    def __init__(self, path: str) -> None:
        self._writer = Writer(path) if path else None
        self._before = self._after = self._top = b""
        self._around: list[tuple[Context, bytes]] = []
        self._at: Which | None = None
        self._begun: list[Begun] = []  # in the present transaction

    def top(self, context: Context, around: Sequence[Context] = ()) -> None:
        """The first microbatch of a transaction begins, in iterations that began `around` it."""
        known = {id(one): packed for one, packed in self._around}
        self._around = [
            (one, known.get(id(one)) or one.pack()) for one in around if one is not context
        ]
        self._before, self._top = self._top, context.pack()
        self._write()

    def after(self, context: Context) -> None:
        """The last backward of a transaction has ended."""
        self._after = context.pack()
        self._write()

    def mark(self, step: int, index: int, mark: Mark) -> None:
        """Leave the mark of a microbatch of the script's own."""
        if self._writer is not None:
            self._writer.mark(step, index, *mark)

    def unmark(self, step: int) -> None:
        """Invalidate the marks of this transaction's microbatches."""
        if self._writer is not None:
            self._writer.unmark(step)

    def enters(self, which: Which) -> None:
        """Note that this rank computes that microbatch from now on, its own or a lost slot's."""
        self._at = which
        slot, step, index = which
        if self._begun and self._begun[0][1] != step:
            self._forget_all()
        if self._begun:
            *of, first, last, given_up = self._begun[-1]
            if of == [slot, step] and first <= index <= last + 1 and not given_up:
                self._leave(len(self._begun) - 1, (slot, step, first, max(last, index), 0))
                return
        self._leave(len(self._begun), (slot, step, index, index, 0))

    def rests(self) -> None:
        """No microbatch is under way that could be given up."""
        self._at = None

    def gives_up(self) -> None:
        """Have nobody else try the microbatch that this rank is at. From any thread."""
        at, self._at = self._at, None
        if at is not None:
            slot, step, index = at
            self._leave(len(self._begun), (slot, step, index, index, 1))

    def blames_none(self) -> None:
        """No microbatch is to blame for the end of this process; what was given up stays so."""
        for place, begun in enumerate(self._begun):
            if not begun[-1] and self._writer is not None:
                self._writer.begin(place % BEGUNS, None)

    def _leave(self, place: int, begun: Begun) -> None:
        self._begun[place:] = [begun]
        if self._writer is not None:
            self._writer.begin(place % BEGUNS, begun)

    def _forget_all(self) -> None:
        """Another transaction begins."""
        if self._writer is not None:
            for place in range(1, min(len(self._begun), BEGUNS)):
                self._writer.begin(place, None)
        self._begun.clear()

    def _write(self) -> None:
        if self._writer is None:
            return
        around = [packed for _, packed in self._around]
        left = [part for part in (self._before, *around, self._after, self._top) if part]
        while len(left) > 2 and sum(map(len, left)) > MOST_BYTES // 2:
            left.pop(0)
        self._writer.write(bytes(msgpack.packb(left, use_bin_type=True)))


def contexts_in(left: bytes) -> list[Context]:
    """The contexts of one payload, packed or not. What cannot be read is passed over."""
    found = []
    try:
        parts = msgpack.unpackb(unpacked(left), raw=False)
    except (ValueError, msgpack.UnpackException):
        return []
    for part in parts if isinstance(parts, list) else ():
        try:
            found.append(Context.unpack(part))
        except ValueError:
            continue
    return found
