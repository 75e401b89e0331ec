"""This launcher's way to the witness, if the job has one: a process elsewhere, or files.

Either is asked again and again whether it is there, and passes on what the register has to say to
its vote. What comes back are events of the register; what goes wrong is said once.
"""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from recoverrun.config.option_values import Endpoint
from recoverrun.errors import RecoverrunError
from recoverrun.launcher.network.blocking_calls import BlockingCalls
from recoverrun.launcher.network.witness_files import Unusable, WitnessFiles
from rendezvous.consensus.register_events import Heard, RegisterMessage, WitnessSeen
from rendezvous.consensus.timeouts import WITNESS_SILENT_S
from rendezvous.protocol import codec
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.formation_messages import Beat
from rendezvous.protocol.messages import Message
from rendezvous.protocol.records import Record, notice
from rendezvous.protocol.register_messages import Testimony
from rendezvous.transport.links import Dealer
from rendezvous.transport.station import Station

ASK_S = 1.0
"""Between two questions whether it is there; it is given up after `WITNESS_SILENT_S`."""

BATCH = 100

Word = WitnessSeen | Heard
"""What the register is to be told."""


class WitnessClient(Protocol):
    """A client of the witness' vote."""

    def tell(self, vote: str, message: RegisterMessage) -> None:
        """Say something to its vote of that name; it may be lost."""

    def read(self, ready: Collection[object]) -> list[Word | Record]:
        """The messages that have come, of what is `ready`."""

    def ask(self) -> None:
        """Ask whether it is there."""

    def where(self) -> str:
        """The place of the witness, in words, and what may be wrong with it."""

    def close(self) -> None:
        """The job is over."""


class Remote:
    """`recoverrun witness`, on some other machine."""

    def __init__(self, station: Station, place: Endpoint) -> None:
        """Raises OSError for a place that cannot be."""
        self._station = station
        self._place = place
        self._dealer: Dealer = station.connect_tcp((place.host, place.port))

    def tell(self, vote: str, message: RegisterMessage) -> None:
        self._dealer.send(codec.encode(Testimony(vote=vote, frame=codec.encode(message))))

    def ask(self) -> None:
        beat = Beat(node="", incarnation=self._station.incarnation)
        self._dealer.send(codec.encode(beat))

    def read(self, ready: Collection[object]) -> list[Word | Record]:
        if self._dealer not in ready:
            return []
        words: list[Word | Record] = []
        for _ in range(BATCH):
            frames = self._dealer.receive()
            if frames is None:
                break
            name = frames[-2].decode("ascii", "replace") if len(frames) > 1 else ""
            message = understood(frames[-1])
            if isinstance(message, Beat) and name:
                words.append(WitnessSeen(name))
            elif isinstance(message, Testimony) and message.vote.partition("/")[0] == name:
                answer = understood(message.frame)
                if isinstance(answer, RegisterMessage):
                    words.append(Heard(message.vote, answer))
        return words

    def where(self) -> str:
        key = " (does it have the same key?)" if self._dealer.strangers else ""
        return f"{self._place}{key}"

    def close(self) -> None:
        """The station closes the connection."""


class OnFiles:
    """Files that all launchers can write to. They are read where it does not matter how long."""

    def __init__(self, station: Station, directory: Path) -> None:
        self._directory = directory
        self._files = WitnessFiles(directory)
        self._blocking_calls: BlockingCalls[Word | str | None] = BlockingCalls(station)
        self._trouble = ""

    def tell(self, vote: str, message: RegisterMessage) -> None:
        self._blocking_calls.ask(lambda: self._hear(vote, message))

    def ask(self) -> None:
        self._blocking_calls.ask(self._look)

    def read(self, ready: Collection[object]) -> list[Word | Record]:
        words: list[Word | Record] = []
        for word in self._blocking_calls.take(ready):
            if isinstance(word, str):
                self._trouble = word
            elif word is not None:
                self._trouble = ""
                words.append(word)
        return words

    def where(self) -> str:
        return self._trouble or str(self._directory)

    def close(self) -> None:
        self._blocking_calls.close()

    def _look(self) -> Word | str:
        try:
            return WitnessSeen(self._files.name())
        except Unusable as error:
            return str(error)

    def _hear(self, vote: str, message: RegisterMessage) -> Word | str | None:
        try:
            answer = self._files.hear(vote, message)
        except Unusable as error:
            return str(error)
        return None if answer is None else Heard(vote, answer)


class WitnessMonitor:
    """The times at which the witness is asked, and the record if it is not there."""

    def __init__(self, witness_client: WitnessClient, began_at: float) -> None:
        self._witness_client = witness_client
        self._ask_at = self._heard_at = began_at
        self._missed = False

    def read(self, ready: Collection[object], now: float) -> list[Word | Record]:
        words = self._witness_client.read(ready)
        if any(isinstance(word, WitnessSeen) for word in words):
            self._heard_at = now
            if self._missed:
                self._missed = False
                words.append(notice(f"the witness at {self._witness_client.where()} answers again"))
        return words

    def tell(self, vote: str, message: RegisterMessage) -> None:
        self._witness_client.tell(vote, message)

    def tick(self, now: float) -> list[Record]:
        if now < self._ask_at:
            return []
        self._ask_at = now + ASK_S
        self._witness_client.ask()
        if self._missed or now - self._heard_at < 2 * WITNESS_SILENT_S:
            return []
        self._missed = True
        return [notice(f"the witness does not answer: {self._witness_client.where()}")]

    def deadline(self) -> float:
        return self._ask_at

    def close(self) -> None:
        self._witness_client.close()


def witness_client_at(place: Endpoint | Path, station: Station) -> WitnessClient:
    """The way to the witness at `place`. Raises RecoverrunError if there can be none."""
    try:
        if isinstance(place, Endpoint):
            return Remote(station, place)
        if not os.access(place, os.R_OK | os.W_OK | os.X_OK) or not place.is_dir():
            words = f"--witness: {place} is no directory that this user can write to"
            raise RecoverrunError(words, ExitCode.USAGE)
        return OnFiles(station, place)
    except OSError as error:
        words = f"--witness: {place} cannot be reached: {error.strerror}"
        raise RecoverrunError(words, ExitCode.USAGE) from error


def understood(frame: bytes) -> Message | None:
    """The message, or None for what is none."""
    try:
        return codec.decode(frame)
    except codec.RemoteProtocolError:
        return None
