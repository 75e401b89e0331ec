"""How the nodes of a job tell the first one about themselves, and what it answers.

Each node says where it stands, twice a second: its facts, and whom it could call once it has been
told the others. The answer says where the first one stands: the others once all are there, the
table once all have called. So any message may be lost, or come twice. Pure: messages in, answers
out, time passed in.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from recoverrun.doctor.doctor_table import document, exit_code, lines
from recoverrun.doctor.fleet_checks import Fleet, fleet_findings
from recoverrun.doctor.node_facts import NodeFacts, as_json, from_json

WAIT_S = 60.0
"""How long the first node waits for the others, and for their calls."""

PORT_MOST = 65_535
TROUBLE_MOST = 64
Place = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The table, as each node prints it."""

    text: str
    json: str
    exit_code: int


@dataclass(slots=True)
class _Member:
    facts: NodeFacts
    place: Place
    offset_s: float
    calls: dict[str, str] | None = None  # by member
    has_table: bool = False


@dataclass(slots=True)
class Gathering:
    """The first node's book."""

    wanted: int
    began_at: float
    _members: dict[str, _Member] = field(default_factory=dict)
    _closed_at: float = -1.0  # no more nodes are taken in
    _verdict: Verdict | None = None

    def add_first(self, own: str, facts: NodeFacts, place: Place) -> None:
        """The node that gathers is one of them."""
        self._members[own] = _Member(facts, place, 0.0)

    def hear(self, sender: str, address: str, text: bytes, wall_s: float, now: float) -> bytes:
        """A node says where it stands; the answer. Raises ValueError for what is no standing."""
        raw = json.loads(text)
        if not isinstance(raw, dict):
            raise ValueError("a standing is a JSON object")
        member = self._members.get(sender)
        if member is None and self._closed_at < 0:
            facts, host, port = from_json(_bytes(raw, "facts")), raw.get("host"), raw.get("port")
            if not isinstance(port, int) or not 0 < port <= PORT_MOST:
                raise ValueError("a port that cannot be")
            place = (host[:256] if isinstance(host, str) and host else address, port)
            facts = replace(facts, node=self._name(facts.node))
            member = _Member(facts, place, facts.wall_s - wall_s)
            self._members[sender] = member
        if member is not None and member.calls is None and isinstance(raw.get("calls"), dict):
            self.take_calls(sender, raw["calls"])
        self.tick(now)
        if member is not None and self._verdict is not None:
            member.has_table = True
        return self.answer()

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
        """Time passed: go on without whoever did not come, or did not call."""
        if self._closed_at < 0:
            if len(self._members) < self.wanted and now - self.began_at < WAIT_S:
                return
            self._closed_at = now
        called = all(one.calls is not None for one in self._members.values())
        if self._verdict is None and (called or now - self._closed_at >= WAIT_S):
            self._verdict = self._judged()

    def answer(self) -> bytes:
        peers = {name: list(one.place) for name, one in self._members.items()}
        verdict = self._verdict
        table = None if verdict is None else [verdict.text, verdict.json, verdict.exit_code]
        return json.dumps(
            {"peers": peers if self._closed_at >= 0 else None, "table": table}
        ).encode()

    @property
    def verdict(self) -> Verdict | None:
        """The table, once there is one."""
        return self._verdict

    @property
    def over(self) -> bool:
        """True if every node that came has been told the table, but for the first."""
        return self._verdict is not None and all(
            one.has_table for one in list(self._members.values())[1:]
        )

    def _judged(self) -> Verdict:
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
            calls=calls,
        )
        findings = fleet_findings(fleet)
        return Verdict(
            text="\n".join(lines(fleet.nodes, findings)),
            json=document(fleet.nodes, findings),
            exit_code=exit_code(findings),
        )


def standing(facts: NodeFacts, host: str, port: int, calls: Mapping[str, str] | None) -> bytes:
    """What a node says: its facts, where it can be called, and whom it could call so far.

    `host` is "" where the address from which it is heard will do.
    """
    known = {"facts": as_json(facts).decode(), "host": host, "port": port, "calls": calls}
    return json.dumps(known).encode()


def answered(text: bytes) -> tuple[dict[str, Place] | None, Verdict | None]:
    """The others, once all are there, and the table. Raises ValueError for what is no answer."""
    raw = json.loads(text)
    if not isinstance(raw, dict):
        raise ValueError("an answer is a JSON object")
    peers, table = raw.get("peers"), raw.get("table")
    places: dict[str, Place] | None = None
    if isinstance(peers, dict):
        places = {}
        for name, place in peers.items():
            match place:
                case [str(host), int(port)] if 0 < port <= PORT_MOST:
                    places[name] = (host, port)
                case _:
                    raise ValueError("a place that cannot be")
    match table:
        case [str(page), str(object_), int(code)] if 0 <= code < 256:
            return places, Verdict(text=page, json=object_, exit_code=code)
        case None:
            return places, None
        case _:
            raise ValueError("a table that cannot be")


def _bytes(raw: Mapping[str, Any], name: str) -> bytes:
    value = raw.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name} are missing")
    return value.encode()
