"""The coordinator of `swarm`'s launchers: the production envoy, without workers of its own."""

import resource
import socket
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

from recoverrun import __version__
from recoverrun.config import Options, RunConfig, parse_options
from recoverrun.crew import Crew
from recoverrun.envoy import Envoy
from recoverrun.network import understood
from rendezvous.effects import Record
from rendezvous.keys import JobKey
from rendezvous.messages import Join, Message, Start, View
from rendezvous.transport import Station
from tests.bench.swarm import RUN_ID, report


@dataclass(frozen=True, slots=True)
class Usage:
    """Of this process, until now."""

    at: float
    cpu_s: float
    rss_mib: float


def usage() -> Usage:
    rss_kib = int(next(
        line.split()[1] for line in open("/proc/self/status") if line.startswith("VmRSS")
    ))  # fmt: skip
    return Usage(time.monotonic(), time.process_time(), rss_kib / 1024)


class Lead:
    """A `Principal` that has no workers."""

    def __init__(self, pipe: Connection, key: JobKey | None, many: int) -> None:
        self._pipe = pipe
        self._began_at = time.monotonic()
        self._station = Station(key)
        self._station.watch(pipe.fileno())
        self._config = _config(many)
        self.node = "node-0"
        self._started = False
        self._viewed = 0  # the generation that our one rank has to report to
        self._envoy = Envoy(
            config=self._config,
            station=self._station,
            principal=self,
            record=self._record,
            began_at=self._began_at,
        )

    def serve(self) -> None:
        now = time.monotonic()
        self._envoy.open(now)
        self._pipe.send(self._envoy.lines.port)
        self._envoy.join(now)
        while True:
            ready = self._station.wait(self._envoy.deadline() - time.monotonic())
            now = time.monotonic()
            if self._pipe.fileno() in ready:
                if self._pipe.recv() == "stop":
                    break
                self._pipe.send(usage())
            self._envoy.read(ready, now)
            self._envoy.tick(time.monotonic())
            if self._viewed:
                generation, self._viewed = self._viewed, 0
                self._envoy.up([report(0, generation)], time.monotonic())
        self._envoy.close()
        self._station.close()

    def _record(self, record: Record) -> None:
        """The journal of this launcher: only what the benchmark waits for is told."""
        if record.event in ("roll.decide", "view.change", "topology.learn"):
            number = record.fields.get("number", record.fields.get("generation", 0))
            self._pipe.send((record.event, number, time.monotonic()))

    # --------------------------------------------------------------------------- the principal

    @property
    def crew(self) -> Crew | None:
        return None

    def join_message(self) -> Join:
        return Join(
            run_id=RUN_ID, node=self.node, incarnation=self._station.incarnation, node_rank=0,
            nproc=1, version=__version__, master="127.0.0.1:1",
        )  # fmt: skip

    def take(self, _rank: int, message: Message, now: float) -> None:
        if isinstance(message, Start) and not self._started:
            self._started = True
            self._pipe.send(("formed", 0, now))
            self._envoy.begin(message, now)
        elif isinstance(message, View):
            self._viewed = message.generation

    def cut_off(self, reason: str, now: float) -> None:
        raise AssertionError(f"cut off at {now}: {reason}")

    def wait_elsewhere(self) -> None:
        raise AssertionError("we coordinate")

    def lose_sight(self, silent_s: float) -> None:
        raise AssertionError(f"nobody is at the endpoint but we ({silent_s} s)")


def _config(many: int) -> RunConfig:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
    options = Options(
        command=("train.py",), nnodes=str(many), node_rank=0, rdzv_endpoint=endpoint,
        rdzv_id=RUN_ID,
    )  # fmt: skip
    return parse_options(options, {})


def _limits() -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main(pipe: Connection, key: JobKey | None, many: int) -> None:
    _limits()
    Lead(pipe, key, many).serve()


def listen(pipe: Connection, key: JobKey | None, many: int) -> None:
    """A launcher that all others call at once: tells when it has heard the last of `many`."""
    _limits()
    station = Station(key)
    hub = station.listen_tcp("127.0.0.1", 0)
    pipe.send(hub.port)
    heard: set[bytes] = set()
    while len(heard) < many:
        station.wait(1.0)
        while (incoming := hub.receive()) is not None:
            if understood(incoming, hub, station, time.monotonic()) is not None:
                heard.add(incoming.sender)
    pipe.send(usage())
    station.close()
