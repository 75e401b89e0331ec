"""What is known of a lost replica, and what it means for the job's exit code."""

from collections.abc import Iterable
from dataclasses import dataclass

from rendezvous.protocol.effects import Json, Record
from rendezvous.protocol.layout import Layout
from rendezvous.protocol.messages import Exited

CODE_LIMIT = 80
"""Exit codes from here on have a meaning of our own; a worker's is reported as 1."""


SIGNALLED = 128
"""The exit code of a process that a signal ended is this and its number, to shells and to us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """One lost replica; `lost_at` is in seconds of the coordinator's clock."""

    slot: int  # -1 while the topology is unknown
    root_rank: int
    code: int  # exit code of the root rank, negative for a signal
    generation: int  # that begins without it
    lost_at: float
    detected_s: float
    error: str
    reason: str

    @classmethod
    def of_exit(
        cls, exited: Exited, *, layout: Layout | None, generation: int, now: float
    ) -> "Loss":
        return cls(
            slot=-1 if layout is None else layout.slot(exited.rank),
            root_rank=exited.rank,
            code=exited.code,
            generation=generation,
            lost_at=now,
            detected_s=exited.detected_s,
            error=exited.error,
            reason=f"rank {exited.rank} {_cause(exited.code, exited.error)}",
        )

    @classmethod
    def of_node(
        cls, rank: int, reason: str, *, layout: Layout | None, generation: int, now: float
    ) -> "Loss":
        """Its launcher is gone: nobody knows how the worker ended, and it may never be reaped."""
        return cls(
            slot=-1 if layout is None else layout.slot(rank),
            root_rank=rank,
            code=-9,
            generation=generation,
            lost_at=now,
            detected_s=0.0,
            error="",
            reason=reason,
        )

    def twin(self, others: Iterable["Loss"], committed_at: float) -> "Loss | None":
        """A loss of another replica by the same exception, with no step committed since."""
        for other in others:
            same = other.slot != self.slot and other.error == self.error != ""
            if same and committed_at <= other.lost_at:
                return other
        return None

    def record(self, layout: Layout) -> Record:
        fields: dict[str, Json] = {
            "slot": self.slot,
            "root_rank": self.root_rank,
            "ranks": list(layout.replicas[self.slot]),
            "generation": self.generation,
        }
        return Record("replica.lost", self.reason, fields)


def exit_code(code: int) -> int:
    """The job's exit code for a worker's: 128 + signal, or its own below 80, else 1."""
    if code < 0:
        return SIGNALLED - code
    return code if code < CODE_LIMIT else 1


def _cause(code: int, error: str) -> str:
    if code < 0:
        return f"was ended by signal {-code}"
    return f"exited with code {code}" + (f": {error}" if error else "")
