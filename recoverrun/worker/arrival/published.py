"""The entries of the job's store for a fresh process, before the script's first line.

| key | holds |
|---|---|
| `arrival/path` | how the others train (`TrainingPlace`) |
| `arrival/record/SHARD` | results of collectives before these loops (`prologue_record`) |
| `arrival/values/SHARD` | values that loops which are over have changed (`early_values`) |
| `arrival/sources/RANK` | the code that this rank runs (`OwnSources`) |
| `arrival/GENERATION/RANK` | where its packed state is in that generation, or why there is none |
"""

from dataclasses import dataclass
from typing import Any

import msgpack

from recoverrun.worker.arrival.passed_loops import PassedLoop
from recoverrun.worker.arrival.state_wire import Address
from rendezvous.protocol.layout import Layout

PATH = "arrival/path"


@dataclass(frozen=True, slots=True)
class TrainingPlace:
    """The place at which the others train."""

    strategy: str  # its name
    layout: Layout
    path: tuple[str, ...]  # ids of loops, the outermost first
    began: float = 0.0  # wall clock, in seconds, before the script's first line
    passed: tuple[PassedLoop, ...] = ()  # loops that have trained, and are over


def record_key(shard: int) -> str:
    return f"arrival/record/{shard}"


def values_key(shard: int) -> str:
    return f"arrival/values/{shard}"


def sources_key(rank: int) -> str:
    return f"arrival/sources/{rank}"


def address_key(generation: int, rank: int) -> str:
    return f"arrival/{generation}/{rank}"


def packed(way: TrainingPlace) -> bytes:
    told = {
        "strategy": way.strategy,
        "replicas": [list(one) for one in way.layout.replicas],
        "path": list(way.path),
        "began": way.began,
        "passed": [one.pack() for one in way.passed],
    }
    return bytes(msgpack.packb(told, use_bin_type=True))


def unpacked(told: bytes) -> TrainingPlace:
    known: dict[str, Any] = msgpack.unpackb(told, raw=False)
    layout = Layout(tuple(tuple(one) for one in known["replicas"]))
    passed = tuple(map(PassedLoop.unpack, known["passed"]))
    return TrainingPlace(known["strategy"], layout, tuple(known["path"]), known["began"], passed)


def packed_values(values: list[Any]) -> bytes:
    """Entries of `plain_values.pack` that need no tensors."""
    return bytes(msgpack.packb(values, use_bin_type=True))


def unpacked_values(told: bytes) -> list[Any]:
    values: list[Any] = msgpack.unpackb(told, raw=False)
    return values


def packed_word(word: Address | str) -> bytes:
    """The words of a donor for its newcomer: where its packed state is, or why there is none."""
    return bytes(msgpack.packb(word, use_bin_type=True))


def unpacked_word(told: bytes) -> Address | str:
    word = msgpack.unpackb(told, raw=False)
    return word if isinstance(word, str) else Address(*word)
