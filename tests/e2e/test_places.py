"""A lost node's replica comes back on a launcher that takes its place, with the weights it had."""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from tests.chaos.net import Net, net
from tests.e2e.launching import Launch, Launcher
from tests.e2e.returns import WITHIN_S, Returning, Weights, undisturbed
from tests.e2e.runs import SCRIPTS

pytestmark = [pytest.mark.e2e, pytest.mark.rest, pytest.mark.timeout(900)]


class Training:
    """`nodes` launchers of `nproc` ranks each, that run scripts/returning.py."""

    def __init__(
        self,
        launcher: Launcher,
        case: Returning,
        out: Path,
        *,
        nodes: int,
        hosts: Net | None = None,
    ) -> None:
        """`hosts` of their own; by default all nodes are on this one."""
        out.mkdir()
        self.hosts = hosts
        self.out = out
        self.case = case
        self._launcher = launcher
        self._options = (
            f"--nnodes={nodes}", f"--nproc-per-node={case.ranks // nodes}", "--exact",
            f"--rdzv-endpoint={'127.0.0.1' if hosts is None else hosts.host(0)}:{launcher.port()}",
        )  # fmt: skip
        self.nodes = [self.launch(f"--node-rank={rank}", rank=rank) for rank in range(nodes)]

    def launch(self, *options: str, rank: int = 0) -> Launch:
        script = (str(SCRIPTS / self.case.script), f"--out={self.out}", *self.case.arguments)
        env = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        within = () if self.hosts is None else self.hosts.within(rank)
        return self._launcher(*self._options, *options, *script, env=env, within=within)

    def await_records(self, event: str, many: int = 1, node: int = 0) -> None:
        """Wait until that node's journal has so many of these."""
        self._first_with(event, many, (node,))

    def first_of(self, event: str, *nodes: int) -> int:
        """Wait until the journal of one of these nodes has such a record."""
        return self._first_with(event, 1, nodes)

    def _first_with(self, event: str, many: int, nodes: Sequence[int]) -> int:
        until = time.monotonic() + WITHIN_S
        while True:
            for node in nodes:
                if len(self.nodes[node].records(event)) >= many:
                    return node
            assert time.monotonic() < until, f"no {many} {event} within {WITHIN_S:.0f} s"
            time.sleep(0.1)  # Files that other processes write: there is nothing to wait on.

    def finish(self, *launches: Launch) -> Weights:
        """All of them end well; the weights of all ranks."""
        (self.out / "go").touch()
        assert [launch.finish() for launch in launches] == [0] * len(launches)
        return {
            rank: torch.load(self.out / f"weights{rank}.pt", weights_only=True)
            for rank in range(self.case.ranks)
        }


def same(weights: Weights, expected: Weights) -> None:
    for rank, theirs in expected.items():
        for name, tensor in theirs.items():
            assert torch.equal(weights[rank][name], tensor), f"rank {rank}: {name}"


@pytest.mark.parametrize("lost", [1, 0], ids=["other", "endpoint"])
def test_a_launcher_that_was_started_again_takes_its_place(
    lost: int, launcher: Launcher, tmp_path: Path
) -> None:
    """Also the one at the endpoint, where nobody of the job listens any more."""
    case = Returning(shape="range")
    expected = undisturbed(case, tmp_path / "plain")
    job = Training(launcher, case, tmp_path / "out", nodes=2)
    job.await_records("step.commit", 4)

    job.nodes[lost].send(signal.SIGKILL)
    job.await_records("replica.lost", node=1 - lost)
    again = job.launch(f"--node-rank={lost}")
    job.await_records("replica.return", node=1 - lost)

    same(job.finish(job.nodes[1 - lost], again), expected)


def test_a_spare_takes_the_place_of_a_node_with_half_a_replica(
    launcher: Launcher, tmp_path: Path
) -> None:
    """Of two replicas on four nodes; the mate of a lost rank lives, and starts again with it."""
    case = Returning(shape="range", ranks=4, shards=2)
    expected = undisturbed(case, tmp_path / "plain")
    job = Training(launcher, case, tmp_path / "out", nodes=4)
    job.await_records("step.commit", 2)
    spare = job.launch()  # not before: any may be the first that listens at the endpoint
    job.await_records("step.commit", 4)

    job.nodes[3].send(signal.SIGKILL)
    job.await_records("replica.return")

    same(job.finish(*job.nodes[:3], spare), expected)


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
@pytest.mark.parametrize("apart", [(2,), (0,)], ids=["one", "coordinator"])
def test_nodes_that_were_cut_off_come_back_when_the_network_heals(
    apart: tuple[int, ...], launcher: Launcher, tmp_path: Path
) -> None:
    """The first node listens at the endpoint, and coordinates."""
    many = 3
    stays = next(rank for rank in range(many) if rank not in apart)
    case = Returning(shape="range", ranks=many)
    expected = undisturbed(case, tmp_path / "plain")
    with net(many, f"back{os.getpid()}") as hosts:
        job = Training(launcher, case, tmp_path / "out", nodes=many, hosts=hosts)
        job.await_records("step.commit", 4)

        for rank in apart:
            hosts.unplug(rank)
        job.await_records("replica.lost", len(apart), node=stays)
        for rank in apart:
            hosts.plug(rank)
        job.await_records("replica.prove", len(apart), node=stays)

        same(job.finish(*job.nodes), expected)


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_the_node_at_the_endpoint_comes_back_after_its_power_was_cut(
    launcher: Launcher, tmp_path: Path
) -> None:
    """Nobody has seen its end: it listens again before its host could refuse a connection."""
    case = Returning(shape="range", ranks=3)
    expected = undisturbed(case, tmp_path / "plain")
    with net(3, f"power{os.getpid()}") as hosts:
        job = Training(launcher, case, tmp_path / "out", nodes=3, hosts=hosts)
        job.await_records("step.commit", 4)

        hosts.unplug(0)
        job.nodes[0].send(signal.SIGKILL)
        again = job.launch("--node-rank=0")
        again.expect("nodes meet at")
        leader = job.first_of("replica.lost", 1, 2)
        hosts.plug(0)
        job.await_records("replica.return", node=leader)

        same(job.finish(again, *job.nodes[1:]), expected)
