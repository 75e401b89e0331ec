"""A rendezvous to be attacked, in a process of its own: the sockets and coordinator of a launcher.

`python -m tests.security.host KEYFILE` prints the port, then serves until its stdin closes. What
peers send goes through the same steps as in the agent: admission, wire, coordinator host. A
`Notice` is sent back with figures about this process, so that a good peer can tell how it is.
"""

import errno
import json
import os
import resource
import sys
import time
from dataclasses import replace
from pathlib import Path

from recoverrun.launcher.leadership.coordinator_host import CoordinatorHost
from recoverrun.launcher.network.addresses import understood
from rendezvous.coordinator.recovery_policy import USUAL
from rendezvous.membership.flapping import FlappingNodes
from rendezvous.membership.formation import Formation
from rendezvous.protocol import codec
from rendezvous.protocol.formation_messages import Join
from rendezvous.protocol.messages import Notice
from rendezvous.protocol.records import Record
from rendezvous.transport.keys import parse
from rendezvous.transport.links import Hub
from rendezvous.transport.station import Station
from tests.unit.stores import lone_store

FDS = 300
"""As many descriptors as this process may have: few, so that a test can use them up."""


def make_coordinator_host(own: str, record: list[Record]) -> CoordinatorHost:
    formation = Formation(
        nnodes=3, run_id="job", version="1", master_addr="", timeout_s=600,
        begun_at=time.monotonic(),
    )  # fmt: skip
    coordinator_host = CoordinatorHost(
            formation=formation, own=own, policy=USUAL, record=record.append,
            store=lone_store(), flapping_nodes=FlappingNodes(),
        )  # fmt: skip
    coordinator_host.receive(own, join_of(own, "host"), time.monotonic())
    return coordinator_host


def join_of(incarnation: str, node: str) -> Join:
    return Join(
        run_id="job", node=node, incarnation=incarnation, node_rank=-1, nproc=1, version="1",
        script="train.py",
    )  # fmt: skip


class Host:
    def __init__(self, key_file: str) -> None:
        key = parse(Path(key_file).read_bytes()) if key_file else None
        self.station = Station(key)
        self.hub: Hub = self.station.listen_tcp("127.0.0.1", 0)
        self.station.watch(0)
        self.records: list[Record] = []
        self.coordinator_host = make_coordinator_host(self.station.incarnation, self.records)
        self.heard = 0
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)
        self.lines: list[str] = []

    def serve(self) -> None:
        while True:
            ready = self.station.wait(0.5)
            now = time.monotonic()
            if 0 in ready:
                return
            if self.hub in ready:
                self._read(now)
            self.lines += self.station.log_lines(now)
            self.coordinator_host.tick(now)

    def _read(self, now: float) -> None:
        for _ in range(1000):
            incoming = self.hub.receive()
            if incoming is None:
                return
            self.heard += 1
            content = understood(incoming, self.hub, self.station, now)
            if content is None:
                continue
            _, message = content
            if isinstance(message, Notice):
                answer = replace(message, reason=json.dumps(self._figures()))
                self.hub.send(incoming.sender, b"host", codec.encode(answer))
                continue
            for envelope in self.coordinator_host.receive(incoming.sender.decode(), message, now):
                self.hub.send(envelope.to.encode(), b"host", codec.encode(envelope.message))

    def _figures(self) -> dict[str, object]:
        pages = int(os.pread(self._statm, 100, 0).split()[1])
        return {
            "rss_mb": pages * resource.getpagesize() / 2**20,
            "fds": _descriptors(),
            "heard": self.heard,
            "lines": self.lines[-20:],
            "lines_in_all": len(self.lines),
            "joined": len(self.coordinator_host._newcomers._formation._joins),
        }


def _descriptors() -> int:
    """The number in use. To count them takes one: without it, all are."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        return FDS


def main() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (FDS, FDS))
    host = Host(sys.argv[1] if len(sys.argv) > 1 else "")
    print(host.hub.port, flush=True)
    host.serve()
    host.station.close()


if __name__ == "__main__":
    main()
