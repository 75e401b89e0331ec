"""Series in Prometheus' text format, written and served by its own client (extra `metrics`)."""

import os
import secrets
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from recoverrun.config.option_values import Endpoint
from recoverrun.errors import RecoverrunError
from recoverrun.metrics.run_series import SECONDS, MeteredRun, Series
from recoverrun.reports.status import Watch
from rendezvous.journal.reader import RunTail
from rendezvous.protocol.exit_codes import ExitCode

LACKING = "there is no prometheus-client: pip install 'recoverrun[metrics]'"


class Meter:
    """The series of the run in a directory, read anew each time that somebody asks."""

    def __init__(self, run_dir: Path) -> None:
        self._tail = RunTail(run_dir)
        self._name = ""
        self._run = MeteredRun(Watch(run_dir=str(run_dir)))
        self._lock = threading.Lock()  # Two may scrape at once, each in a thread of its own.

    def series(self) -> list[Series]:
        """The series by now."""
        with self._lock:
            new = self._tail.poll()
            if self._tail.run != self._name:  # Another one has begun in the same directory.
                self._name = self._tail.run
                self._run = MeteredRun(Watch(run_dir=str(self._tail.run_dir)))
            self._run.add(new)
            return self._run.series(time.time())


def text(series: Sequence[Series]) -> bytes:
    """The content of a scrape. Raises RecoverrunError without the client."""
    client = _client()
    registry = client.CollectorRegistry()
    registry.register(Collector(lambda: series))
    found: bytes = client.generate_latest(registry)
    return found


def serve(place: Endpoint, series: Callable[[], Sequence[Series]]) -> Callable[[], None]:
    """Answer at `place` from now on, in threads; how to end that. Raises RecoverrunError."""
    client = _client()
    registry = client.CollectorRegistry()
    registry.register(Collector(series))
    try:
        server, thread = client.start_http_server(place.port, place.host, registry)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise RecoverrunError(f"no metrics at {place}: {why}", ExitCode.USAGE) from error

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return end


def write(path: Path, content: bytes) -> None:
    """Have a file appear with all of its content, as collectors of text files want it."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        draft.write_bytes(content)
        os.replace(draft, path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        why = (error.strerror or str(error)).lower()
        raise RecoverrunError(f"no metrics in {path}: {why}", ExitCode.USAGE) from error


class Collector:
    """The collector that the client calls at each scrape."""

    def __init__(self, series: Callable[[], Sequence[Series]]) -> None:
        self._series = series

    def describe(self) -> Iterable[object]:
        """Describe nothing beforehand: the client would else collect once to learn the names."""
        return ()

    def collect(self) -> Iterator[object]:
        core = _client().core
        for one in self._series():
            if one.kind == "histogram":
                family = core.HistogramMetricFamily(one.name, one.help)
                observed = [value for _, value in one.values]
                family.add_metric((), buckets(observed), sum(observed))
            else:
                make = {"gauge": core.GaugeMetricFamily, "counter": core.CounterMetricFamily}
                family = make[one.kind](one.name, one.help, labels=one.labels)
                for labels, value in one.values:
                    family.add_metric(labels, value)
            yield family


def buckets(observed: Sequence[float]) -> list[tuple[str, float]]:
    """The number of observations up to each bound, and of all."""
    places = [bisect_left(SECONDS, value) for value in observed]
    bounds = [*map(str, SECONDS), "+Inf"]
    return [(bound, sum(place <= at for place in places)) for at, bound in enumerate(bounds)]


def _client() -> Any:
    """Prometheus' client. Not at the top: it is an extra."""
    try:
        import prometheus_client.core
    except ImportError as error:
        raise RecoverrunError(LACKING, ExitCode.USAGE) from error
    return prometheus_client
