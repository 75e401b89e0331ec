"""How a job comes together: launchers join until there are `nnodes`, then each is given its ranks.

The first form has a fixed number of nodes. Node ranks are taken as given with --node-rank; the
others fill the gaps in the order of their arrival. A join may come any number of times: the same
launcher (same incarnation) gets the same answer. Whoever cannot be part of this job is refused with
one sentence, and never disturbs those who are.
"""

from dataclasses import dataclass
from typing import assert_never

from rendezvous.messages import Join, Refusal, Start

EXIT_USAGE = 2
EXIT_NEVER_FORMED = 80

NPROC_MOST = 4096


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


Effect = Reply | Formed | Abandoned


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
    ) -> None:
        self._nnodes = nnodes
        self._run_id = run_id
        self._version = version
        self._master_addr = master_addr
        self._timeout_s = timeout_s
        self._expires_at = begun_at + timeout_s
        self._joins: dict[str, Join] = {}  # by incarnation, in the order of arrival
        self._starts: dict[str, Start] = {}
        self._over = False

    def step(self, event: Event, now: float) -> list[Effect]:
        """Take one event at monotonic time `now` (seconds)."""
        effects: list[Effect] = []
        match event:
            case Joined(join=join):
                effects = self._join(join)
            case Left(incarnation=incarnation):
                if not self._starts:
                    self._joins.pop(incarnation, None)
            case Tick():
                if now >= self._expires_at and not self._over:
                    effects = self._abandon()
            case _:
                assert_never(event)
        self.check()
        return effects

    def deadline(self) -> float | None:
        """When it next needs a `Tick`, or None."""
        return None if self._over else self._expires_at

    def check(self) -> None:
        ranks = [join.node_rank for join in self._joins.values() if join.node_rank >= 0]
        assert len(set(ranks)) == len(ranks), f"one node rank was given twice: {ranks}"
        assert len(self._joins) <= self._nnodes, f"{len(self._joins)} of {self._nnodes} joined"

    def snapshot(self) -> dict[str, object]:
        return {"joined": len(self._joins), "nnodes": self._nnodes, "formed": bool(self._starts)}

    def _join(self, join: Join) -> list[Effect]:
        start = self._starts.get(join.incarnation)
        if start is not None:
            return [Reply(join.incarnation, start)]
        known = self._joins.get(join.incarnation)
        if known is not None:
            return []
        refusal = self._objection(join)
        if refusal is not None:
            return [Reply(join.incarnation, refusal)]
        self._joins[join.incarnation] = join
        return self._form() if len(self._joins) == self._nnodes else []

    def _objection(self, join: Join) -> Refusal | None:
        if join.run_id != self._run_id:
            return _refuse(f"this endpoint serves run {self._run_id!r}, not {join.run_id!r}")
        if join.version != self._version:
            versions = f"this is recoverrun {join.version}, the job runs {self._version}"
            return _refuse(f"{versions}: all nodes need the same version")
        if not 1 <= join.nproc <= NPROC_MOST:
            return _refuse(f"{join.nproc} workers per node are not possible", EXIT_USAGE)
        if join.node_rank >= self._nnodes:
            few = f"node rank {join.node_rank} does not exist in a job of {self._nnodes} nodes"
            return _refuse(few, EXIT_USAGE)
        if self._over:
            return _refuse(f"the job already has all of its {self._nnodes} nodes")
        for other in self._joins.values():
            if join.node_rank >= 0 and other.node_rank == join.node_rank:
                taken = (
                    f"node rank {join.node_rank} is already taken by the launcher on {other.node}"
                )
                return _refuse(taken, EXIT_USAGE)
        return None

    def _form(self) -> list[Effect]:
        joins = self._placed()
        names = _names([join.node for join in joins])
        world_size = sum(join.nproc for join in joins)
        starts = []
        first_rank = 0
        for node_rank, join in enumerate(joins):
            start = Start(
                generation=1,
                node_rank=node_rank,
                nnodes=self._nnodes,
                first_rank=first_rank,
                nproc=join.nproc,
                world_size=world_size,
                master_addr=self._master_addr,
                nodes=names,
            )
            starts.append(start)
            first_rank += join.nproc
        self._starts = {join.incarnation: s for join, s in zip(joins, starts, strict=True)}
        self._over = True
        replies = [Reply(join.incarnation, s) for join, s in zip(joins, starts, strict=True)]
        return [Formed(joins, tuple(starts)), *replies]

    def _placed(self) -> tuple[Join, ...]:
        """The joins by node rank: the given ones at their place, the others in the gaps."""
        given = {join.node_rank: join for join in self._joins.values() if join.node_rank >= 0}
        others = iter([join for join in self._joins.values() if join.node_rank < 0])
        return tuple(given[rank] if rank in given else next(others) for rank in range(self._nnodes))

    def _abandon(self) -> list[Effect]:
        self._over = True
        here = ", ".join(sorted(join.node for join in self._joins.values())) or "none"
        joined = f"{len(self._joins)} of {self._nnodes} nodes joined"
        reason = f"{joined} within {self._timeout_s:g} s ({here})"
        refusal = _refuse(reason)
        replies = [Reply(incarnation, refusal) for incarnation in self._joins]
        return [*replies, Abandoned(reason)]


def _refuse(reason: str, exit_code: int = EXIT_NEVER_FORMED) -> Refusal:
    return Refusal(reason=reason, exit_code=exit_code)


def _names(hosts: list[str]) -> tuple[str, ...]:
    """The names of the nodes: their hosts', with node ranks if one host has several launchers."""
    if len(set(hosts)) == len(hosts):
        return tuple(hosts)
    return tuple(f"{host}.{rank}" for rank, host in enumerate(hosts))
