"""The bounds of numbers in messages. A name has one meaning in all messages, and so one bound."""

from collections.abc import Mapping

from rendezvous.protocol.incarnations import BIRTHS

INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1

RANK_MOST = 1 << 24
COUNT_MOST = 1 << 40
SPAN_MOST_S = 1e9
BYTES_MOST = 1 << 46
"""Of one piece of memory."""

BOUNDS: Mapping[str, tuple[int, int]] = {
    "rank": (0, RANK_MOST),
    "root_rank": (-1, RANK_MOST),
    "first_rank": (0, RANK_MOST),
    "first_role_rank": (-1, RANK_MOST),
    "node_rank": (-1, RANK_MOST),
    "nnodes": (1, RANK_MOST),
    "nproc": (0, RANK_MOST),
    "world_size": (1, RANK_MOST),
    "role_world_size": (-1, RANK_MOST),
    "exit_code": (0, 255),
    "code": (-255, 255),
    "pid": (0, 1 << 32),
    "generation": (0, COUNT_MOST),
    "step": (-1, COUNT_MOST),
    "script_step": (-1, COUNT_MOST),
    "script_steps": (-1, COUNT_MOST),
    "held": (0, COUNT_MOST),
    "reduced": (0, COUNT_MOST),
    "microbatches": (0, COUNT_MOST),
    "total": (0, COUNT_MOST),
    "from_step": (-1, COUNT_MOST),
    "back": (-1, COUNT_MOST),
    "attempt": (0, COUNT_MOST),
    "start": (0, COUNT_MOST),
    "starts": (0, COUNT_MOST),
    "incarnation": (0, COUNT_MOST),
    "birth": (0, BIRTHS - 1),
    "births": (0, BIRTHS - 1),
    "often": (0, COUNT_MOST),
    "restarts": (0, COUNT_MOST),
    "serial": (0, INT_MAX),
    "nbytes": (0, BYTES_MOST),
    "bay": (0, INT_MAX),
}
"""What an integer may be, or each of a list, by the name of its field; others have 64 bits."""
