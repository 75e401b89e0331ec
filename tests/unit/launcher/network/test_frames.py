"""Frames for many are encoded once, and go once to each launcher."""

import pytest
import zmq

from recoverrun.launcher.network.frames import NOBODY, Envelope, opened, packets, ranks
from rendezvous.protocol import codec
from rendezvous.protocol.formation_messages import Beat, Roster, Start
from rendezvous.protocol.views import View

VIEW = View(generation=2, live=(0,), live_ranks=(0, 1), losses=(2,))


def _plain(frames: tuple[bytes | zmq.Frame, ...]) -> tuple[bytes, ...]:
    return tuple(bytes(frame) for frame in frames)


def _start(rank: int, peers: tuple[tuple[str, str, int, int], ...]) -> Start:
    return Start(
        generation=1, node_rank=rank, nnodes=2, first_rank=rank, nproc=1, world_size=2,
        master_addr="h:1", nodes=("a", "b"), leader="a", peers=peers,
    )  # fmt: skip


def test_ranks_of_one_launcher_share_a_packet_and_all_launchers_the_same_bytes() -> None:
    envelopes = [
        Envelope("a", 0, VIEW),
        Envelope("a", 1, VIEW),
        Envelope("b", 2, VIEW),
        Envelope("b", NOBODY, VIEW),
    ]

    first, second = packets(envelopes)

    assert (first.to, second.to) == ("a", "b")
    assert first.frames[1] is second.frames[1]
    heads, message = opened(_plain(first.frames))
    assert (ranks(heads), message) == ((0, 1), VIEW)


def test_what_is_said_to_one_launcher_stays_in_order() -> None:
    beat = Beat(node="a", incarnation="a")
    envelopes = [Envelope("a", 0, VIEW), Envelope("a", 0, beat), Envelope("a", 1, VIEW)]

    told = [opened(_plain(packet.frames)) for packet in packets(envelopes)]

    assert [(ranks(heads), message) for heads, message in told] == [
        ((0,), VIEW), ((0,), beat), ((1,), VIEW)
    ]  # fmt: skip


def test_a_start_says_what_is_the_same_for_all_in_a_frame_that_exists_once() -> None:
    peers = (("a", "h", 1, 1), ("b", "h", 2, 1))
    starts = [_start(rank, peers) for rank in (0, 1)]

    one, two = packets([Envelope("a", NOBODY, starts[0]), Envelope("b", NOBODY, starts[1])])

    assert one.frames[1] is two.frames[1]
    assert opened((b"me", *_plain(two.frames))) == ((b"me",), starts[1])
    assert ranks(()) == (NOBODY,)


@pytest.mark.parametrize(
    "frames",
    [
        (),
        (codec.encode(Roster(nodes=(), peers=())),),
        (codec.encode(VIEW), codec.encode(Roster(nodes=(), peers=()))),
    ],
    ids=["nothing", "alone", "beside-another"],
)
def test_a_roster_without_its_start_is_no_message(frames: tuple[bytes, ...]) -> None:
    with pytest.raises(codec.RemoteProtocolError):
        opened(frames)


@pytest.mark.parametrize("address", [b"", b"x", b"1,", b"1,-2", b"1" * 11])
def test_what_is_no_list_of_ranks_is_for_the_launcher(address: bytes) -> None:
    assert ranks((b"me", address)) == (NOBODY,)
