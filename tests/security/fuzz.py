"""Damaged frames by the thousand, through the same steps as in a launcher; nothing may crash.

`python -m tests.security.fuzz --frames 1000000 --seed 7`. A frame is a good message with bits
turned, parts cut, doubled or swapped, a field replaced by a hostile value, or plain noise. One in
five is whole: what is allowed on the wire must not crash what is behind it. Most go straight to
the wire and the coordinator host. One in ten goes over the network to a host in a process of its
own, while a good peer measures its round trips. A failure prints the seed, and the frame in hex.
"""

import argparse
import random
import sys
import tempfile
import time
import typing
from pathlib import Path

import msgpack

from recoverrun.launcher.leadership.coordinator_host import CoordinatorHost
from rendezvous.protocol import codec, number_bounds
from rendezvous.protocol.messages import Message
from rendezvous.protocol.records import Record
from tests.security.arena import Arena, Peer, close_stations
from tests.security.host import join_of, make_coordinator_host

OWN, MEMBERS = "0" * 16, ("1" * 16, "2" * 16)
HOSTILE: tuple[object, ...] = (
    None, True, -1, 0, 2**31, 2**63, -(2**63), 2**64 - 1, 0.5, float("nan"), float("inf"), 1e308,
    "", "x" * 70_000, "\x1b[2J", "../../etc/passwd", b"", b"\x00" * 1000, [], {}, [[]], {"a": 1},
    [0] * 5000, [[0, 0]] * 100, msgpack.ExtType(1, b"x"), msgpack.Timestamp(1, 2),
)  # fmt: skip


def _good(kind: type, rng: random.Random) -> dict[str, object]:
    """A message of this kind with values that the wire allows."""
    hints = typing.get_type_hints(kind)
    fields = {name: _value(hint, name, rng) for name, hint in hints.items()}
    return {"v": codec.PROTOCOL, "k": kind.__name__, **fields}


def _value(hint: object, name: str, rng: random.Random) -> object:
    if hint is int:
        least, most = number_bounds.BOUNDS.get(name, (number_bounds.INT_MIN, number_bounds.INT_MAX))
        # Mostly small: large ones are of no rank, and are not heard.
        return rng.choice((least, most, max(least, 0), *(max(least, n) for n in range(1, 7))))
    if hint is float:
        return rng.choice(
            (0.0, 0.5, 30.0, number_bounds.SPAN_MOST_S if name.endswith("_s") else 1e300)
        )
    if hint is str:
        return rng.choice(("", "job", *MEMBERS, "train.py", "x" * 100, "\x1b[0m"))
    if hint is bytes:
        return rng.randbytes(rng.randrange(20))
    if hint is bool:
        return rng.random() < 0.5
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return rng.choice(arguments)
    if arguments[1:] == (Ellipsis,):
        return [_value(arguments[0], name, rng) for _ in range(rng.randrange(4))]
    return [_value(argument, name, rng) for argument in arguments]


def frame(rng: random.Random) -> bytes:
    """One frame, whole or damaged."""
    content = _good(rng.choice(typing.get_args(Message)), rng)
    how = rng.randrange(10)
    if how in (2, 3):
        content[rng.choice(list(content))] = rng.choice(HOSTILE)
    elif how == 4:
        del content[rng.choice(list(content))]
    elif how == 5:
        content[rng.choice(("more", "rank", "k"))] = rng.choice(HOSTILE)
    data = bytearray(msgpack.packb(content))
    if how == 6:
        for _ in range(rng.randrange(1, 5)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif how == 7:
        del data[rng.randrange(len(data)) :]
    elif how == 8:
        cut = rng.randrange(len(data))
        data[cut:cut] = data[rng.randrange(len(data)) :]
    elif how == 9:
        return rng.randbytes(rng.randrange(300))
    return bytes(data)


class Target:
    """A coordinator host with a job of three nodes, renewed when the job has ended."""

    def __init__(self) -> None:
        self.jobs = 0
        self.messages = 0
        self._records: list[Record] = []
        self._coordinator_host: CoordinatorHost = self._formed()

    def _formed(self) -> CoordinatorHost:
        self.jobs += 1
        self._records = []
        coordinator_host = make_coordinator_host(OWN, self._records)
        for number, member in enumerate(MEMBERS):
            coordinator_host.receive(member, join_of(member, f"n{number}"), time.monotonic())
        return coordinator_host

    def take(self, data: bytes, rng: random.Random) -> None:
        """Any exception but a refusal goes up, and ends the fuzzing."""
        try:
            message = codec.decode(data)
        except codec.RemoteProtocolError as error:
            assert len(str(error)) < 500, "a refusal is one sentence"
            return
        self.messages += 1
        now = time.monotonic()
        sender = rng.choice((*MEMBERS, "3" * 16))
        for envelope in self._coordinator_host.receive(sender, message, now):
            codec.encode(envelope.message)
        self._coordinator_host.tick(now)
        self._coordinator_host.deadline()
        del self._records[:]
        if self._coordinator_host.stopped is not None or rng.random() < 0.001:
            self._coordinator_host = self._formed()


def straight(frames: int, seed: int) -> Target:
    """Wire and coordinator host in this process."""
    rng, target = random.Random(seed), Target()
    for number in range(frames):
        data = frame(rng)
        try:
            target.take(data, rng)
        except BaseException:  # Whatever it is, somebody must be able to do it again.
            print(f"seed {seed}, frame {number}: {data.hex()}", file=sys.stderr)
            raise
    return target


def over_the_network(frames: int, seed: int, arena: Arena) -> None:
    """To a host of its own, which has to answer a good peer throughout."""
    rng = random.Random(seed)
    peer: Peer = arena.peer()
    with arena.attack(growth_mb=64):
        until = time.monotonic()
        for number in range(frames):
            if number % 500 == 499:
                # Slower than what ends in being cut off: that is another test.
                until += 0.1
                peer.station.wait(max(0.0, until - time.monotonic()))
                while peer.dealer.receive() is not None:
                    pass
            peer.send(*[frame(rng) for _ in range(rng.choice((1, 1, 1, 2, 7)))])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--frames", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    began = time.monotonic()
    target = straight(given.frames * 9 // 10, given.seed)
    print(f"{target.messages} of {given.frames * 9 // 10} frames were messages, {target.jobs} jobs")
    with tempfile.TemporaryDirectory() as directory:
        arena = Arena(Path(directory))
        try:
            over_the_network(given.frames // 10, given.seed, arena)
        finally:
            close_stations()
            arena.close()
    trips = sorted(arena.good.trips_ms)
    p50, p99 = (trips[len(trips) * part // 100] for part in (50, 99))
    print(f"{given.frames // 10} over the network: good peer p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    print(f"no crash, seed {given.seed}, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
