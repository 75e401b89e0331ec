"""Models on CUDA are served only where that is asked for, and by which way."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ft_collectives.process_group import two_phase
from ft_collectives.process_group.elastic import ElasticGroup
from recoverrun.worker.groups import device_support
from recoverrun.worker.strategies.ddp_buckets import Gradients
from rendezvous.protocol.worker_env import CUDA

GPU = torch.device("cuda", 0)
CPU = torch.device("cpu")


def ddp(*devices: torch.device, elastic: bool = True) -> Any:
    """A stand-in for a DDP module. No GPU is needed to say where a parameter is."""
    group = ElasticGroup.__new__(ElasticGroup) if elastic else object()
    params = [SimpleNamespace(device=device) for device in devices]
    return SimpleNamespace(parameters=lambda: params, process_group=group)


@pytest.mark.parametrize("asked", [None, "", "1", "gloo"])
def test_without_a_word_of_the_user_s_nothing_on_cuda_is_served(
    monkeypatch: pytest.MonkeyPatch, asked: str | None
) -> None:
    monkeypatch.delenv(CUDA, raising=False)
    if asked is not None:
        monkeypatch.setenv(CUDA, asked)

    assert device_support.refusal(ddp(GPU), exact=False, alone=True) == device_support.NOT_ASKED
    assert device_support.refusal(ddp(CPU), exact=True, alone=False) == ""
    assert not device_support.may_be_replaced(object())
    assert device_support.staging(GPU) == CPU


@pytest.mark.parametrize(
    ("module", "exact", "words"),
    [
        (ddp(GPU), False, ""),
        (ddp(GPU, GPU), False, ""),
        (ddp(GPU), True, "--exact"),
        (ddp(GPU, torch.device("cuda", 1)), False, "several accelerators"),
        (ddp(GPU, CPU), False, "not served yet"),
        (ddp(torch.device("xpu", 0)), False, "not served yet"),
        (ddp(GPU, elastic=False), False, "cannot be replaced"),
    ],
)
def test_what_cannot_be_served_is_refused_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, module: Any, exact: bool, words: str
) -> None:
    monkeypatch.setenv(CUDA, "nccl")

    refusal = device_support.refusal(module, exact=exact, alone=True)

    assert words in refusal and bool(refusal) == bool(words)


def test_a_rank_of_a_replica_of_several_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CUDA, "nccl")

    assert "tensor parallelism" in device_support.refusal(ddp(GPU), exact=False, alone=False)


def test_gradients_are_reduced_where_the_user_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CUDA, "nccl")
    assert device_support.staging(GPU) == GPU
    assert device_support.staging(CPU) == CPU

    monkeypatch.setenv(CUDA, "host")
    assert device_support.staging(GPU) == CPU
    assert device_support.communicators(GPU) is None


def test_sums_in_other_memory_are_copied_to_the_gradients() -> None:
    """`meta` is the only other device without a GPU: it shows where a copy goes, not its values."""
    weight = torch.nn.Parameter(torch.ones(3, device="meta"))
    weight.grad = torch.zeros(3, device="meta")

    Gradients(params=[weight], replicas=3).deliver(torch.ones(3))

    assert weight.grad.device.type == "meta"


@pytest.mark.parametrize("protected", [False, True])
def test_destroying_a_protected_group_waits_for_nobody(protected: bool) -> None:
    """torch's NCCL flushes first, which never ends where a member is lost."""
    group, called = ElasticGroup.__new__(ElasticGroup), []
    group.survivors = object() if protected else None
    group.native = SimpleNamespace(shutdown=lambda: called.append("shutdown"))

    group.shutdown()

    assert called == ([] if protected else ["shutdown"])


def test_what_gloo_is_given_is_the_host_s() -> None:
    given = torch.arange(6.0).reshape(2, 3).t()

    copy = two_phase._copy(given)

    assert copy.is_cpu and copy.is_contiguous() and torch.equal(copy, given)
    assert copy.data_ptr() != given.data_ptr()


def test_autograd_is_settled_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.Tensor.backward", lambda *_: pytest.fail("the script's is called"))
    state = torch.get_rng_state()

    with torch.no_grad():
        device_support.settle_autograd()

        assert not torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("asked", "backend", "ours"),
    [
        ("nccl", "nccl", True),
        ("host", "cpu:gloo,cuda:nccl", True),
        ("nccl", "undefined", True),
        ("nccl", "mpi", False),
        ("", "nccl", False),
    ],
)
def test_a_newcomer_makes_the_groups_that_members_have_replaced(
    monkeypatch: pytest.MonkeyPatch, asked: str, backend: str, ours: bool
) -> None:
    monkeypatch.setenv(CUDA, asked)

    assert device_support.makes_replaceable(backend) == ours
