"""A donor and a newcomer in processes of their own, of which one is killed or stopped."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
import torch

from recoverrun.worker.arrival.state_source import StateLost
from recoverrun.worker.arrival.state_wire import Address
from recoverrun.worker.arrival.transfer import LivePeer, empty, fetch
from tests.sources import ROOT
from tests.unit.donors import STALL_S, offer

LARGE = 20_000_000
"""Elements: 80 MB, of which sockets hold a small part."""

DONOR = f"""
import sys, torch
from recoverrun.worker.arrival.offer import Offer
tensors = [torch.arange({LARGE}, dtype=torch.int32), torch.ones(3), torch.arange({LARGE}).int()]
with Offer("127.0.0.1", {{"of": "another process"}}, tensors, attempt=0, step=4) as offer:
    print(offer.address.host, offer.address.port, offer.address.token.hex(), flush=True)
    sys.stdin.read()
"""

NEWCOMER = """
import sys, torch
from recoverrun.worker.arrival.state_wire import Address
from recoverrun.worker.arrival.transfer import LivePeer
host, port, token = sys.argv[1:]
peer = LivePeer(Address(host, int(port), bytes.fromhex(token)))
peer.ask([0, 1, 2])
peer.read_tensor(0, torch.empty(3))
print("has the first", flush=True)
sys.stdin.read()
"""


@contextmanager
def python(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().split()


def address_of(donor: subprocess.Popen[str]) -> Address:
    host, port, token = said(donor)
    return Address(host, int(port), bytes.fromhex(token))


def test_a_donor_that_is_killed_in_the_middle_is_lost() -> None:
    with python(DONOR) as donor:
        address = address_of(donor)
        manifest, arrived = fetch(address, empty)
        with closing(LivePeer(address)) as peer:
            peer.ask([2, 1, 0])
            peer.read_tensor(2, torch.empty(LARGE, dtype=torch.int32))
            donor.kill()
            donor.wait()
            with pytest.raises(StateLost, match=rf"^the donor at {address.host} port .* is lost"):
                peer.read_tensor(1, torch.empty(3))
                peer.read_tensor(0, torch.empty(LARGE, dtype=torch.int32))
        with pytest.raises(StateLost, match="cannot be reached"):
            LivePeer(address)

    expected = torch.arange(LARGE, dtype=torch.int32)
    assert manifest == {"of": "another process"}
    assert torch.equal(arrived[0], expected) and torch.equal(arrived[2], expected)
    assert torch.equal(arrived[1], torch.ones(3))


@pytest.mark.rest
def test_a_donor_that_is_stopped_is_lost_within_the_limit() -> None:
    stall_s = 2.0
    with python(DONOR) as donor:
        address = address_of(donor)
        with closing(LivePeer(address, stall_s=stall_s)) as peer:
            peer.ask([0, 1, 2])
            donor.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            with pytest.raises(StateLost, match="then nothing$"):
                for number, piece in enumerate(peer.pieces()):
                    peer.read_tensor(number, empty(piece))
            took_s = time.monotonic() - began
        with pytest.raises(StateLost, match="then nothing$"):
            LivePeer(address, stall_s=stall_s)  # the kernel lets it in, and nobody answers

    assert stall_s * 0.9 < took_s < 20 * stall_s


@pytest.mark.rest
def test_another_newcomer_is_served_after_one_that_was_killed_in_the_middle() -> None:
    with offer([torch.ones(3), torch.zeros(LARGE), torch.ones(LARGE)]) as given:
        host, port, token = given.address
        with python(NEWCOMER, host, str(port), token.hex()) as newcomer:
            assert said(newcomer) == ["has", "the", "first"]
            newcomer.kill()
            newcomer.wait()
        _, arrived = fetch(given.address, empty, stall_s=STALL_S)

    assert arrived[2].sum() == LARGE
