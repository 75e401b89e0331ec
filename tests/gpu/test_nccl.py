"""NCCL as `ft_collectives` uses it, on one GPU: alone, and with a peer that is killed.

NCCL takes no two ranks of one device of one host. The peer says that it is on another host.
"""

import os
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import AllreduceOptions, FileStore, HashStore, is_nccl_available

from ft_collectives.communicators import nccl
from ft_collectives.communicators.fabric import Fabric
from ft_collectives.communicators.limits import TimeLimits
from ft_collectives.communicators.nccl import DeviceCommunicator, Nccl, NcclChannel
from rendezvous.protocol.views import View

pytestmark = pytest.mark.gpu

PEER = Path(__file__).parent / "scripts/peer.py"

LONG_CYCLES = 1 << 32  # some two seconds of a GPU's clock


@pytest.fixture
def gpu() -> torch.device:
    if not is_nccl_available():
        pytest.skip("this torch was built without NCCL")
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture
def library(gpu: torch.device) -> Nccl:
    return Nccl(gpu, timedelta(minutes=10))


@pytest.fixture
def over(library: Nccl) -> NcclChannel:
    return NcclChannel(library)


def connected(over: NcclChannel, generation: int) -> DeviceCommunicator:
    link = over.connect(generation, HashStore(), 0, 1, lambda: True)
    assert link is not None
    return link


def flown(over: NcclChannel, link: DeviceCommunicator, tensor: torch.Tensor) -> Any:
    return over._begin_operation(link, lambda group: group.allreduce([tensor], AllreduceOptions()))


def passes(operation: Any, within_s: float) -> bool:
    until = time.monotonic() + within_s
    while not operation.passed() and time.monotonic() < until:
        time.sleep(0.001)
    return bool(operation.passed())


def test_a_communicator_sums_and_says_when(over: NcclChannel, gpu: torch.device) -> None:
    link, tensor = connected(over, 1), torch.arange(4.0, device=gpu)

    operation = flown(over, link, tensor)

    assert passes(operation, 10)
    operation.conclude()
    assert tensor.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_an_event_tells_what_a_future_does_not(over: NcclChannel, gpu: torch.device) -> None:
    """The future is complete at once, the event only after what was enqueued before."""
    link, tensor, works = connected(over, 1), torch.ones(4, device=gpu), []

    def start(group: Any) -> Any:
        torch.cuda._sleep(LONG_CYCLES)
        works.append(group.allreduce([tensor], AllreduceOptions()))
        return works[0]

    operation = over._begin_operation(link, start)

    assert works[0].get_future().done()
    assert not operation.passed()
    assert passes(operation, 30)


def test_an_abort_while_the_stream_is_busy_returns_and_memory_is_kept(
    over: NcclChannel, gpu: torch.device
) -> None:
    link, staging = connected(over, 1), torch.ones(1 << 20, device=gpu)
    torch.cuda._sleep(LONG_CYCLES)
    operation = flown(over, link, staging)
    operation.keep([staging])
    assert over.held_memory.look() != []

    over.drop(before=2)

    assert link.gone.wait(timeout=60)
    assert passes(operation, 60)
    assert over.held_memory.look() == []


def test_a_communicator_is_made_anew_after_an_abort(over: NcclChannel, gpu: torch.device) -> None:
    for generation in range(1, 6):
        link, tensor = connected(over, generation), torch.ones(8, device=gpu)
        operation = flown(over, link, tensor)
        assert passes(operation, 10)
        operation.conclude()
        over.drop(before=generation + 1)
        assert link.gone.wait(timeout=60)
    assert torch.ones(8, device=gpu).sum().item() == 8.0, "the device still computes"


def test_a_member_that_never_comes_is_given_up(over: NcclChannel) -> None:
    """TORCH_NCCL_NONBLOCKING_TIMEOUT is 5 s here."""
    started = time.monotonic()

    with pytest.raises(RuntimeError):
        over.connect(1, HashStore(), 0, 2, lambda: True)

    assert time.monotonic() - started < 60


def test_a_newer_view_ends_the_wait_for_a_member(
    over: NcclChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The builder of the next generation need not wait for the one that hangs."""
    monkeypatch.setattr(nccl, "ABORT_WITHIN_S", 1.0)
    wanted = threading.Event()
    wanted.set()
    builder = threading.Thread(
        target=over.connect, args=(1, HashStore(), 0, 2, wanted.is_set), daemon=True
    )
    builder.start()
    time.sleep(1.0)  # it is inside NCCL, and nobody can tell

    wanted.clear()
    over.drop(before=2)

    assert connected(over, 2).generation == 2


def test_what_a_communicator_is_warmed_up_with_is_nobody_else_s_memory(library: Nccl) -> None:
    """torch lets go of it once another stream waits: NCCL wrote into memory of the script's."""
    before = torch.cuda.memory_allocated()
    group = library.group(HashStore(), 0, 1)
    torch.cuda._sleep(LONG_CYCLES)

    event = library.stamp(group, library.warm_up(group))

    held = torch.cuda.memory_allocated() - before
    assert not event.query()
    assert held > 0
    group.abort()


def test_a_collective_whose_peer_is_killed_hangs_until_the_abort(
    library: Nccl, over: NcclChannel, gpu: torch.device, tmp_path: Path
) -> None:
    """The output after the abort is no sum, and only the error of the communicator says so."""
    with subprocess.Popen(
        [sys.executable, str(PEER), str(tmp_path / "store")],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "NCCL_HOSTID": "the peer's host"},
    ) as peer:  # fmt: skip
        try:
            assert peer.stdout is not None and peer.stdout.readline() == "here\n"
            link = over.connect(1, FileStore(str(tmp_path / "store"), 2), 0, 2, lambda: True)
            assert link is not None
            tensor = torch.ones(1 << 20, device=gpu)
            assert passes(flown(over, link, tensor), 30) and tensor[0].item() == 3.0
            assert peer.stdout.readline() == "3.0\n"
        finally:
            peer.kill()
    tensor = torch.ones(1 << 20, device=gpu)

    operation = flown(over, link, tensor)

    until = time.monotonic() + 30
    while not library.failure(link.group) and time.monotonic() < until:
        assert not operation.passed()
        time.sleep(0.01)
    with pytest.raises(RuntimeError, match="NCCL: (COMM|REMOTE)_ERROR"):
        operation.conclude()
    assert not passes(operation, 2), "an error ends no kernel"
    over.drop(before=2)
    assert link.gone.wait(timeout=60)
    assert passes(operation, 60)
    assert tensor[0].item() != 3.0
    alone, tensor = connected(over, 2), torch.ones(4, device=gpu)
    assert passes(flown(over, alone, tensor), 30)
    assert tensor.tolist() == [1.0] * 4


def test_a_collective_within_a_graph_is_refused(library: Nccl, gpu: torch.device) -> None:
    graph, tensor = torch.cuda.CUDAGraph(), torch.ones(4, device=gpu)
    assert library.refusal() == ""
    with torch.cuda.graph(graph):
        tensor += 1
        inside = library.refusal()
    assert "CUDA graph" in inside


def test_the_fabric_connects_a_device_beside_gloo(over: NcclChannel) -> None:
    """Alone, there is nothing to connect, and nothing to abort."""
    fabric = Fabric(
        rank=0, view=View(generation=1, live=(), live_ranks=(0,), losses=()),
        store=lambda generation: HashStore(), changed=threading.Condition(),
        limits=TimeLimits(lambda: timedelta(seconds=30)), on_hint=lambda generation, reason: None,
    )  # fmt: skip

    channel = fabric.open("gradients0", (0,), over=over)

    assert fabric.meet(channel).device is None
