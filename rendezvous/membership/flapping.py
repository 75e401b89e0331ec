"""Nodes that join and are lost again and again: held off, longer each time, and then not let in.

Whoever comes to a job that runs may interrupt it, and whoever is lost does. A node that is lost
soon after it has come costs the others more than it gives. It is known by its name, address and
node rank: a launcher that starts again has another incarnation. A loss counts for an hour. Planned
leaves, and what happens before the job has formed for the first time, do not count.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from rendezvous.protocol.formation_messages import Join, Refusal
from rendezvous.protocol.records import Record

HOUR_S = 3600.0
STRIKES = 3
HOLD_S, HOLD_FACTOR = 2.0, 10
"""After the first loss, and how much longer after each that follows."""

NODES_MOST, LAUNCHERS_MOST = 1_000, 100_000
"""What is remembered, whatever comes."""

EXIT_NEVER_FORMED = 80

Node = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class HeldOff:
    """An answer to a launcher: it may join later."""

    left_s: float


@dataclass(slots=True)
class _Strikes:
    times: list[float] = field(default_factory=list)
    reason: str = ""  # of the last


class FlappingNodes:
    """Machine of the coordinator: losses in, answers to those who join out."""

    def __init__(self) -> None:
        self._nodes: OrderedDict[str, Node] = OrderedDict()  # by incarnation
        self._strikes: OrderedDict[Node, _Strikes] = OrderedDict()

    def know(self, joins: Iterable[Join]) -> None:
        """These launchers take part, or wait for it."""
        for join in joins:
            self._nodes[join.incarnation] = (join.node, join.address, join.node_rank)
            if len(self._nodes) > LAUNCHERS_MOST:
                self._nodes.popitem(last=False)

    def lose(self, incarnation: str, reason: str, now: float) -> list[Record]:
        """Note that this launcher is lost; the record for a person."""
        node = self._nodes.pop(incarnation, None)
        if node is None:
            return []
        strikes = self._strikes.setdefault(node, _Strikes())
        self._strikes.move_to_end(node)
        if len(self._strikes) > NODES_MOST:
            self._strikes.popitem(last=False)
        strikes.times = [*_recent(strikes, now), now][-STRIKES:]
        strikes.reason = reason
        many = len(strikes.times)
        if many == 1:
            return []  # That happens; the loss itself has its record.
        later = f"may join again in {_hold_s(many):g} s"
        what = later if many < STRIKES else "is not let in again"
        words = f"node {node[0]} was lost {_times(many)} within an hour and {what} ({reason})"
        return [Record("notice.give", words, {"rank": -1, "event": "node.lemon"})]

    def forget(self, incarnation: str) -> None:
        """Note that this launcher leaves as planned."""
        self._nodes.pop(incarnation, None)

    def judge(self, join: Join, now: float) -> Refusal | HeldOff | None:
        """The answer to a launcher that comes to a job which has begun; None: it may."""
        strikes = self._strikes.get((join.node, join.address, join.node_rank))
        times = _recent(strikes, now) if strikes is not None else []
        if strikes is None or not times:
            return None
        if len(times) >= STRIKES:
            left_s = times[0] + HOUR_S - now
            reason = (
                f"node {join.node} was lost {_times(len(times))} within an hour, and this job "
                f"takes it no more for {left_s / 60:.0f} min; last: {strikes.reason}"
            )
            return Refusal(reason=reason, exit_code=EXIT_NEVER_FORMED)
        left_s = times[-1] + _hold_s(len(times)) - now
        return HeldOff(left_s) if left_s > 0 else None


def _recent(strikes: _Strikes, now: float) -> list[float]:
    return [at for at in strikes.times if now - at < HOUR_S]


def _hold_s(many: int) -> float:
    return float(HOLD_S * HOLD_FACTOR ** (many - 1))


def _times(many: int) -> str:
    return "once" if many == 1 else f"{many} times"
