"""The time that a rank took to take its place, told with the first step that it commits."""

from rendezvous.protocol.messages import Committed
from rendezvous.protocol.records import Json, Record

TIMES = ("transfer", "place")
"""Milliseconds: until it had the others' state, and from there to the top of its first step."""


def parts(committed: Committed) -> list[Record]:
    """The journal's line of a rank that has come back, if this is its first step."""
    said = dict(committed.phases)
    if not said.keys() >= {*TIMES, "bytes", "source"}:
        return []
    rank, step = committed.rank, committed.step
    fields: dict[str, Json] = {
        "rank": rank,
        "step": step,
        **{f"{name}_ms": round(said[name], 3) for name in TIMES},
        "first_ms": round(said.get("step", 0.0), 3),
        "bytes": int(said["bytes"]),
        "source": int(said["source"]),
    }
    return [Record("replica.parts", f"rank {rank} has committed its first step again", fields)]
