"""The formation of a job: launchers join until there are enough, then each is given its ranks.

With MIN:MAX nodes it forms as soon as MAX are there, or `last_call_s` after MIN were. Node ranks
are taken as given with --node-rank; the others fill the gaps in the order of their arrival. A join
may come any number of times: the same launcher (same incarnation) gets the same answer. Whoever
cannot be part of this job is refused with one sentence, and never disturbs those who are; where all
nodes are needed, a node of this very job that cannot come ends it, and nobody waits in vain.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import assert_never

from rendezvous.membership.agreement import (
    RefusedNodes,
    belongs,
    disagreement,
    misfit,
    strangeness,
    whereabouts,
)
from rendezvous.membership.formation_words import awaited_words, incomplete_words, kind, node_names
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.formation_messages import Join, Refusal, Start
from rendezvous.protocol.heartbeat import MANY
from rendezvous.protocol.snapshot_messages import Held, Share

NPROC_MOST = 4096

Nodes = Sequence[tuple[int, tuple[Held, ...], tuple[Share, ...]]]
Restore = Callable[[Nodes, int], str]
Arrange = Callable[[Nodes], Sequence[int]]
"""What all ranks begin from, and in which order nodes that had none get their ranks: by how many
ranks each has, and what it has of snapshots."""

TELL_AFTER_S, TELL_AGAIN_S = 4.0, 30.0
"""When those who wait are told for whom, and how often from then on."""

AGAIN_S = 10.0
"""A start that was sent is not sent again sooner, where there are many: it says who everybody is,
and whoever waits for it asks every second, also while it is on its way."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A launcher asks to take part."""

    join: Join


@dataclass(frozen=True, slots=True)
class Left:
    """The launcher with this incarnation went silent before the job was formed."""

    incarnation: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


Event = Joined | Left | Tick


@dataclass(frozen=True, slots=True)
class Reply:
    """Send this to the launcher with that incarnation."""

    incarnation: str
    message: Start | Refusal


@dataclass(frozen=True, slots=True)
class Formed:
    """The job is complete. `joins` and `starts` are in the order of node ranks."""

    joins: tuple[Join, ...]
    starts: tuple[Start, ...]


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The job never formed; everybody who waits was told."""

    reason: str
    exit_code: int = ExitCode.NEVER_FORMED


@dataclass(frozen=True, slots=True)
class Waiting:
    """The missing launchers and how long they are waited for, or one that was refused: worth a
    line.
    """

    reason: str


Effect = Reply | Formed | Abandoned | Waiting


class Formation:
    """Machine: joins in, starts and refusals out."""

    def __init__(
        self,
        *,
        nnodes: int,
        run_id: str,
        version: str,
        master_addr: str,
        timeout_s: float,
        begun_at: float,
        nnodes_least: int = 0,
        last_call_s: float = 0.0,
        attempt: int = 0,
        restarts: int = 0,
        awaited: frozenset[str] = frozenset(),
        allow_mixed: bool = False,
        leader: str = "",
        folder: str = "",
        over: bool = False,
        restore: Restore = lambda _nodes, _attempt: "",
        arrange: Arrange = lambda nodes: range(len(nodes)),
        former: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """`nnodes` at most, `nnodes_least` at least (0: the same). `awaited` are launchers that
        will come; once they are there and enough, nobody else is waited for. `over`: this attempt
        was formed by another machine, and only those that follow are of this one. `restore` says
        what all ranks begin from, `former` is where launchers were in the attempt before.
        """
        self._restore, self._arrange = restore, arrange
        self._former = former
        self._nnodes = nnodes
        self._least = nnodes_least or nnodes
        self._last_call_s = last_call_s
        self._attempt = attempt
        self._restarts = restarts
        self._awaited = awaited
        self._allow_mixed = allow_mixed
        self._leader = leader
        self._folder = folder
        self._form_at: float | None = None  # with fewer than all
        self._run_id = run_id
        self._version = version
        self._master_addr = master_addr
        self._timeout_s = timeout_s
        self._expires_at = begun_at + timeout_s
        self._tell_at = begun_at + TELL_AFTER_S
        self._joins: dict[str, Join] = {}  # by incarnation, in the order of arrival
        self._by_rank: dict[int, Join] = {}  # those who asked for a certain node rank
        self._refused = RefusedNodes()
        self._kinds: dict[tuple[object, ...], Join] = {}  # the first that runs each
        self._starts: dict[str, Start] = {}
        self._sent_at: dict[str, float] = {}
        self._again_s = AGAIN_S if nnodes >= MANY else 0.0
        self._over = over

    def step(self, event: Event, now: float) -> list[Effect]:
        """Take one event at monotonic time `now` (seconds)."""
        effects: list[Effect] = []
        match event:
            case Joined(join=join):
                effects = self._join(join, now)
            case Left(incarnation=incarnation):
                if not self._starts:
                    self._forget(incarnation)
                    self._awaited -= {incarnation}
            case Tick():
                if self._form_at is not None and now >= self._form_at:
                    effects = self._form(now)
                elif now >= self._expires_at and not self._over:
                    effects = self._expire()
                elif now >= self._tell_at and not self._over:
                    effects = self._tell(now)
            case _:
                assert_never(event)
        self._call(now)
        self.check()
        return effects

    def deadline(self) -> float | None:
        """The time of the next `Tick`, or None."""
        if self._over:
            return None
        return min(self._expires_at, self._tell_at, self._form_at or self._expires_at)

    def renewed(
        self, *, attempt: int, restarts: int, awaited: frozenset[str], begun_at: float
    ) -> "Formation":
        """The machine for the next attempt of the same job: everybody joins again."""
        return Formation(
            nnodes=self._nnodes,
            run_id=self._run_id,
            version=self._version,
            master_addr=self._master_addr,
            timeout_s=self._timeout_s,
            begun_at=begun_at,
            nnodes_least=self._least,
            last_call_s=self._last_call_s,
            attempt=attempt,
            restarts=restarts,
            awaited=awaited,
            allow_mixed=self._allow_mixed,
            leader=self._leader,
            folder=self._folder,
            restore=self._restore,
            arrange=self._arrange,
            former={join.incarnation: rank for rank, join in enumerate(self._placed())},
        )

    @property
    def least(self) -> int:
        """The least number of nodes."""
        return self._least

    @property
    def most(self) -> int:
        """The greatest number of nodes."""
        return self._nnodes

    def _call(self, now: float) -> None:
        """Begin or end the wait for more nodes than are needed."""
        if self._over or len(self._joins) < self._least:
            self._form_at = None
        elif self._awaited and self._awaited <= self._joins.keys():
            self._form_at = now
        elif self._form_at is None:
            self._form_at = now + self._last_call_s

    def check(self) -> None:
        ranks = len(self._by_rank)
        assert ranks <= len(self._joins), f"{ranks} node ranks for {len(self._joins)} nodes"
        assert len(self._joins) <= self._nnodes, f"{len(self._joins)} of {self._nnodes} joined"

    def snapshot(self) -> dict[str, object]:
        return {"joined": len(self._joins), "nnodes": self._nnodes, "formed": bool(self._starts)}

    def _join(self, join: Join, now: float) -> list[Effect]:
        start = self._starts.get(join.incarnation)
        if start is not None:
            if now < self._sent_at[join.incarnation] + self._again_s:
                return []
            self._sent_at[join.incarnation] = now
            return [Reply(join.incarnation, start)]
        known = self._joins.get(join.incarnation)
        if known is not None:
            return []
        refusal = self.objection(join)
        if refusal is None and self._over:
            refusal = _refuse(f"the job already has all of its {self._nnodes} nodes")
        if refusal is not None:
            return [Reply(join.incarnation, refusal), *self._refused_one(join, refusal)]
        self._joins[join.incarnation] = join
        self._kinds.setdefault(kind(join), join)
        if join.node_rank >= 0:
            assert join.node_rank not in self._by_rank, f"node rank {join.node_rank} given twice"
            self._by_rank[join.node_rank] = join
        return self._form(now) if len(self._joins) == self._nnodes else []

    def _refused_one(self, join: Join, refusal: Refusal) -> list[Effect]:
        """Those who wait are told, and leave if this node was needed."""
        if self._over:
            return []
        needed = self._least == self._nnodes and refusal == self._absence(join)
        if needed and any(belongs(join, other) for other in self._kinds.values()):
            reason = f"{whereabouts(join)} cannot take part: {refusal.reason}"
            return self._abandon(reason, refusal.exit_code)
        words = self._refused.add(join, refusal.reason)
        return [Waiting(words)] if words else []

    def _forget(self, incarnation: str) -> None:
        left = self._joins.pop(incarnation, None)
        if left is None:
            return
        self._by_rank.pop(left.node_rank, None)
        if self._kinds[kind(left)] is left:
            self._kinds = {}
            for join in self._joins.values():
                self._kinds.setdefault(kind(join), join)

    def objection(self, join: Join) -> Refusal | None:
        """The reason why this launcher can never be part of this job, or None."""
        if join.run_id != self._run_id:
            served, asked = self._run_id, join.run_id
            return _refuse(f"this endpoint serves run {served!r}, not {asked!r} (see --rdzv-id)")
        kinds = self._kinds.values()
        stranger = strangeness(join, kinds, run_id=self._run_id)
        if stranger and not self._allow_mixed:
            return _refuse(f"{stranger} (or --allow-version-mismatch)")
        if not 1 <= join.nproc <= NPROC_MOST:
            return _refuse(f"{join.nproc} workers per node are not possible", ExitCode.USAGE)
        if join.node_rank >= self._nnodes:
            few = f"node rank {join.node_rank} does not exist in a job of {self._nnodes} nodes"
            return _refuse(few, ExitCode.USAGE)
        for other in () if join.hindrance else kinds:
            if why := disagreement(join, other):
                return _refuse(f"this node cannot agree with {whereabouts(other)}: {why}")
        taker = None if self._over else self._by_rank.get(join.node_rank)
        if taker is not None:
            taken = f"node rank {join.node_rank} is already taken by the launcher on "
            return _refuse(f"{taken}{whereabouts(taker)}", ExitCode.USAGE)
        return self._absence(join)

    def _absence(self, join: Join) -> Refusal | None:
        """The reason why a node that has a place in this job cannot take it, or None."""
        if join.hindrance:
            return _refuse(join.hindrance, ExitCode.USAGE)
        why = misfit(join, self._kinds.values(), version=self._version)
        if why and not self._allow_mixed:
            return _refuse(f"{why} (or --allow-version-mismatch)")
        return None

    def _form(self, now: float) -> list[Effect]:
        joins = self._placed()
        names = node_names([join.node for join in joins])
        world_size = sum(join.nproc for join in joins)
        master = joins[0].master or self._master_addr
        peers = tuple((join.incarnation, join.address, join.listen, join.nproc) for join in joins)
        restore = self._restore(_nodes(joins), self._attempt)
        number = 1 + max(join.starts for join in joins)
        starts = []
        first_rank, role_ranks, roles = 0, Counter[str](), Counter[str]()
        for join in joins:
            roles[join.role] += join.nproc
        for node_rank, join in enumerate(joins):
            start = Start(
                generation=1,
                node_rank=node_rank,
                nnodes=len(joins),
                first_rank=first_rank,
                nproc=join.nproc,
                world_size=world_size,
                master_addr=master,
                nodes=names,
                attempt=self._attempt,
                restarts=self._restarts,
                first_role_rank=role_ranks[join.role],
                role_world_size=roles[join.role],
                leader=self._leader,
                peers=peers,
                folder=self._folder,
                restore=restore,
                number=number,
                asked=tuple(join.node_rank for join in joins),
            )
            starts.append(start)
            first_rank += join.nproc
            role_ranks[join.role] += join.nproc
        self._starts = {join.incarnation: s for join, s in zip(joins, starts, strict=True)}
        self._over, self._sent_at = True, dict.fromkeys(self._starts, now)
        replies = [Reply(join.incarnation, s) for join, s in zip(joins, starts, strict=True)]
        return [Formed(joins, tuple(starts)), *replies]

    def _placed(self) -> tuple[Join, ...]:
        """The joins by node rank: those with a given one at their place, those that had a place
        before at that if it is free, the others in the gaps.
        """
        placed = dict(self._by_rank)
        free = [join for join in self._joins.values() if join.node_rank < 0]
        if not (placed or self._former):
            free = [free[place] for place in self._arrange(_nodes(free))]
        for join in free:
            if join.incarnation in self._former:
                placed.setdefault(self._former[join.incarnation], join)
        others = iter([join for join in free if join not in placed.values()])
        places = (placed.get(rank) or next(others, None) for rank in range(self._nnodes))
        return tuple(join for join in places if join is not None)

    def _tell(self, now: float) -> list[Effect]:
        self._tell_at = now + TELL_AGAIN_S
        here = len(self._joins)
        if self._form_at is not None:
            words = f"{here} of {self._least}-{self._nnodes} nodes are here"
            return [Waiting(f"{words}: starting in {self._form_at - now:.0f} s")]
        missing = awaited_words(here, self._least, self._nnodes, self._by_rank)
        return [Waiting(f"{missing}, {self._expires_at - now:.0f} s left")]

    def _expire(self) -> list[Effect]:
        words = incomplete_words(self._joins.values(), self._least, self._timeout_s)
        return self._abandon(f"{words}{self._refused.words()}", ExitCode.NEVER_FORMED)

    def _abandon(self, reason: str, exit_code: int) -> list[Effect]:
        self._over = True
        refusal = _refuse(reason, exit_code)
        replies = [Reply(incarnation, refusal) for incarnation in self._joins]
        return [*replies, Abandoned(reason, exit_code)]


def _refuse(reason: str, exit_code: int = ExitCode.NEVER_FORMED) -> Refusal:
    return Refusal(reason=reason, exit_code=exit_code)


def _nodes(joins: Sequence[Join]) -> Nodes:
    return [(join.nproc, join.holding, join.shares) for join in joins]
