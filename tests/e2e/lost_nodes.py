"""Jobs of several nodes on this machine whose ranks are one replica: nodes are lost with their
memory. A node is a launcher with its keeper and its exchange: all are killed, as by a power cut.
"""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.net import Net
from tests.e2e.launching import free_port
from tests.e2e.runs import Record, Run
from tests.e2e.snapshots import EVERY, STEPS, GoingBack, Weights

WITHIN_S = 400.0
"""All processes import torch once for each loss, on a machine that is busy."""

HOST = ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"')
"""Runs a command on a host of its own name: a node is known by that, however often it is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LosingNodes:
    """`lost`: at which steps which nodes are lost, in the order of time; each by a new one."""

    nodes: int
    layout: str = "fsdp2"
    shape: str = "epochs"
    parity: int = 1
    lost: tuple[tuple[int, tuple[int, ...]], ...] = ((13, (1,)),)
    spares: bool = True  # those who take the places wait already
    inject: str = ""  # kills that are ordered
    steps: int = STEPS
    options: tuple[str, ...] = ()

    script = "going_back.py"
    ranks = 1  # of each node

    @property
    def name(self) -> str:
        lost = "-then-".join("+".join(map(str, nodes)) for _, nodes in self.lost)
        return f"{self.layout}-{self.nodes}-nodes-{lost}{'' if self.spares else '-late'}"

    @property
    def arguments(self) -> tuple[str, ...]:
        return (f"--shape={self.shape}", f"--layout={self.layout}", f"--steps={self.steps}")

    @property
    def alike(self) -> GoingBack:
        """The same on one node, for a run without a loss."""
        return GoingBack(shape=self.shape, layout=self.layout, ranks=self.nodes, dies="")


class NodeRun(Run):
    """One launcher of several; all use the same key."""

    lost = False
    host: tuple[Net, int] | None = None  # of its own, with a link
    nodes = 0

    def _environment(self) -> dict[str, str]:
        homes = str(self.folder.parent)
        return super()._environment() | {"XDG_CONFIG_HOME": homes, "XDG_STATE_HOME": homes}

    @property
    def is_over(self) -> bool:
        """True once the launcher has ended."""
        return self._over()

    def kill_launcher(self) -> None:
        """By SIGKILL, and nothing else of the node."""
        os.kill(self._process.pid, signal.SIGKILL)

    def lose(self) -> None:
        """The whole node, by SIGKILL. Where it has a link nobody hears of it."""
        self.lost = True
        if self.host is not None and self.nodes > 2:  # one of two may not go on by itself
            net, number = self.host
            net.unplug(number)
        while living := self.processes():
            for pid in living:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass  # It ended with another one.
            self._over()


@dataclass(slots=True)
class Nodes:
    """All launchers of a job, also those that were lost."""

    job: LosingNodes
    folder: Path
    stack: ExitStack
    runs: list[NodeRun] = field(default_factory=list)
    options: tuple[str, ...] = ()
    net: Net | None = None

    def start(self, many: int) -> list[NodeRun]:
        """So many launchers more."""
        waits = ",".join(
            f"{step}@{self.gate(number)}" for number, (step, _) in enumerate(self.job.lost)
        )
        begun = []
        for _ in range(many):
            number = len(self.runs)
            run = NodeRun(
                self.job,  # type: ignore[arg-type]
                self.folder / f"node{number}",
                inject=self.job.inject,
                options=self.options,
                arguments=(f"--awaits={waits}",),
                bound_s=WITHIN_S,
                within=(*(self.net.within(number) if self.net else ()), *HOST, f"gpu-{number}"),
            )
            run.host = (self.net, number) if self.net else None
            run.nodes = self.job.nodes
            self.stack.callback(run.end)
            self.runs.append(run)
            begun.append(run)
        return begun

    def gate(self, number: int) -> Path:
        return self.folder / f"gate{number}"

    def records(self, event: str) -> list[Record]:
        """Of all journals."""
        return [record for run in self.runs for record in run.records(event)]

    def await_steps(self, number: int, step: int) -> None:
        """Wait until all ranks are at this step, and the snapshot before it is safe."""
        safe = step // EVERY * EVERY
        self.await_all(number)
        while not any(
            record["step"] >= safe and record["parity"] == self.job.parity
            for record in self.records("snapshot.safe")
        ):
            self.runs[-1].tick()

    def await_all(self, number: int) -> None:
        """Wait until all ranks are at the gate of this number."""
        marks = [Path(f"{self.gate(number)}.{rank}") for rank in range(self.job.nodes)]
        while not all(mark.exists() for mark in marks):
            self.runs[-1].tick()

    def hosts(self) -> dict[int, NodeRun]:
        """The host on which each rank was begun last."""
        found: dict[int, tuple[float, NodeRun]] = {}
        for run in self.runs:
            for record in run.records("worker.spawn"):
                rank, at = int(record["rank"]), float(record["ts"])
                if rank not in found or found[rank][0] < at:
                    found[rank] = at, run
        return {rank: run for rank, (_, run) in found.items()}

    def weights(self) -> Weights:
        return {rank: run.weights(rank) for rank, run in self.hosts().items()}


@contextmanager
def nodes_of(job: LosingNodes, folder: Path, net: Net | None = None) -> Iterator[Nodes]:
    """All launchers are running, and over when the block is left; each on a host of `net`."""
    folder.mkdir(parents=True)
    endpoint = f"{net.host(0)}:29400" if net else f"127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        nodes = Nodes(job, folder, stack, net=net)
        nodes.options = (
            f"--nnodes={job.nodes}",
            f"--rdzv-endpoint={endpoint}",
            f"--snapshot-every={EVERY}",
            f"--snapshot-parity={job.parity}",
            *job.options,
        )
        nodes.start(job.nodes)
        yield nodes


def survived(job: LosingNodes, folder: Path) -> tuple[Weights, Sequence[Record]]:
    """The weights where nodes were lost, and what the journals tell of ways back."""
    with nodes_of(job, folder) as nodes:
        for run in nodes.runs:
            run.await_record("worker.spawn")
        if job.spares:
            nodes.start(sum(len(lost) for _, lost in job.lost))
        for number, (step, lost) in enumerate(job.lost):
            nodes.await_steps(number, step)
            assert len(nodes.records("snapshot.parity")) == number
            hosts = nodes.hosts()
            for rank in lost:
                hosts[rank].lose()
            nodes.gate(number).touch()
            if not job.spares:
                nodes.start(len(lost))
        for run in nodes.runs:
            if run.lost:
                continue
            code = run.finish()
            assert code == 0, f"exit code {code}{run.story()}"
        return nodes.weights(), nodes.records("snapshot.restored")


def come_back(job: LosingNodes, folder: Path) -> Nodes:
    """A node is lost while a replica is left, and a spare takes its place. Once a snapshot is safe
    that was taken since then, all processes of the script are killed at the second step of
    `job.lost`.
    """
    with nodes_of(job, folder) as nodes:
        for run in nodes.runs:
            run.await_record("worker.spawn")
        spare = nodes.start(1)[0]
        nodes.await_steps(0, job.lost[0][0])
        nodes.hosts()[1].lose()
        nodes.gate(0).touch()
        while not (came := nodes.records("replica.return")):
            spare.tick()
        nodes.await_all(1)
        while not any(one["ts"] > came[0]["ts"] for one in nodes.records("snapshot.safe")):
            spare.tick()
        for rank, run in nodes.hosts().items():
            spawned = [one for one in run.records("worker.spawn") if one["rank"] == rank]
            os.kill(int(spawned[-1]["pid"]), signal.SIGKILL)
        nodes.gate(1).touch()
        for run in nodes.runs:
            if not run.lost:
                code = run.finish()
                assert code == 0, f"exit code {code}{run.story()}"
        return nodes


def struck(job: LosingNodes, folder: Path, then: Callable[[Nodes], bool]) -> tuple[Weights, Nodes]:
    """The weights where kills were ordered: all wait at the gate until they have struck, as `then`
    sees it.
    """
    with nodes_of(job, folder) as nodes:
        for run in nodes.runs:
            run.await_record("worker.spawn")
        nodes.start(1)
        first = nodes.hosts()[1]
        while not then(nodes):
            nodes.runs[-1].tick()
        first.lost = first.is_over
        nodes.gate(0).touch()
        for run in nodes.runs:
            if not run.lost:
                code = run.finish()
                assert code == 0, f"exit code {code}{run.story()}"
        return nodes.weights(), nodes
