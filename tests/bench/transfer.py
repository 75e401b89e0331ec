"""`python -m tests.bench.transfer`: state from a donor's memory into a newcomer's, over loopback.

Beside each transfer the same bytes are copied within the newcomer: both into memory that is in use,
and both into memory that nobody has touched yet, where the kernel first has to clear each page.
"""

import argparse
import mmap
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass, field

import psutil
import torch

from recoverrun.worker.arrival.offer import Offer
from recoverrun.worker.arrival.state_source import Piece
from recoverrun.worker.arrival.state_wire import Address
from recoverrun.worker.arrival.transfer import LivePeer
from tests.bench import jobs, machine
from tests.bench.machine import Pair, median

LARGE = 30
SMALL = 200  # biases, norms, counts of steps
SMALL_ELEMENTS = 256
GOAL_GB_PER_S = 1.0


def state(total_mb: int) -> list[torch.Tensor]:
    large = [torch.randn(total_mb * 250_000 // LARGE) for _ in range(LARGE)]
    return large + [torch.randn(SMALL_ELEMENTS) for _ in range(SMALL)]


def serve(total_mb: int) -> None:
    """The donor: until its input ends."""
    with Offer("127.0.0.1", {}, state(total_mb), attempt=0, step=0) as offer:
        host, port, token = offer.address
        print(host, port, token.hex(), flush=True)
        sys.stdin.read()


def untouched(piece: Piece) -> torch.Tensor:
    """From the kernel; the C library would hand out memory again that was in use."""
    memory = mmap.mmap(-1, piece.nbytes)
    return torch.frombuffer(memory, dtype=getattr(torch, piece.dtype))


def received(address: Address, into: list[torch.Tensor]) -> Pair:
    """Seconds of wall time, and of this side's CPU, in which all tensors come in."""
    with closing(LivePeer(address)) as peer:
        began = time.monotonic(), time.thread_time()
        peer.ask(range(len(into)))
        for number, tensor in enumerate(into):
            peer.read_tensor(number, tensor)
        return time.monotonic() - began[0], time.thread_time() - began[1]


def copied(source: list[torch.Tensor], into: list[torch.Tensor]) -> Pair:
    """The same by memcpy."""
    began = time.monotonic(), time.thread_time()
    for one, other in zip(source, into, strict=True):
        other.copy_(one)
    return time.monotonic() - began[0], time.thread_time() - began[1]


@dataclass(slots=True)
class Measured:
    """Milliseconds of (transfer, copy) in each round."""

    wall: list[Pair] = field(default_factory=list)
    cpu: list[Pair] = field(default_factory=list)  # of the receiving thread

    def add(self, ours: Pair, copy: Pair) -> None:
        self.wall.append((1000 * ours[0], 1000 * copy[0]))
        self.cpu.append((1000 * ours[1], 1000 * copy[1]))


def measure(address: Address, rounds: int) -> dict[str, Measured]:
    """By the memory that is filled."""
    found = {"in use": Measured(), "untouched": Measured()}
    with closing(LivePeer(address)) as peer:
        pieces = peer.pieces()
    mine, other = ([untouched(piece).zero_() for piece in pieces] for _ in range(2))
    for turn in range(rounds + 1):
        used = received(address, mine), copied(mine, other)
        new = (
            received(address, [untouched(piece) for piece in pieces]),
            copied(mine, [untouched(piece) for piece in pieces]),
        )
        if turn:  # the first one warms both sides
            found["in use"].add(*used)
            found["untouched"].add(*new)
    return found


def row(name: str, measured: Measured, total_mb: int) -> list[str]:
    cells = [name]
    for pairs in (measured.wall, measured.cpu):
        cells += [machine.spread([pair[at] for pair in pairs], 0) for at in (0, 1)]
        cells.append(f"{machine.ratio(pairs):.2f}")
    return [*cells, f"{rate(measured, total_mb):.2f}"]


def rate(measured: Measured, total_mb: int) -> float:
    """GB/s."""
    return total_mb / median([ours for ours, _ in measured.wall])


def show(total_mb: int, rounds: int) -> None:
    machine.heading("transfer", f"{total_mb} MB in {LARGE} tensors, and {SMALL} small ones")
    donor = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.transfer", "--donor", f"--mb={total_mb}"],
        env=jobs.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert donor.stdout is not None
        host, port, token = donor.stdout.readline().split()
        address = Address(host, int(port), bytes.fromhex(token))
        before = sum(psutil.Process(donor.pid).cpu_times()[:2])
        found = measure(address, rounds)
        cpu_s = sum(psutil.Process(donor.pid).cpu_times()[:2]) - before
    finally:
        donor.kill()
        donor.wait()
    head = ["memory", "transfer, ms", "copy, ms", "ratio", "CPU of it", "copy", "ratio", "GB/s"]
    machine.table(head, [row(name, one, total_mb) for name, one in found.items()])
    print(f"CPU of the donor: {1000 * cpu_s / (2 * rounds + 2):.0f} ms for each transfer")
    met = rate(found["in use"], total_mb) >= GOAL_GB_PER_S
    machine.goal(f"{GOAL_GB_PER_S:g} GB/s into memory in use", met)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.transfer")
    parser.add_argument("--mb", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--donor", action="store_true", help="of the benchmark itself")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.donor:
        serve(args.mb)
    else:
        show(args.mb, args.rounds)


if __name__ == "__main__":
    main()
