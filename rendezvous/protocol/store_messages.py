"""The messages of the c10d store: an operation of a worker, and its answer."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCall:
    """W -> C: one operation of the c10d store. `serial` pairs the answer with the caller.

    `generation` 0 calls live as long as the job; others are failed when a newer View exists.
    """

    rank: int
    serial: int
    generation: int
    op: Literal[
        "set", "get", "wait", "add", "cas", "delete", "check", "count", "append", "mset", "mget"
    ]
    keys: tuple[str, ...]
    values: tuple[bytes, ...]
    amount: int
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAnswer:
    """C -> W: `status` is "ok", "timeout" or "superseded" (a newer generation exists)."""

    rank: int
    serial: int
    status: Literal["ok", "timeout", "superseded"]
    values: tuple[bytes, ...]
    number: int
