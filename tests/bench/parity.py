"""`python -m tests.bench.parity`: what parity between nodes costs, and a rebuild from it beside a
plain copy.

Each node has a keeper and an exchange, as in a job of several nodes, on this machine and over
loopback, encrypted; no worker and no torch. This process is all their launchers, and says what a
coordinator would. Parity is made, then one node is lost with its memory, and the time counts until
a fresh keeper in its place has the part again. In a group of two nodes parity is a mirror, so that
rebuild is a plain copy over the same wire. Nodes share the cores of this machine, so what counts is
the processor time of the exchange that has the most of it: on machines of their own that bounds
the time.
"""

import argparse
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from recoverrun.launcher.node.exchange_process import NodeExchange
from recoverrun.launcher.node.keepers import NodeKeeper
from rendezvous.bays.client import KeeperClient
from rendezvous.protocol.exchange_messages import Employ
from rendezvous.protocol.formation_messages import Start
from rendezvous.protocol.records import Record
from rendezvous.protocol.snapshot_messages import Circle, Order
from rendezvous.snapshots.identity import NONE, SnapshotId
from rendezvous.snapshots.restore_plan import sources
from rendezvous.transport.station import Station
from tests.bench import machine
from tests.bench.machine import median

PATIENCE_S = 300.0
HOST = "127.0.0.1"
OF = SnapshotId(0, 5)
MIB = 1 << 20

CPU_S, COPIES = 1.5, 1.5
"""Goals: seconds for each GB of a node and snapshot, the keeper's included; and plain copies."""


@dataclass
class Node:
    """One node: its processes, and this process as its launcher."""

    place: int
    folder: Path
    key: bytes
    station: Station = field(default_factory=Station)
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        path = str(self.folder / "k")
        watch = {"watch": self.station.watch, "unwatch": self.station.unwatch}

        def note(record: Record) -> None:
            self.said.append(record.reason)

        self.keeper = NodeKeeper(path, record=note, **watch)
        employ = Employ(key=self.key, host=HOST, port=1, allowance="90%")
        self.exchange = NodeExchange(path, employ, record=note, **watch)

    def look(self, wait_s: float) -> None:
        ready = {item for item in self.station.wait(wait_s) if isinstance(item, int)}
        self.keeper.read(ready)
        self.exchange.read(ready)
        self.keeper.tick(time.monotonic())

    def fill(self, mb: int, world: int) -> None:
        """The part of this node's rank."""
        client = KeeperClient(self.keeper.path, self.place, 0, world)
        bay = client.reserve(mb * 1_000_000, within_s=PATIENCE_S)
        block = os.urandom(MIB)
        for at in range(0, len(bay.memory), MIB):
            bay.memory[at : at + MIB] = block[: len(bay.memory) - at]
        bay.seal(*OF, b"", b"")
        client.close()

    def cpu_s(self) -> float:
        """Of the exchange so far."""
        return _cpu_s(self.exchange.pids)

    def end(self) -> None:
        self.exchange.end()
        self.keeper.end()
        self.station.close()


def _cpu_s(pids: frozenset[int]) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(one.user + one.system for one in times)


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds, for each GB of a node."""

    encoding: float  # CPU of an exchange while parity is made
    keeping: float  # CPU of a keeper, for its checksums
    start: float  # CPU of keeper and exchange before there is anything to keep: seconds in all
    rebuilding: float  # CPU of the busiest exchange
    wall: float  # until the part was there again


def until(nodes: Sequence[Node], condition: Callable[[], object]) -> float:
    """Seconds until that is so."""
    began = time.monotonic()
    while not condition():
        words = [said for node in nodes for said in node.said]
        assert time.monotonic() < began + PATIENCE_S, words
        for node in nodes:
            node.look(0.005)
    return time.monotonic() - began


def measured(many: int, mb: int) -> Costs:
    key, gb = secrets.token_bytes(32), mb / 1000
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:

        def begun(name: str, place: int) -> Node:
            there = Path(folder, name)
            there.mkdir()
            node = Node(place, there, key)
            stack.callback(node.end)
            return node

        nodes = [begun(f"n{place}", place) for place in range(many)]
        for node in nodes:
            node.keeper.begin(_start(many, node.place, 0, ""))
        until(nodes, lambda: all(n.keeper.holding.keeper and n.exchange.standing for n in nodes))
        started = [_cpu_s(node.keeper.pids) for node in nodes]
        start = median([was + node.cpu_s() for was, node in zip(started, nodes, strict=True)])
        for node in nodes:
            node.fill(mb, many)
        until(nodes, lambda: all(node.keeper.holding.held for node in nodes))
        spent = [_cpu_s(node.keeper.pids) for node in nodes]
        keeping = max(now - was for now, was in zip(spent, started, strict=True))
        encoding = _encoded(nodes)

        lost = nodes[-1]
        nodes[-1] = fresh = begun("fresh", many - 1)
        left = nodes[:-1]
        until(nodes, lambda: fresh.exchange.standing)
        rebuilding, wall = _rebuilt(nodes, left)
        assert fresh.keeper.holding.held == lost.keeper.holding.held
        return Costs(encoding / gb, keeping / gb, start, rebuilding / gb, wall / gb)


def _encoded(nodes: Sequence[Node]) -> float:
    """CPU of an exchange, the mean of all."""
    until(nodes, lambda: all(node.exchange.standing for node in nodes))
    before = [node.cpu_s() for node in nodes]
    _order(nodes, (0, 1, NONE, OF))
    _join(nodes, Circle(attempt=0, number=1, level=1, ranks=(1,) * len(nodes), ports=_ports(nodes)))
    until(nodes, lambda: all(node.keeper.holding.shares for node in nodes))
    spent = [node.cpu_s() - was for node, was in zip(nodes, before, strict=True)]
    return sum(spent) / len(spent)


def _rebuilt(nodes: Sequence[Node], left: Sequence[Node]) -> tuple[float, float]:
    """CPU of the busiest exchange, and the wall clock."""
    many, fresh = len(nodes), nodes[-1]
    for node in nodes:
        node.keeper.begin(_start(many, node.place, 1, f"{OF.attempt}:{OF.step}"), parity=True)
    until(nodes, lambda: all(node.keeper.holding.order[0] == 1 for node in nodes))
    there = [(1, node.keeper.holding.held, node.keeper.holding.shares) for node in nodes]
    found = sources(there, OF)
    assert found, "its parity is there"
    before = [node.cpu_s() for node in nodes]
    _join(nodes, Circle(
        attempt=1, number=1, level=1, ranks=(1,) * many, ports=_ports(nodes), of=OF, sources=found,
    ))  # fmt: skip
    wall = until(nodes, lambda: fresh.keeper.holding.held)
    return max(node.cpu_s() - was for node, was in zip(nodes, before, strict=True)), wall


def _order(nodes: Sequence[Node], order: Order) -> None:
    for node in nodes:
        node.keeper.keep(order)


def _ports(nodes: Sequence[Node]) -> tuple[int, ...]:
    return tuple(node.exchange.standing.port for node in nodes if node.exchange.standing)


def _join(nodes: Sequence[Node], circle: Circle) -> None:
    for node in nodes:
        node.exchange.join(circle, _start(len(nodes), node.place, circle.attempt, ""))


def _start(many: int, place: int, attempt: int, restore: str) -> Start:
    return Start(
        generation=1, attempt=attempt, number=1, node_rank=place, nnodes=many, first_rank=place,
        nproc=1, world_size=many, restore=restore, master_addr="", nodes=("n",) * many,
        peers=tuple((f"n{one}", HOST, 1, 1) for one in range(many)),
    )  # fmt: skip


def show(groups: Sequence[int], mb: int, rounds: int) -> None:
    machine.heading("parity between nodes", f"{mb} MB a node, all nodes on this machine")
    found: dict[int, list[Costs]] = {many: [] for many in (2, *groups)}
    for _ in range(rounds):
        for many, costs in found.items():
            costs.append(measured(many, mb))
    rows = [
        [
            f"{many}" if many > 2 else "2, a mirror",
            machine.spread([one.start for one in costs]),
            machine.spread([one.keeping for one in costs]),
            machine.spread([one.encoding for one in costs]),
            machine.spread([one.rebuilding for one in costs]),
            machine.spread([one.wall for one in costs]),
        ]
        for many, costs in found.items()
    ]
    head = ["nodes of the group", "start, CPU s", "checksums, CPU s/GB", "parity, CPU s/GB"]
    machine.table([*head, "rebuild, CPU s/GB", "rebuild, wall s/GB"], rows)
    for many in groups:
        both = median([one.encoding + one.keeping for one in found[many]])
        words = f"{CPU_S:g} s of CPU for each GB of one of {many} nodes, keeper and exchange"
        machine.goal(f"{words} ({both:.2f})", both <= CPU_S)
        copies = median([
            one.rebuilding / copy.rebuilding
            for one, copy in zip(found[many], found[2], strict=True)
        ])  # fmt: skip
        words = f"a rebuild by {many} nodes takes {COPIES:g} times the CPU of a copy"
        machine.goal(f"{words} ({copies:.2f})", copies <= COPIES)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.parity")
    parser.add_argument("--nodes", type=int, nargs="+", default=[4])
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    show(args.nodes, args.mb, args.rounds)


if __name__ == "__main__":
    main()
