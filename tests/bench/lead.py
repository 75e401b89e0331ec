"""The coordinator of `swarm`'s launchers, and whoever takes over from it: production envoys.

They have no workers of their own; for their one rank each they say what it would.
"""

import resource
import socket
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from recoverrun.config.given_options import Options
from recoverrun.config.run_config import RunConfig, parse_options
from recoverrun.launcher.job_client import JobClient
from recoverrun.launcher.network.addresses import understood
from recoverrun.launcher.network.job_wait import JobWait
from recoverrun.launcher.node.workers import LocalWorkers
from recoverrun.launcher.output.run_folder import RunFolder
from recoverrun.version import __version__
from rendezvous.protocol.formation_messages import Join, Start
from rendezvous.protocol.messages import Decision, Message
from rendezvous.protocol.records import Record
from rendezvous.protocol.views import View
from rendezvous.transport.keys import JobKey
from rendezvous.transport.station import Station
from tests.bench.swarm import RUN_ID, STEPS, commits, promise, report

TOLD = (
    "roll.decide",
    "view.change",
    "topology.learn",
    "promise.state",
    "step.commit",
    "leader.succeed",
)
"""What is told of the journal."""


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
    """A `Principal` that has no workers. Its node rank is 0 if it listens at the endpoint."""

    def __init__(self, pipe: Connection, key: JobKey | None, many: int, port: int = 0) -> None:
        """`port`: where the coordinator listens; 0: it is this one."""
        self._pipe = pipe
        self._many = many
        self._rank = 0 if port == 0 else 1
        self._began_at = time.monotonic()
        self._station = Station(key)
        self._station.watch(pipe.fileno())
        self._config = _config(many, self._rank, port)
        self.node = f"node-{self._rank}"
        # It has no workers, and is formed all the same once it is answered.
        self.waiting = JobWait(self._config, print, self._began_at)
        self._started = False
        self._viewed = 0  # the generation that our one rank has to report to
        self._job_client = JobClient(
            config=self._config,
            station=self._station,
            agent=self,
            record=self._record,
            folder=RunFolder(Path(tempfile.mkdtemp()), "lead", "0"),
            began_at=self._began_at,
        )

    def serve(self) -> None:
        now = time.monotonic()
        self._job_client.open(now)
        self._pipe.send((self._station.incarnation, self._job_client.connections.port))
        self._job_client.join(now)
        while True:
            ready = self._station.wait(self._job_client.deadline() - time.monotonic())
            now = time.monotonic()
            if self._pipe.fileno() in ready:
                word = self._pipe.recv()
                if word == "stop":
                    break
                if word == "learn":
                    self._job_client.up([promise(self._rank)], now)
                elif word == "commit":
                    self._job_client.up(commits(self._rank, self._many), now)
                else:
                    self._pipe.send(usage())
            self._job_client.read(ready, now)
            self._job_client.tick(time.monotonic())
            if self._viewed:
                generation, self._viewed = self._viewed, 0
                step = STEPS.stop if self._rank else generation
                self._job_client.up([report(self._rank, generation, step)], time.monotonic())
        self._job_client.close()
        self._station.close()

    def _record(self, record: Record) -> None:
        """The journal of this launcher: only what the benchmark waits for is told."""
        if record.event in TOLD:
            named = (record.fields.get(name) for name in ("number", "step", "generation"))
            number = next((one for one in named if one is not None), 0)
            self._pipe.send((record.event, number, time.monotonic()))

    # --------------------------------------------------------------------------- the agent

    @property
    def local_workers(self) -> LocalWorkers | None:
        return None

    def join_message(self) -> Join:
        return Join(
            run_id=RUN_ID, node=self.node, incarnation=self._station.incarnation,
            node_rank=self._rank, nproc=1, version=__version__, master="127.0.0.1:1",
            listen=self._job_client.connections.port if self._rank else 0,
        )  # fmt: skip

    def take(self, _rank: int, message: Message, now: float) -> None:
        if isinstance(message, Start) and not self._started:
            self._started = True
            self._pipe.send(("formed", 0, now))
            self._job_client.begin(message, now)
        elif isinstance(message, View | Decision):
            self._job_client.heard(message)
            if isinstance(message, View):
                self._viewed = message.generation

    def cut_off(self, reason: str, now: float) -> None:
        raise AssertionError(f"cut off at {now}: {reason}")


def _config(many: int, rank: int, port: int) -> RunConfig:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    options = Options(
        command=("train.py",), nnodes=str(many), node_rank=rank,
        rdzv_endpoint=f"127.0.0.1:{port or free}", rdzv_id=RUN_ID,
    )  # fmt: skip
    return parse_options(options, {})


def _limits() -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main(pipe: Connection, key: JobKey | None, many: int, port: int = 0) -> None:
    _limits()
    Lead(pipe, key, many, port).serve()


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
