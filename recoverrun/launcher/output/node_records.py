"""The journal records of this launcher's own workers, unless all of the run is written."""

from collections.abc import Callable, Iterable

from rendezvous.coordinator.node_book import NodeBook
from rendezvous.protocol.messages import Message
from rendezvous.protocol.records import Record


class NodeRecords:
    """Follows the workers of one attempt at a time."""

    def __init__(self, record: Callable[[Record], None], coordinates: Callable[[], bool]) -> None:
        """`coordinates`: True while the coordinator is here, whose account is the whole one."""
        self._record = record
        self._coordinates = coordinates
        self._book = NodeBook(())

    def begin(self, ranks: Iterable[int]) -> None:
        """Workers of these ranks are about to be started here."""
        self._book = NodeBook(ranks)

    def said(self, message: Message, now: float) -> None:
        """One of them says so."""
        self._write(self._book.said(message, now))

    def heard(self, message: Message, now: float) -> None:
        """One of them is told so."""
        self._write(self._book.heard(message, now))

    def close(self) -> None:
        """Our workers are about to end."""
        self._write(self._book.close())

    def _write(self, records: Iterable[Record]) -> None:
        for record in () if self._coordinates() else records:
            self._record(record)
