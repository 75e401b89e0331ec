"""Nodes that join and are lost again and again: held off, longer each time, and then not let in.

Whoever comes to a job that runs may interrupt it, and whoever is lost does. A node that is lost
soon after it has come costs the others more than it gives. It is known by its name, address and
node rank: a launcher that starts again has another incarnation. A loss counts for an hour. Planned
leaves, and what happens before the job has formed for the first time, do not count.

Every member counts for itself whom a new configuration leaves out, so no loss is forgotten with the
coordinator that saw it. What a member cannot have seen it is told: losses of before it came
(`Strikes`), and who leaves as planned (`PlannedLeaves`), by whoever leaves and by each coordinator.
Both are known by the launcher they are about, and a planned leave undoes a loss: books that were
told the same things are the same, in whatever order they were told.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import zip_longest

from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.formation_messages import (
    Join,
    LossNews,
    PlannedLeaves,
    Refusal,
    Start,
    Strikes,
)
from rendezvous.protocol.records import Record

HOUR_S = 3600.0
STRIKES = 3
HOLD_S, HOLD_FACTOR = 2.0, 10
"""After the first loss, and how much longer after each that follows."""

NODES_MOST, LAUNCHERS_MOST = 1_000, 100_000
"""What is remembered, whatever comes."""

Node = tuple[str, str, int]
"""Its name, its address, and the node rank that it asks for. The address is "" of a launcher that
nobody has heard from elsewhere, as it was the first to coordinate."""


@dataclass(frozen=True, slots=True)
class HeldOff:
    """An answer to a launcher: it may join later."""

    left_s: float


@dataclass(slots=True)
class _Losses:
    times: dict[str, float] = field(default_factory=dict)  # by the launcher that was lost
    reason: str = ""  # of the last


class FlappingNodes:
    """Machine of a launcher: losses in, answers to those who join out."""

    def __init__(self) -> None:
        self._nodes: OrderedDict[str, Node] = OrderedDict()  # by incarnation
        self._losses: OrderedDict[Node, _Losses] = OrderedDict()
        self._left: OrderedDict[str, str] = OrderedDict()  # as planned: why, by incarnation

    def know(self, joins: Iterable[Join]) -> None:
        """These launchers take part, or wait for it."""
        for join in joins:
            self._know(join.incarnation, _node(join))

    def know_members(self, start: Start | None) -> None:
        """These launchers take part, as we have been told: we have let none of them in."""
        if start is None:
            return
        ranks = start.asked or (-1,) * len(start.peers)
        for place, ((name, address, _, _), node) in enumerate(
            zip(start.peers, start.nodes, strict=True)
        ):
            if name not in self._nodes:
                self._know(name, (node.removesuffix(f".{place}"), address, ranks[place]))

    def _know(self, incarnation: str, node: Node) -> None:
        self._nodes[incarnation] = node
        if len(self._nodes) > LAUNCHERS_MOST:
            self._nodes.popitem(last=False)

    def lose(self, incarnation: str, reason: str, now: float) -> list[Record]:
        """Note that this launcher is lost; the record for a person."""
        node = self._nodes.pop(incarnation, None)
        if node is None or incarnation in self._left or incarnation in self._recent(node, now):
            return []
        self._count(node, {incarnation: now}, reason)
        many = len(self._recent(node, now))
        if many == 1:
            return []  # That happens; the loss itself has its record.
        later = f"may join again in {_hold_s(many):g} s"
        what = later if many < STRIKES else "is not let in again"
        words = f"node {node[0]} was lost {_times(many)} within an hour and {what} ({reason})"
        return [Record("notice.give", words, {"rank": -1, "event": "node.lemon"})]

    def leave(self, incarnation: str, reason: str = "") -> None:
        """Note that this launcher leaves as planned: its end is no loss, even if it was counted."""
        self._left[incarnation] = reason or self._left.get(incarnation, "")
        if len(self._left) > NODES_MOST:
            self._left.popitem(last=False)
        for node, losses in [*self._losses.items()]:
            losses.times.pop(incarnation, None)
            if not losses.times:
                del self._losses[node]

    def why_left(self, incarnation: str) -> str:
        """The reason why this launcher has left as planned, "" if that is not known."""
        return self._left.get(incarnation, "")

    def _count(self, node: Node, times: dict[str, float], reason: str) -> None:
        known = self._losses.setdefault(node, _Losses())
        self._losses.move_to_end(node)
        if len(self._losses) > NODES_MOST:
            self._losses.popitem(last=False)
        newest = max(known.times.values(), default=float("-inf"))
        if max(times.values(), default=newest) >= newest:
            known.reason = reason
        every = sorted((at, name) for name, at in (times | known.times).items())
        known.times = {name: at for at, name in every[-STRIKES:]}

    def told(self, now: float) -> list[LossNews]:
        """All that another launcher has to remember, as of now."""
        launchers, reasons = tuple(self._left), tuple(self._left.values())
        left = [PlannedLeaves(launchers=launchers, reasons=reasons)] if launchers else []
        return [*left, *self.strikes(now)]

    def strikes(self, now: float, lost: Collection[str] | None = None) -> list[Strikes]:
        """The losses that count, by node; `lost`: of the nodes of these launchers alone."""
        found = []
        for (name, address, rank), losses in self._losses.items():
            ages = [(who, now - at) for who, at in losses.times.items() if now - at < HOUR_S]
            if ages and (lost is None or losses.times.keys() & set(lost)):
                found.append(
                    Strikes(
                        node=name,
                        address=address,
                        node_rank=rank,
                        reason=losses.reason,
                        lost=tuple(ages),
                    )
                )
        return found

    def learn(self, told: LossNews, now: float) -> None:
        """Another launcher remembers so."""
        if isinstance(told, PlannedLeaves):
            told_of = zip_longest(told.launchers, told.reasons[: len(told.launchers)], fillvalue="")
            for incarnation, reason in [*told_of][-NODES_MOST:]:
                self.leave(incarnation, reason)
            return
        node = (told.node, told.address, told.node_rank)
        lost = [(name, age_s) for name, age_s in told.lost if name not in self._left]
        times = {name: now - max(0.0, age_s) for name, age_s in lost[-STRIKES:]}
        if times:
            self._count(node, times, told.reason)

    def _recent(self, node: Node, now: float) -> dict[str, float]:
        """The losses of this node that count, oldest first."""
        name, _, rank = node
        both = [self._losses[key].times for key in {node, (name, "", rank)} & self._losses.keys()]
        every = sorted((at, who) for times in both for who, at in times.items())
        return {who: at for at, who in every if now - at < HOUR_S}

    def judge(self, join: Join, now: float) -> Refusal | HeldOff | None:
        """The answer to a launcher that comes to a job which has begun; None: it may."""
        node = _node(join)
        times = [*self._recent(node, now).values()][-STRIKES:]
        if not times:
            return None
        if len(times) >= STRIKES:
            left_s = times[0] + HOUR_S - now
            reason = (
                f"node {join.node} was lost {_times(len(times))} within an hour, and this job "
                f"takes it no more for {left_s / 60:.0f} min; last: {self._reason(node)}"
            )
            return Refusal(reason=reason, exit_code=ExitCode.NEVER_FORMED)
        left_s = times[-1] + _hold_s(len(times)) - now
        return HeldOff(left_s) if left_s > 0 else None

    def _reason(self, node: Node) -> str:
        """The reason of its last loss."""
        name, _, rank = node
        known = {node, (name, "", rank)} & self._losses.keys()
        return max(
            (self._losses[key] for key in known), key=lambda one: max(one.times.values())
        ).reason


def _node(join: Join) -> Node:
    # Two nodes of one name are told apart by their places, where members are named.
    name = join.node.removesuffix(f".{join.node_rank}")
    return (name, join.address, join.node_rank)


def _hold_s(many: int) -> float:
    return float(HOLD_S * HOLD_FACTOR ** (many - 1))


def _times(many: int) -> str:
    return "once" if many == 1 else f"{many} times"
