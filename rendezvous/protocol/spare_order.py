"""The order to a warm spare: the worker that it becomes.

A spare is a process of the launcher that has imported what every worker imports, and waits. What it
is told is all that a worker gets when it is started cold: environment, arguments, streams.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

READY = b"\n"
"""What a spare sends once it can become a worker."""

END = b"\n"
"""What an order ends with: it has none within."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpareOrder:
    """`stdout` and `stderr` are files, "" for the launcher's own stream."""

    environ: Mapping[str, str]
    arguments: tuple[str, ...]
    stdout: str
    stderr: str


def encode(order: SpareOrder) -> bytes:
    """The order as bytes; also of text that is no UTF-8, as Python has it from the system."""
    return json.dumps(asdict(order)).encode() + END


def decode(data: bytes) -> SpareOrder:
    """The order of a launcher, which is believed. Raises ValueError if it is cut."""
    found = json.loads(data)
    return SpareOrder(
        environ=found["environ"],
        arguments=tuple(found["arguments"]),
        stdout=found["stdout"],
        stderr=found["stderr"],
    )
