"""Losses as a replica comes back: each phase of an arrival times each kind of loss, as data."""

from collections.abc import Iterator
from dataclasses import dataclass

from tests.e2e.returns import Returning

LOST = "r1@step:6:backward"
"""How it begins, unless a cell says otherwise: replica 1 is lost, and will come back."""

WAY = ("prologue", "ready", "receive", "wind", "place")
FIRST_STEP = ("forward", "backward", "reduce", "vote", "between")
MEMBER = ("hold", *FIRST_STEP)

DDP2, DDP3 = {"ranks": 2, "shards": 0}, {"ranks": 3, "shards": 0}
FSDP, FSDP3 = {"ranks": 4, "shards": 2}, {"ranks": 3, "shards": 1}


@dataclass(frozen=True, slots=True)
class Cell:
    """One run: `kills` strike, and in the end all replicas train again."""

    kind: str
    job: Returning

    @property
    def kills(self) -> tuple[str, ...]:
        return tuple(self.job.kills.split(","))

    @property
    def id(self) -> str:
        shape = f"{'fsdp' if self.job.shards else 'ddp'}{self.job.ranks}"
        return f"{self.kind}-{shape}-{self.kills[-1].replace('@', '-').replace(':', '-')}"


def cell(kind: str, shape: dict[str, int], *kills: str) -> Cell:
    return Cell(kind, Returning(shape="range", kills=",".join(kills), **shape))


def again() -> Iterator[Cell]:
    """The newcomer is lost once more."""
    for phase in (*WAY, *FIRST_STEP):
        yield cell("again", DDP2, LOST, f"r1@return:{phase}")
        yield cell("again", FSDP, "r3@step:6:backward", f"r3@return:{phase}")
    # Its mate, which nobody was to lose.
    yield cell("again", FSDP, "r3@step:6:backward", "r2@return:receive")
    yield cell("again", FSDP, "r3@step:6:backward", "r2@return:forward")
    # One loss after another: the last process that may be started comes through.
    yield cell("again", DDP2, LOST, "r1@return:wind", "r1@return:2:vote")


def donor() -> Iterator[Cell]:
    """Rank 2 gives rank 1 its state, and dies."""
    for shape in (DDP3, FSDP3):
        for phase in ("give", "hold", "send", *FIRST_STEP):
            yield cell("donor", shape, LOST, f"r2@welcome:{phase}")


def member() -> Iterator[Cell]:
    """Another member dies meanwhile: rank 0, or a rank of the one replica that gives."""
    for phase in MEMBER:
        yield cell("member", DDP3, LOST, f"r0@welcome:{phase}")
    yield cell("member", FSDP3, LOST, "r0@welcome:hold")
    yield cell("member", FSDP3, LOST, "r0@welcome:reduce")


def together() -> Iterator[Cell]:
    """Two are lost at once, and one of the two newcomers is lost again."""
    both = (LOST, "r2@step:6:backward")
    for phase in (*WAY, *FIRST_STEP):
        yield cell("together", DDP3, *both, f"r1@return:{phase}")
    yield cell("together", FSDP3, *both, "r1@return:receive")
    yield cell("together", FSDP3, *both, "r1@return:vote")


def meanwhile() -> Iterator[Cell]:
    """One comes back while another is away, whose first process dies on its way."""
    away = (LOST, "r2@step:8:forward")
    for phase in ("prologue", "ready"):
        yield cell("meanwhile", DDP3, *away, f"r2@return:{phase}")
        yield cell("meanwhile", FSDP3, *away, f"r2@return:{phase}")
    # The one that has come back is all that is left but one, and what it has learned counts.
    yield cell("meanwhile", DDP3, *away, "r2@return:prologue", "r0@welcome:2:vote")


def all_cells() -> list[Cell]:
    kinds = (again, donor, member, together, meanwhile)
    return [one for kind in kinds for one in kind()]


@dataclass(frozen=True, slots=True)
class OnTwoNodes:
    """Ranks 0 and 1 are on the node that coordinates, which is lost; 2 and 3 on the other. Rank 3
    comes back. The node is lost at a record of the other one's journal, or by a kill.
    """

    record: str = ""
    kill: str = ""

    ranks = 2  # of each node
    shards = 0
    script = "returning.py"
    name = "two-nodes"

    @property
    def arguments(self) -> tuple[str, ...]:
        return Returning(shape="range").arguments

    @property
    def id(self) -> str:
        return self.record or self.kill.replace("@", "-").replace(":", "-")


NODES = (
    *(OnTwoNodes(record=event) for event in ("worker.spawn", "replica.return")),
    *(
        OnTwoNodes(kill=f"r0@welcome:{one}:node")
        for one in ("hold", "send", *FIRST_STEP)
        if one != "vote"
    ),
    OnTwoNodes(kill="r1@welcome:hold:node"),
)
"""Not in the vote: how far its ranks have drawn random numbers in that step is then on no other
node, with returns or without, and the promise comes down.
"""
