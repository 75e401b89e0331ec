"""One microbatch of a lost slot that this rank makes up, and its gradients, apart from its own."""

from dataclasses import dataclass

from ft_collectives.step.reducer import Piece, Reducer
from recoverrun.worker.replay.executed import Executed
from recoverrun.worker.replay.known_state import KnownState
from recoverrun.worker.step.worker_state import WorkerState
from rendezvous.protocol.views import Identity


@dataclass(slots=True)
class MadeMicrobatch:
    """One microbatch of a lost slot that this rank has made up."""

    identity: Identity
    rank: int
    pieces: list[tuple[Reducer, Piece]]
    start: KnownState | None = None  # where the lost rank stood; None: made up with fresh data
    executed: Executed | None = None
    failed: str = ""  # why it is to be made up with fresh data
    fresh: bool = False  # its pieces are of other data


class Apart:
    """A scope in which gradients are those of a microbatch that is made up."""

    def __init__(self, worker: WorkerState) -> None:
        self._strategy = worker.protection.strategy

    def __enter__(self) -> "Apart":
        self._kept = self._strategy.set_aside()
        return self

    def __exit__(self, *_: object) -> None:
        self._strategy.put_back(self._kept)

    def pieces(self, *, carried: bool) -> list[tuple[Reducer, Piece]]:
        """The finished parts so far; with what all ranks had before, if `carried`."""
        return [(one, one.piece(carried)) for one in self._strategy.reducers()]
