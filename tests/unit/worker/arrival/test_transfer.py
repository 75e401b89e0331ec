"""The state of a donor over loopback, and what a newcomer does if that has changed."""

import struct
from collections.abc import Callable
from contextlib import closing

import pytest
import torch

from recoverrun.worker.arrival.offer import Offer
from recoverrun.worker.arrival.packing import pack, unpack
from recoverrun.worker.arrival.state_source import StateLost, StateSource
from recoverrun.worker.arrival.tensor_memory import memory_of
from recoverrun.worker.arrival.transfer import empty, fetch
from tests.unit.donors import STALL_S, come, offer

TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "matrix": lambda: torch.randn(30, 7),
    "no dimensions": lambda: torch.tensor(2.5, dtype=torch.float64),
    "no elements": lambda: torch.empty(0, 3),
    "half": lambda: torch.randn(5).to(torch.bfloat16),
    "flags": lambda: torch.tensor([True, False, True]),
    "integers": lambda: torch.arange(5),
    "complex": lambda: torch.randn(3, dtype=torch.complex64),
    "conjugate": lambda: torch.randn(3, dtype=torch.complex64).conj(),
    "turned": lambda: torch.randn(4, 6).T,
    "channels last": lambda: torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
    "part of a larger one": lambda: torch.arange(10)[3:7],
    "every other": lambda: torch.arange(10)[::2],
    "one row many times": lambda: torch.arange(3).expand(4, 3),
    "parameter": lambda: torch.nn.Parameter(torch.randn(3)),
    "several megabytes": lambda: torch.randn(3_000_000),
    "of inference": lambda: torch.inference_mode()(torch.ones)(3),
}


# ------------------------------------------------------------------------- what arrives


def test_all_kinds_of_tensors_arrive_bit_for_bit() -> None:
    tensors = [make() for make in TENSORS.values()]
    with offer(tensors, manifest={"a": [1, "x", b"y"]}, names=list(TENSORS)) as given:
        manifest, arrived = fetch(given.address, empty, stall_s=STALL_S)

    assert manifest == {"a": [1, "x", b"y"]}
    for name, sent, found in zip(TENSORS, tensors, arrived, strict=True):
        assert sent.dtype == found.dtype and torch.equal(sent, found), name


def test_the_state_of_an_optimizer_arrives_by_way_of_its_manifest() -> None:
    model = torch.nn.Linear(4, 4)
    adam = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 4)).sum().backward()
    adam.step()
    tensors: list[torch.Tensor] = []
    plain = pack(adam.state_dict(), tensors)
    with offer(tensors, manifest={"optimizer": plain}) as given:
        manifest, arrived = fetch(given.address, empty, stall_s=STALL_S)

    found, sent = unpack(manifest["optimizer"], arrived), adam.state_dict()
    assert found["param_groups"] == sent["param_groups"]
    for number, state in sent["state"].items():
        for name, value in state.items():
            assert torch.equal(found["state"][number][name], value)


@pytest.mark.parametrize("name", [name for name in TENSORS if name != "one row many times"])
def test_a_tensor_of_any_layout_is_received_into(name: str) -> None:
    sent, into = TENSORS[name](), TENSORS[name]()
    with offer([sent]) as given:
        _, (found,) = fetch(given.address, lambda _: into, stall_s=STALL_S)

    assert found is into and found.stride() == sent.stride() and torch.equal(found, sent)


def test_a_live_peer_is_a_state_source() -> None:
    with offer([torch.arange(4)], attempt=2, step=9, names=["w"]) as given:
        source: StateSource = come(given)
        into = bytearray(32)
        source.read(0, memoryview(into))
        for _ in range(2):
            source.close()
            with pytest.raises(StateLost, match="closed here"):
                source.read(0, memoryview(into))

    assert (source.attempt, source.step, dict(source.manifest())) == (2, 9, {})
    (piece,) = source.pieces()
    assert (piece.name, piece.dtype, piece.shape, piece.nbytes) == ("w", "int64", (4,), 32)
    assert struct.unpack("@4q", into) == (0, 1, 2, 3)


def test_pieces_come_in_the_order_in_which_they_are_asked_for() -> None:
    tensors = [torch.full((3,), float(n)) for n in range(5)]
    found = {n: torch.empty(3) for n in range(5)}
    with offer(tensors) as given, closing(come(given)) as peer:
        peer.read_tensor(2, found[2])
        peer.ask([4, 0])
        peer.read_tensor(4, found[4])
        with pytest.raises(ValueError, match="piece 0 comes next, not 3"):
            peer.read_tensor(3, found[3])
        with pytest.raises(ValueError, match="piece 0 was asked for"):
            peer.ask([1])
        peer.read_tensor(0, found[0])
        peer.read_tensor(3, found[3])

    assert {n: one[0].item() for n, one in found.items() if n != 1} == {0: 0, 2: 2, 3: 3, 4: 4}


def test_state_without_tensors_is_a_manifest() -> None:
    with offer([], manifest={"x": 1}) as given:
        assert fetch(given.address, empty, stall_s=STALL_S) == ({"x": 1}, [])


def test_an_ipv6_address_is_served() -> None:
    with Offer("::1", {}, [torch.ones(2)], attempt=0, step=0, stall_s=STALL_S) as given:
        _, (found,) = fetch(given.address, empty, stall_s=STALL_S)

    assert torch.equal(found, torch.ones(2))


def test_nothing_is_copied_by_an_offer() -> None:
    tensor = torch.zeros(4)
    with offer([tensor]) as given:
        memory_of(tensor)[:4] = struct.pack("@f", 5.0)  # which torch does not count
        _, (found,) = fetch(given.address, empty, stall_s=STALL_S)

    assert found.tolist() == [5.0, 0.0, 0.0, 0.0]


# ------------------------------------------------------------------- what is not as it was


def test_of_a_tensor_that_has_changed_nothing_is_sent() -> None:
    first, second = torch.zeros(3), torch.zeros(2, 2)
    with offer([first, second], names=["bias", "weight"]) as given, closing(come(given)) as peer:
        second.add_(1)
        with pytest.raises(StateLost, match="^weight changed while it was sent$"):
            peer.ask([1, 0])
        for _ in range(2):
            with pytest.raises(StateLost, match="^weight changed while it was sent$"):
                peer.read_tensor(0, torch.empty(3))
        assert given.sent_bytes == 0


def test_a_tensor_that_changes_between_two_transfers_is_lost() -> None:
    first, second = torch.zeros(2, 2), torch.zeros(3)
    with offer([first, second], names=["weight", "bias"]) as given, closing(come(given)) as peer:
        peer.read_tensor(0, torch.empty(2, 2))
        first.add_(1)
        peer.read_tensor(1, torch.empty(3))
        with pytest.raises(StateLost, match="^weight changed while it was sent$"):
            peer.read_tensor(0, torch.empty(2, 2))


def test_the_last_mark_finds_a_tensor_that_changed_long_after_it_was_sent() -> None:
    """The socket holds a part of the second piece back until the first was changed."""
    tensors = [torch.zeros(10), torch.zeros(20_000_000), torch.zeros(10)]
    with offer(tensors, names=["first", "large", "last"]) as given, closing(come(given)) as peer:
        peer.ask([0, 1, 2])
        peer.read_tensor(0, torch.empty(10))
        tensors[0].add_(1)
        peer.read_tensor(1, torch.empty(20_000_000))
        with pytest.raises(StateLost, match="^first changed"):
            peer.read_tensor(2, torch.empty(10))


def test_a_step_of_an_optimizer_without_gradients_counts_as_a_change() -> None:
    weight = torch.nn.Parameter(torch.zeros(3))
    adam = torch.optim.AdamW([weight])
    weight.sum().backward()
    with offer([weight]) as given, closing(come(given)) as peer:
        adam.step()
        with pytest.raises(StateLost, match="changed"):
            peer.read_tensor(0, torch.empty(3))


def test_a_parameter_that_is_pointed_elsewhere_is_sent_as_it_was() -> None:
    weight = torch.nn.Parameter(torch.zeros(3))
    with offer([weight]) as given:
        weight.data = torch.ones(5)
        _, (found,) = fetch(given.address, empty, stall_s=STALL_S)

    assert torch.equal(found, torch.zeros(3))


@pytest.mark.parametrize(
    "tensor", [torch.ones(2, device="meta"), torch.eye(2).to_sparse()], ids=["meta", "sparse"]
)
def test_what_cannot_be_sent_is_not_offered(tensor: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="cannot be sent"):
        offer([tensor])


@pytest.mark.parametrize("into", [torch.empty(4), torch.empty(3, dtype=torch.int32)])
def test_a_tensor_that_is_not_as_its_piece_is_refused(into: torch.Tensor) -> None:
    with offer([torch.ones(3)]) as given, pytest.raises(ValueError, match="float32"):
        fetch(given.address, lambda _: into, stall_s=STALL_S)


def test_memory_of_another_size_is_refused() -> None:
    with offer([torch.ones(3)]) as given, closing(come(given)) as peer:
        with pytest.raises(ValueError, match="into 11 bytes"):
            peer.read(0, memoryview(bytearray(11)))
        peer.read(0, memoryview(bytearray(12)))
