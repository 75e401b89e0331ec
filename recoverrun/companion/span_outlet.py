"""Spans of the run, sent as they end by the node that coordinates; the run's own at its end."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from recoverrun.companion.outlets import EventOutlet
from recoverrun.metrics.otlp import sender
from recoverrun.metrics.run_spans import RunSpan, RunSpans
from recoverrun.reports.status import Watch
from rendezvous.journal.reader import Entry


class SpanOutlet:
    """Follows the journals of a run. It imports OpenTelemetry with the first span."""

    def __init__(self, address: str, run_dir: Path, log: Path) -> None:
        """Refused spans are noted at the end of the file `log`."""
        self._address = address
        self._log = log
        self._run_dir, self._run = str(run_dir), ""
        self._spans = RunSpans(Watch(run_dir=self._run_dir))
        self._send: Callable[[Sequence[RunSpan]], bool] | None = None
        self._outlet: EventOutlet[RunSpan] = EventOutlet("recoverrun-spans", self._deliver)

    def add(self, entries: Sequence[Entry], *, run: str, leads: bool) -> None:
        """New records of `run`. Every node reads them, and the one that `leads` sends what they
        end.
        """
        if run != self._run:  # What was read before is of an earlier one in the same directory.
            self._run, self._spans = run, RunSpans(Watch(run_dir=self._run_dir))
        for span in self._spans.add(entries):
            if leads:
                self._outlet.put(span)

    def finish(self, within_s: float, *, leads: bool) -> bool:
        """The run is over, or this node has left it. True if all was sent in time."""
        if leads:
            self._outlet.put(self._spans.whole())
        return self._outlet.finish(within_s)

    @property
    def dropped(self) -> int:
        return self._outlet.dropped

    def _deliver(self, span: RunSpan) -> None:
        if self._send is None:
            self._send = sender(self._address, self._spans.facts.run_id)
        if not self._send([span]):
            with suppress(OSError), self._log.open("a") as log:
                log.write(f"--otlp: the span {span.name!r} was not accepted\n")
