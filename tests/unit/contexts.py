"""Contexts, loops and points as a script would have made them, for tests."""

from typing import Any

import torch

from recoverrun.worker.context.slot_context import Context, Kind
from recoverrun.worker.instrumentation import Loop
from recoverrun.worker.rng.streams import Streams, read_streams

LOOP = "train.py:1"


def loop(name: str = LOOP, **different: Any) -> Loop:
    none: frozenset[str] = frozenset()
    usual: dict[str, Any] = {
        "id": name,
        "kind": "for",
        "filename": "train.py",
        "line": 1,
        "last_line": 1 << 20,
        "module_level": False,
        "qualname": "main",
        "assigned": none,
        "live_in": none,
        "carried": none,
        "targets": none,
        "global_names": none,
        "item_code": None,
        "body_code": None,
        "refusal": "",
    }
    return Loop(**{**usual, **different})


def at(
    step: int,
    index: int = 0,
    kind: Kind = "top",
    attempt: int = 0,
    *,
    streams: Streams | None = None,
    names: dict[str, Any] | None = None,
    **more: Any,
) -> Context:
    """A rank's context at that point."""
    fields: dict[str, Any] = {"loop": LOOP, "names": names or {}, **more}
    return Context(
        step=step,
        index=index,
        kind=kind,
        attempt=attempt,
        streams=streams or read_streams(),
        **fields,
    )


def draw(count: int) -> None:
    """So many numbers of torch's stream."""
    torch.empty(count, dtype=torch.int32).random_()


def stream(seed: int, drawn: int) -> Streams:
    """Torch's stream seeded, and so many numbers drawn; others as they are now."""
    torch.manual_seed(seed)
    draw(drawn)
    return read_streams()
