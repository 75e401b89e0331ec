"""Copies of a job's journals, fetched from its launchers with the job's key.

The launcher at the endpoint is asked first and names the others, which are asked as well: so nodes
without a shared file system are all seen, and a job whose first node is lost is followed on. They
are asked one after the other, as they may all have the same files.
"""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from recoverrun.config.option_values import Endpoint
from recoverrun.errors import RecoverrunError
from recoverrun.launcher.network.addresses import open_uplink, written
from recoverrun.launcher.network.connections import Place
from recoverrun.launcher.network.frames import opened
from recoverrun.launcher.network.handshake_diagnosis import diagnose, has_ended, unanswered
from recoverrun.launcher.network.journal_desk import JOURNAL, STACK, UNASKED
from recoverrun.launcher.network.key_lookup import Keyring
from recoverrun.launcher.network.side_door import side_doors
from rendezvous.protocol import codec
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.formation_messages import Refusal
from rendezvous.protocol.journal_messages import JournalCall, JournalPiece
from rendezvous.transport.links import Dealer
from rendezvous.transport.station import Station

PATIENCE_S = 5.0
"""Seconds that the launcher at the endpoint has for its first answer."""

FIRST_S = 1.0
"""After so long other launchers at its host are called as well."""

ANSWER_S = 2.0
CALL_S = 1.0
"""A launcher that another one has named is waited for so long, once."""

LOOK_S = 0.05
BYTES_MOST = 1 << 30
"""Of all journals of a run: 50,000 steps with many losses are some MiB."""


@dataclass(slots=True)
class _Line:
    """The call to one launcher."""

    place: Place | None  # None: the endpoint
    dealer: Dealer
    wait_s: float  # that its connection may still take


class RemoteJournals:
    """The journals of the job at `endpoints`, in `directory`, which is empty at first."""

    def __init__(self, endpoints: Sequence[Endpoint], keyring: Keyring, directory: Path) -> None:
        self.directory = directory
        self.folder = ""
        """The name of the run, once a launcher has told it."""
        self.over = False
        """True once all launchers that answered have ended."""
        self.stacks = False
        """Fetch those of ranks that stood still as well."""
        self._endpoints, self._keyring = endpoints, keyring
        self._station = Station(keyring.key)
        self._lines = [_Line(None, open_uplink(self._station, endpoints, keeps=True), 0.0)]
        self._have: dict[str, int] = {}
        self._serial = 0

    def fetch(self) -> None:
        """Bring what is new. Raises RecoverrunError if nobody has ever answered."""
        if not self.folder:
            self._meet()
        heard: list[_Line] = []
        for line in self._lines:  # It grows while we ask.
            while (piece := self._ask(line)) is not None:
                if line not in heard:
                    heard.append(line)
                if line is heard[0]:  # It alone: each would name the one before it to us again.
                    self._learn(piece)
                if not self._keep(piece):
                    break
        if not heard:
            if not self.folder:
                raise RecoverrunError(self._why(), ExitCode.NEVER_FORMED)
            ended = all(has_ended(endpoint) for endpoint in self._places())
            for line in self._lines:
                self._answer(line)  # Once its connection is down, all that it has told is here.
            self.over = ended and not any(line.dealer.up for line in self._lines)

    def close(self) -> None:
        self._station.close()

    def _meet(self) -> None:
        """Wait for the first launcher that is there: the one at the endpoint, or where that has
        ended, another one of the job at the same host. Raises RecoverrunError.
        """
        first = self._lines[0]
        tried, until = [first], time.monotonic() + PATIENCE_S
        self._await(tried, until - PATIENCE_S + FIRST_S)
        if not first.dealer.up:  # Not before: a launcher tells its user of calls that say nothing.
            ended = [endpoint for endpoint in self._endpoints if has_ended(endpoint)]
            tried += [self._line(place) for one in ended for place in side_doors(one)]
            self._await(tried, until)
        # Only one of them: the next one may be of another job. It names those of its own.
        met = next((line for line in tried if line.dealer.up), first)
        self._lines = [first] if met is first else [first, met]
        for line in tried:
            if line not in self._lines:
                self._station.drop(line.dealer)

    def _await(self, lines: Sequence[_Line], until: float) -> None:
        """Wait until one of them is put through. Raises RecoverrunError."""
        while not any(line.dealer.up for line in lines) and time.monotonic() < until:
            for line in lines:
                line.dealer.call_again()
                self._answer(line)  # It tells of connections.
            self._despair(lines[0])
            self._station.wait(LOOK_S)

    def _line(self, place: Place) -> _Line:
        """A call to this place, under a name of its own: nobody hears two of one name."""
        dealer = self._station.connect_tcp(place, keeps=True, apart=True)
        return _Line(place, dealer, CALL_S)

    def _despair(self, line: _Line) -> None:
        """Raises RecoverrunError if what answers at the endpoint will never let us in."""
        if line.place is None and (failures := line.dealer.new_strangers()):
            if why := diagnose(self._endpoints, self._keyring, failures):
                raise RecoverrunError(why, ExitCode.NEVER_FORMED)

    def _ask(self, line: _Line) -> JournalPiece | None:
        """The answer of one launcher, None if there is none. Raises RecoverrunError."""
        until = time.monotonic() + line.wait_s
        line.wait_s = 0.0
        self._serial += 1
        have = tuple(self._have.items())
        call = codec.encode(JournalCall(serial=self._serial, have=have, stacks=self.stacks))
        self._answer(line)
        while not line.dealer.send(call):
            self._answer(line)  # It tells of connections, and what came before one broke.
            self._despair(line)
            if time.monotonic() >= until:
                return None
            self._station.wait(LOOK_S)
        until = time.monotonic() + ANSWER_S
        while (left := until - time.monotonic()) > 0:
            self._station.wait(left)
            if (piece := self._answer(line)) is not None:
                return piece
        return None

    def _answer(self, line: _Line) -> JournalPiece | None:
        """The answer to our last call, if it is there; what a launcher told as it ended is kept."""
        while (frames := line.dealer.receive()) is not None:
            piece = _piece(frames)
            if piece is not None and piece.serial == self._serial:
                return piece
            if piece is not None and piece.serial == UNASKED:
                self._keep(piece)
        return None

    def _learn(self, piece: JournalPiece) -> None:
        """Have a call to each launcher that is named."""
        self.folder = piece.folder
        known = {line.place for line in self._lines}
        for host, port in piece.launchers:
            if (host, port) not in known:
                with suppress(OSError):  # a place that cannot be
                    self._lines.append(self._line((host, port)))

    def _keep(self, piece: JournalPiece) -> bool:
        """Write it behind what is there. False if nothing came that fits there."""
        have = self._have.get(piece.name, 0)
        known = JOURNAL.fullmatch(piece.name) or STACK.fullmatch(piece.name)
        data = piece.data[have - piece.start :] if 0 <= piece.start <= have else b""
        if not known or not data:
            return False
        if sum(self._have.values()) + len(data) > BYTES_MOST:
            sentence = f"the journals of {written(self._endpoints)} are larger than 1 GiB"
            raise RecoverrunError(sentence, ExitCode.USAGE)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        path = self.directory / piece.name
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            file.write(data)
        self._have[piece.name] = have + len(data)
        return True

    def _places(self) -> list[Endpoint]:
        found = [
            Endpoint(host=line.place[0], port=line.place[1]) for line in self._lines if line.place
        ]
        return [*self._endpoints, *found]

    def _why(self) -> str:
        if self._lines[0].dealer.up:
            return (
                f"the launcher at {written(self._endpoints)} does not tell its journal: it may be "
                "of another version, or its disk stalls"
            )
        sentence = unanswered(self._endpoints, PATIENCE_S)
        return f"{sentence} If that node is lost, name another one of the job, with the same port"


def _piece(frames: Sequence[bytes]) -> JournalPiece | None:
    """The piece of a journal that an answer holds. Raises RecoverrunError where the other end says
    why it has none.
    """
    try:
        message = opened(frames)[1]
    except codec.VersionMismatch as error:
        raise RecoverrunError(str(error), ExitCode.NEVER_FORMED) from error
    except codec.RemoteProtocolError:
        return None  # Whoever answers may be anybody.
    if isinstance(message, Refusal) and message.exit_code:
        raise RecoverrunError(message.reason, message.exit_code)
    return message if isinstance(message, JournalPiece) else None
