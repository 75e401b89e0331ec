"""The exchange between the nodes of a job and the first one: their facts, and its answers.

Each node says where it stands, twice a second: its facts, whom it could call once it has been told
the others, how fast its clock goes, whether it sees the first one's run directory, whether it has
the table. The answer says where the first one stands: the others once all are there, the table once
all have told all. So any message may be lost, or come twice. Pure: messages in, answers out, time
passed in.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from recoverrun.doctor.clock_rate import Rate
from recoverrun.doctor.doctor_table import document, exit_code, lines
from recoverrun.doctor.fleet_checks import Fleet, fleet_findings
from recoverrun.doctor.node_facts import NodeFacts, as_json, from_json

WAIT_S = 60.0
"""How long the first node waits for the others, and for their calls."""

PORT_MOST = 65_535
TROUBLE_MOST = 64
MARK = re.compile(r"\.doctor\.[0-9a-f]{16}")
"""The name of a file that the first node has in its run directory while nodes meet."""

Place = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetVerdict:
    """The table, as each node prints it."""

    text: str
    json: str
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStanding:
    """The state of a node beside its facts. `None`: not known yet."""

    host: str  # where it can be called; "": at the address from which it is heard
    port: int
    wall_s: float  # seconds since 1970, as it says so
    said_s: float  # the same by the clock that nobody sets
    calls: Mapping[str, str] | None = None  # whom it could not call, and why; "" if it could
    rate: Rate | None = None  # of its clock, by that of the first node
    shares: bool | None = None  # whether it sees the mark in the run directory
    has_table: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAnswer:
    """The answer of the first node. `peers` and `verdict` are None until they are known."""

    peers: Mapping[str, Place] | None
    verdict: FleetVerdict | None
    mark: str  # a file of its run directory, "" where there is none
    said_s: float  # of the standing that is answered
    stamped_s: float  # by the first node's clock


@dataclass(slots=True)
class _Member:
    facts: NodeFacts
    place: Place
    offset_s: float
    calls: dict[str, str] | None = None  # by member
    rate: Rate | None = None
    shares: bool | None = None
    has_table: bool = False

    @property
    def told_all(self) -> bool:
        return self.calls is not None and self.rate is not None and self.shares is not None


@dataclass(slots=True)
class FleetGathering:
    """The first node's book. `mark` is the name of a file in its run directory, "" for none."""

    wanted: int
    began_at: float
    mark: str = ""
    _members: dict[str, _Member] = field(default_factory=dict)
    _closed_at: float = -1.0  # no more nodes are taken in
    _verdict: FleetVerdict | None = None

    def add_first(self, own: str, facts: NodeFacts, place: Place) -> None:
        """The node that gathers is one of them."""
        first = _Member(facts, place, 0.0, rate=Rate(1.0, 1.0), shares=bool(self.mark))
        self._members[own] = first

    def hear(self, sender: str, address: str, text: bytes, wall_s: float, now: float) -> bytes:
        """A node says where it stands; the answer. Raises ValueError for what is no standing.

        `wall_s` is the time of day, `now` that of the clock that nobody sets; both in seconds.
        """
        raw = json.loads(text)
        if not isinstance(raw, dict):
            raise ValueError("a standing is a JSON object")
        said = _standing(raw)
        member = self._members.get(sender)
        if member is None and self._closed_at < 0:
            facts = from_json(_bytes(raw, "facts"))
            place = (said.host or address, said.port)
            facts = replace(facts, node=self._name(facts.node))
            member = _Member(facts, place, said.wall_s - wall_s)
            self._members[sender] = member
        if member is not None:
            # A word that was long on its way makes a clock look late, never early.
            member.offset_s = max(member.offset_s, said.wall_s - wall_s)
            member.rate = said.rate or member.rate
            member.shares = said.shares if said.shares is not None else member.shares
            member.has_table |= said.has_table
            if member.calls is None and said.calls is not None:
                self.take_calls(sender, said.calls)
        self.tick(now)
        return self.answer(said.said_s, now)

    def _name(self, name: str) -> str:
        """Two nodes may call themselves alike."""
        taken = {one.facts.node for one in self._members.values()}
        names = (name if number == 1 else f"{name}.{number}" for number in range(1, 100_000))
        return next(one for one in names if one not in taken)

    def take_calls(self, caller: str, calls: Mapping[Any, Any]) -> None:
        """A node has called all others; why one was not reached, or ""."""
        self._members[caller].calls = {
            name: str(calls[name])[:TROUBLE_MOST] for name in self._members if name in calls
        }

    def tick(self, now: float) -> None:
        """Time passed: go on without whoever did not come, or did not tell all."""
        if self._closed_at < 0:
            if len(self._members) < self.wanted and now - self.began_at < WAIT_S:
                return
            self._closed_at = now
        told = all(one.told_all for one in self._members.values())
        if self._verdict is None and (told or now - self._closed_at >= WAIT_S):
            self._verdict = self._judged()

    def answer(self, said_s: float = 0.0, now: float = 0.0) -> bytes:
        """The present state, in answer to what was said at `said_s` and heard at `now`."""
        peers = {name: list(one.place) for name, one in self._members.items()}
        verdict = self._verdict
        table = None if verdict is None else [verdict.text, verdict.json, verdict.exit_code]
        return json.dumps(
            {
                "peers": peers if self._closed_at >= 0 else None,
                "table": table,
                "mark": self.mark,
                "said_s": said_s,
                "stamped_s": now,
            }
        ).encode()

    @property
    def peers(self) -> dict[str, Place] | None:
        """All nodes that came, once no more are taken in."""
        return {k: m.place for k, m in self._members.items()} if self._closed_at >= 0 else None

    @property
    def verdict(self) -> FleetVerdict | None:
        """The table, once there is one."""
        return self._verdict

    @property
    def over(self) -> bool:
        """True if every node that came has said that it has the table, but for the first."""
        return self._verdict is not None and all(
            one.has_table for one in list(self._members.values())[1:]
        )

    def _judged(self) -> FleetVerdict:
        names = {key: one.facts.node for key, one in self._members.items()}
        members = list(self._members.values())
        calls = {
            names[key]: {names[other]: why for other, why in (one.calls or {}).items()}
            for key, one in self._members.items()
        }
        fleet = Fleet(
            nodes=[one.facts for one in members],
            wanted=self.wanted,
            offsets_s={one.facts.node: one.offset_s for one in members},
            rates={one.facts.node: one.rate for one in members if one.rate is not None},
            shares={one.facts.node: one.shares for one in members if one.shares is not None},
            calls=calls,
            hosts={one.facts.node: one.place[0] for one in members},
        )
        findings = fleet_findings(fleet)
        return FleetVerdict(
            text="\n".join(lines(fleet.nodes, findings)),
            json=document(fleet.nodes, findings),
            exit_code=exit_code(findings),
        )


def standing(facts: NodeFacts, said: NodeStanding) -> bytes:
    """The message of a node: its facts, and its state."""
    rate = None if said.rate is None else [said.rate.least, said.rate.most]
    known = {
        "facts": as_json(facts).decode(), "host": said.host, "port": said.port,
        "wall_s": said.wall_s, "said_s": said.said_s, "calls": said.calls, "rate": rate,
        "shares": said.shares, "has_table": said.has_table,
    }  # fmt: skip
    return json.dumps(known).encode()


def _standing(raw: Mapping[str, Any]) -> NodeStanding:
    """The state that a peer tells of itself. Raises ValueError."""
    host, port, calls, rate = (raw.get(name) for name in ("host", "port", "calls", "rate"))
    if not isinstance(port, int) or not 0 < port <= PORT_MOST:
        raise ValueError("a port that cannot be")
    bounds = None
    if isinstance(rate, list) and len(rate) == 2:
        bounds = Rate(_number(rate[0], "a rate"), _number(rate[1], "a rate"))
    shares = raw.get("shares")
    return NodeStanding(
        host=host[:256] if isinstance(host, str) else "",
        port=port,
        wall_s=_number(raw.get("wall_s"), "wall_s"),
        said_s=_number(raw.get("said_s"), "said_s"),
        calls=calls if isinstance(calls, dict) else None,
        rate=bounds,
        shares=shares if isinstance(shares, bool) else None,
        has_table=raw.get("has_table") is True,
    )


def answered(text: bytes) -> FleetAnswer:
    """The answer of the first node. Raises ValueError for what is no answer."""
    raw = json.loads(text)
    if not isinstance(raw, dict):
        raise ValueError("an answer is a JSON object")
    peers, table, mark = raw.get("peers"), raw.get("table"), raw.get("mark")
    places: dict[str, Place] | None = None
    if isinstance(peers, dict):
        places = {}
        for name, place in peers.items():
            match place:
                case [str(host), int(port)] if 0 < port <= PORT_MOST:
                    places[name] = (host, port)
                case _:
                    raise ValueError("a place that cannot be")
    verdict = None
    match table:
        case [str(page), str(object_), int(code)] if 0 <= code < 256:
            verdict = FleetVerdict(text=page, json=object_, exit_code=code)
        case None:
            pass
        case _:
            raise ValueError("a table that cannot be")
    return FleetAnswer(
        peers=places,
        verdict=verdict,
        mark=mark if isinstance(mark, str) and MARK.fullmatch(mark) else "",
        said_s=_number(raw.get("said_s"), "said_s"),
        stamped_s=_number(raw.get("stamped_s"), "stamped_s"),
    )


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e18:
        raise ValueError(f"{name} is no number")
    return float(value)


def _bytes(raw: Mapping[str, Any], name: str) -> bytes:
    value = raw.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name} are missing")
    return value.encode()
