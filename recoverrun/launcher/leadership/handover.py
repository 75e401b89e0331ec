"""The statements of the members of a new configuration to its leader, until that can coordinate.

Each member says what it remembers as a statement, in parts of a bounded size, and says it again
until the leader speaks. What is said to the coordinator meanwhile is kept for it.
"""

from collections.abc import Callable, Iterable, Sequence

from recoverrun.launcher.leadership.acts import HeldByLauncher
from recoverrun.launcher.network.frames import NOBODY
from rendezvous.coordinator.standing import RETOLD, Memory, Standing
from rendezvous.protocol import codec
from rendezvous.protocol.chunks import shares
from rendezvous.protocol.messages import ContextBuffer, Message
from rendezvous.protocol.register_messages import Statement
from rendezvous.protocol.snapshot_messages import Holding

STATEMENT_BYTES = 4 << 20
"""Of one part: half of what a frame may have."""

EARLY = 10_000
"""Messages for a coordinator that does not coordinate yet."""

Told = tuple[tuple[str, tuple[Statement, ...]], ...]
"""All parts of the statement of each member."""


class Handover:
    """The statements of a term's members, at its leader."""

    def __init__(self) -> None:
        self.pending = False  # we lead, and do not coordinate yet
        self._statements: dict[str, dict[int, Statement]] = {}
        self._early: list[tuple[str, Message]] = []

    def begin(self, *, pending: bool) -> None:
        """Another term begins, and we lead in it if `pending`."""
        self.pending = pending
        self._statements.clear()
        self._early.clear()

    def take(self, sender: str, statement: Statement) -> None:
        """Keep a part of what `sender` remembers."""
        parts = self._statements.setdefault(sender, {})
        if any(part.parts != statement.parts for part in parts.values()):
            parts.clear()  # It was said anew, with more in it.
        parts[statement.part] = statement

    def keep(self, sender: str, message: Message) -> None:
        """Keep what is said to the coordinator that we are about to be."""
        if self.pending and len(self._early) < EARLY:
            self._early.append((sender, message))

    def told(self, members: Iterable[str]) -> Told | None:
        """Return what `members` remember; None as long as one of them has not said all of it."""
        statements = []
        for member in members:
            parts = self._statements.get(member, {})
            if not parts or len(parts) < next(iter(parts.values())).parts:
                return None
            statements.append((member, tuple(parts[number] for number in sorted(parts))))
        return tuple(statements)

    def end(self) -> tuple[tuple[str, Message], ...]:
        """Coordinate from now on; return what was said to the coordinator too early."""
        self.pending = False
        early, self._early = tuple(self._early), []
        return early


def statement(memory: Memory, *, term: int, attempt: int, begun: bool) -> list[Statement]:
    """Return the parts of what this launcher remembers, for the coordinator of `term`."""
    parts = list(shares(map(codec.encode, memory.standing), len, STATEMENT_BYTES))
    return [
        Statement(
            term=term,
            attempt=attempt,
            begun=begun,
            part=number,
            parts=len(parts),
            frames=tuple(share),
        )
        for number, share in enumerate(parts)
    ]


def standing(parts: Sequence[Statement], hosts: Callable[[int], bool]) -> Standing:
    """Return what one launcher has told, as far as it can speak of it: of ranks that it hosts."""
    messages = []
    for frame in (frame for part in parts for frame in part.frames):
        try:
            message = codec.decode(frame)
        except codec.RemoteProtocolError:
            continue  # A statement that cannot be read was not told.
        rank = getattr(message, "rank", NOBODY)
        entrusted = rank == NOBODY or isinstance(message, ContextBuffer)
        if isinstance(message, RETOLD) and (entrusted or hosts(rank)):
            messages.append(message)
    return tuple(messages)


def held(told: Told, standings: Sequence[Standing]) -> HeldByLauncher:
    """Return the snapshots of which members have told; `standings` are of the same members."""
    return tuple(
        (sender, message)
        for (sender, _), standing in zip(told, standings, strict=True)
        for message in standing
        if isinstance(message, Holding)
    )
