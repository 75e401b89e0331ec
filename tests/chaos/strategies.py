"""The kill matrix of every strategy, as data: who dies when in which way of training.

The scripts are those of `make compat`. Where a strategy has no such moment, `absent` says so, and
a cell holds it to that: a phase that comes into being must come into the matrix.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from tests.compat.row import Row
from tests.compat.strategy_rows import BY_HAND, DDP, FRAMEWORKS, FSDP1, FSDP2, HSDP, MESHES

FAMILIES = (DDP, HSDP, BY_HAND, FSDP2, MESHES, FSDP1, FRAMEWORKS)
ROWS = {row.name: row for rows in FAMILIES for row in rows}

# Before, in the middle of and at the end of the buckets: "reduce" alone means the middle one.
BUCKETS = ("reduce:0", "reduce", "reduce:99")
PHASES = ("forward", "backward", *BUCKETS, "vote", "between", "redo")
COARSE = ("forward", "backward", "reduce", "vote", "between")
ONE, REDOING, VOTING, SAME = "one", "while redoing", "while voting again", "in the same reduction"
ALL, WHOLE, ABSENT = "all but one", "a whole replica", "absent"
KINDS = (ONE, REDOING, VOTING, SAME, ALL, WHOLE, ABSENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """One way of training; `row` is the script, its ranks, its promise and its bound on |Δw|."""

    name: str
    row: Row
    shards: int = 1  # ranks of a replica
    strided: bool = False  # which are not neighbours: stages of a pipeline
    whole: bool = False  # all gradients are in one bucket, so that `reduce` is one moment
    absent: tuple[str, ...] = ()  # phases in which it has no point to strike at

    @property
    def replicas(self) -> int:
        return self.row.ranks // self.shards

    @property
    def phases(self) -> tuple[str, ...]:
        """Those that every microbatch or step comes through, without any other loss."""
        twice = ("reduce:0", "reduce:99") if self.whole else ()
        return tuple(p for p in PHASES if p not in (*twice, *self.absent, "redo"))

    @property
    def before(self) -> tuple[str, ...]:
        """Those after which the step cannot be reduced without the lost rank's work being redone.

        Once its only bucket was launched the others may have all that they need.
        """
        some = ("forward", "backward", *(() if self.whole else ("reduce:0", "reduce")))
        return tuple(phase for phase in some if phase in self.phases)

    @property
    def coarse(self) -> tuple[str, ...]:
        return tuple(phase for phase in COARSE if phase in self.phases)

    def replica_of(self, rank: int) -> int:
        return rank % self.replicas if self.strided else rank // self.shards

    def rank_of(self, replica: int, shard: int) -> int:
        if self.strided:
            return shard * self.replicas + replica
        return replica * self.shards + shard


@dataclass(frozen=True, slots=True)
class Cell:
    """A run of `strategy` in which `kills` strike: (rank, step, phase)."""

    strategy: Strategy
    kind: str
    kills: tuple[tuple[int, int, str], ...]

    @property
    def inject(self) -> str:
        return ",".join(f"r{rank}@step:{step}:{phase}" for rank, step, phase in self.kills)

    @property
    def dead(self) -> frozenset[int]:
        return frozenset(rank for rank, _, _ in self.kills)

    @property
    def id(self) -> str:
        return f"{self.strategy.name} {self.inject}"


def cells(strategy: Strategy) -> list[Cell]:
    """Every kind of loss in every phase, as far as there are ranks for it."""
    found = [Cell(strategy, ONE, (one,)) for one in _single(strategy, strategy.phases)]
    if strategy.replicas > 2:
        found += _twice(strategy)
        found += _at_once(strategy)
    if strategy.shards > 1:
        found += _mates(strategy)
    absent = [phase for phase in strategy.absent if phase != "redo"]
    found += [Cell(strategy, ABSENT, (one,)) for one in _single(strategy, absent)]
    if "redo" in strategy.absent:
        found.append(Cell(strategy, ABSENT, ((2, 3, strategy.before[0]), (0, 3, "redo"))))
    return found


def _single(
    strategy: Strategy, phases: tuple[str, ...] | list[str]
) -> Iterator[tuple[int, int, str]]:
    """Another rank and step for each phase."""
    victims = strategy.row.victims or tuple(range(strategy.row.ranks))
    for place, phase in enumerate(phases):
        yield victims[(place * 2 + 1) % len(victims)], 2 + place % 3, phase


def _twice(strategy: Strategy) -> Iterator[Cell]:
    """A second loss soon after the first.

    Who redoes a lost microbatch, or votes in a step that only a recovery brings so far, surely
    dies in it. In the same reduction the second may die before anybody has heard of the first.
    """
    last, first, between = strategy.row.ranks - 1, 0, strategy.rank_of(1, 0)
    again = "reduce" if strategy.whole else "reduce:99"
    for step, phase in enumerate(strategy.before, start=2):
        one = (last, step, phase)
        if "redo" not in strategy.absent:
            yield Cell(strategy, REDOING, (one, (first, step, "redo")))
        yield Cell(strategy, VOTING, (one, (first, step, "vote")))
        yield Cell(strategy, SAME, (one, (between, step, again)))


def _at_once(strategy: Strategy) -> Iterator[Cell]:
    """All replicas but one in the same phase of the same step."""
    for place, phase in enumerate(strategy.coarse):
        spared = (place + 1) % strategy.replicas
        lost = [replica for replica in range(strategy.replicas) if replica != spared]
        shard = place % strategy.shards
        struck = ((strategy.rank_of(one, shard), 3, phase) for one in lost)
        yield Cell(strategy, ALL, tuple(struck))


def _mates(strategy: Strategy) -> Iterator[Cell]:
    """All ranks of one replica; who comes late is ended by the launcher."""
    for place, phase in enumerate(strategy.coarse):
        replica = place % strategy.replicas
        ranks = [strategy.rank_of(replica, shard) for shard in range(strategy.shards)]
        yield Cell(strategy, WHOLE, tuple((rank, 4, phase) for rank in ranks))


def _ddp(feature: str, *absent: str, whole: bool = True) -> Strategy:
    row = ROWS[f"ddp-{feature}"]
    return Strategy(name=row.name, row=row, whole=whole, absent=absent)


def _sharded(name: str, replicas: int, shards: int, whole: bool = False) -> Strategy:
    """FSDP and its neighbours, on as many ranks as the losses need."""
    row = ROWS[name]
    arguments = row.arguments if shards == 2 else (*row.arguments, f"--shards={shards}")
    row = dataclasses.replace(row, ranks=replicas * shards, arguments=arguments)
    return Strategy(name=f"{name} {replicas}x{shards}", row=row, shards=shards, whole=whole)


def _by_hand(feature: str) -> Strategy:
    """Nobody sees a bucket of its backward, which is over when the script asks for a sum."""
    row = ROWS[f"by-hand-{feature}"]
    return Strategy(name=row.name, row=row, whole=True, absent=("backward",))


def _mesh(way: str, strided: bool = False) -> Strategy:
    row = ROWS[f"mesh-{way}"]
    return Strategy(name=f"{row.name} 2x2", row=row, shards=2, strided=strided)


def _framework(name: str, whole: bool = True) -> Strategy:
    return Strategy(name=name, row=ROWS[name], whole=whole)


STRATEGIES = (
    _ddp("plain"),
    _ddp("many-buckets", whole=False),
    _ddp("bucket-view"),
    _ddp("static-graph"),
    _ddp("unused"),
    _ddp("unused-many-buckets", whole=False),
    _ddp("two-buckets"),
    _ddp("unused-two-buckets"),
    _ddp("every-microbatch"),
    _ddp("fp16-hook"),
    _ddp("replicate"),
    _by_hand("plain"),
    _by_hand("mean"),
    _by_hand("accumulate"),
    _sharded("fsdp2-keep", 4, 1),
    _sharded("fsdp2-keep", 2, 2),
    _sharded("fsdp2-bf16", 2, 2),
    _sharded("fsdp2-offload", 2, 2),
    _sharded("fsdp2-ignored", 2, 2),
    _sharded("fsdp2-keep", 3, 2),
    _sharded("fsdp2-tp-ddp", 2, 2, whole=True),
    _sharded("fsdp2-tp-ddp", 3, 2, whole=True),
    _sharded("fsdp2-replicate", 4, 1),
    _mesh("tp"),
    _mesh("cp"),
    _mesh("pp", strided=True),
    _mesh("pp-interleaved", strided=True),
    _mesh("pp-zero-bubble", strided=True),
    _sharded("fsdp1-hybrid", 2, 2),
    _sharded("fsdp1-zero2", 2, 2),
    _sharded("fsdp1-orig-params", 2, 2),
    _sharded("fsdp1-no-sync", 2, 2),
    _sharded("fsdp1-bf16", 2, 2),
    _sharded("fsdp1-groups", 2, 2),
    _sharded("fsdp1-hybrid", 3, 2),
    _framework("accelerate"),
    _framework("transformers-trainer"),
    _framework("trl-sft"),
    _framework("lightning-trainer"),
    _framework("lightning-fabric"),
)


def _sampled(name: str, kind: str, phase: str) -> Cell:
    """The cell of this kind whose first kill is in `phase`."""
    of = (cell for one in STRATEGIES if one.name == name for cell in cells(one))
    return next(cell for cell in of if cell.kind == kind and cell.kills[0][2] == phase)


# One of each family, and each kind of loss. `test_compat` leaves the scripts of these out.
SAMPLE = (
    _sampled("ddp-static-graph", ALL, "vote"),
    _sampled("ddp-replicate", VOTING, "backward"),
    _sampled("by-hand-plain", REDOING, "forward"),
    _sampled("fsdp2-keep 4x1", REDOING, "reduce"),
    _sampled("fsdp2-tp-ddp 2x2", WHOLE, "vote"),
    _sampled("fsdp1-hybrid 2x2", WHOLE, "backward"),
)
