"""The bounds of numbers in a journal: a reader believes no other, and skips the line.

A journal is input, and the numbers in it say how much there is of something. Numbers have bounds by
the name of their field, as in messages; what is within a field in lists and by keys has the bounds
of that field. Readers rely on a number being one that can be counted with. They make no loop and no
list as long as one says: only as long as the lines are.
"""

from collections.abc import Mapping

from rendezvous.protocol.number_bounds import COUNT_MOST, RANK_MOST
from rendezvous.protocol.records import Json

Bound = tuple[int, int]

PID_MOST = 1 << 31

RANK: Bound = (-1, RANK_MOST)
COUNT: Bound = (-1, COUNT_MOST)
NO_NUMBER: Bound = (0, 0)  # Text, flags and fractions.
ANY: Bound = (-(1 << 53), 1 << 53)
"""What a field may hold that this version does not know."""

BOUNDS: Mapping[str, Bound] = {
    **dict.fromkeys(
        (
            "rank", "ranks", "root_rank", "root_ranks", "lost_ranks", "unseen", "replicas", "live",
            "slot", "slots", "joined", "waiting", "world_size", "nnodes", "nproc", "min_replicas",
            "source",
        ),
        RANK,
    ),
    **dict.fromkeys(
        (
            "attempt", "restarts", "of", "incarnation", "round", "tenure", "number", "generation",
            "step", "microbatches", "total", "quota", "done", "redone", "inferred", "targets",
            "records", "hang", "steps", "back", "script_step", "script_steps",
            "parity", "rebuilt",
        ),
        COUNT,
    ),
    **dict.fromkeys(("pid", "exit_code", "code", "signal"), (-PID_MOST, PID_MOST)),
    **dict.fromkeys(
        (
            "ms", "detect_ms", "agree_ms", "rebuild_ms", "redo_ms", "reduce_ms", "vote_ms",
            "total_ms", "wait_ms", "hold_ms", "since", "age_ms", "lag_ms", "lag_s", "limit_s",
            "quiet_s", "silent_s", "score", "transfer_ms", "place_ms", "first_ms", "bytes",
            "data_ms", "alone_ms", "checkpoint_ms", "imbalance_ms", "away_ms", "end_ms", "state_ms",
        ),
        ANY,
    ),
    **dict.fromkeys(
        (
            "run_id", "argv", "version", "inject", "nodes", "name", "torch", "ours", "oom", "error",
            "strategy", "promise", "verdict", "invariant", "event", "root_node", "folder", "phase",
            "where", "proof", "kind", "part", "outvoted", "inherited", "place", "former",
        ),
        NO_NUMBER,
    ),
}  # fmt: skip
"""By the name of the field."""

KEY_DIGITS = len(str(RANK_MOST))
"""Keys that are numbers are those of replicas."""


def beyond(fields: Mapping[str, Json]) -> str:
    """The first number that no run can have, with the name of its field; "" if there is none."""
    for name, value in fields.items():
        least, most = BOUNDS.get(name, ANY)
        todo = [value]
        while todo:
            one = todo.pop()
            if isinstance(one, list):
                todo += one
            elif isinstance(one, dict):
                todo += one.values()
                for key in one:
                    if len(key) > KEY_DIGITS and key.isdecimal():
                        return f"{name[:64]} of {key[:24]}"
            elif isinstance(one, bool):
                pass
            elif isinstance(one, int) and not least <= one <= most:
                return f"{name[:64]} {str(one)[:24]}"
    return ""
