"""The calls to etcd and its answers, in the form of its JSON gateway.

A job has two keys. `leader` belongs to a lease: it is there for as long as whoever made it renews
that, and its create revision (the *claim*) tells one leader from the next. `configuration` holds
the newest configuration, and changes only in a transaction that demands the claim and the revision
that was read: so each number is given once, and never by somebody whose claim is gone.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from rendezvous.consensus.configuration import Configuration
from rendezvous.protocol.register_messages import ConfigurationFields

ETCD = "etcd"

TTL_S = 3
"""Of the leader's lease. etcd grants no less than 1.5 of its election timeouts."""

CALL_S = 2.5
"""A call without an answer for so long has failed."""

Json = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Look:
    """Read the leader and the newest configuration."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease that lapses `ttl_s` after it was last renewed."""

    ttl_s: int


@dataclass(frozen=True, slots=True)
class Renew:
    lease: int


@dataclass(frozen=True, slots=True)
class Revoke:
    """End a lease: ours, or that of a leader that is proved to be dead."""

    lease: int


@dataclass(frozen=True, slots=True)
class Stand:
    """Make the key `leader` of this lease, if there is none."""

    lease: int
    name: str


@dataclass(frozen=True, slots=True)
class Decide:
    """Make this the newest if the leader has this claim and the one before this revision."""

    claim: int
    revision: int  # 0: there was none
    configuration: Configuration


Call = Look | Grant | Renew | Revoke | Stand | Decide


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The content of the two keys after a call. `done`: it changed what it was to change."""

    done: bool
    leader: str  # "": nobody
    claim: int
    lease: int
    configuration: Configuration | None
    revision: int


@dataclass(frozen=True, slots=True)
class Leased:
    """The lease runs for `ttl_s` from now on; 0: it has lapsed."""

    lease: int
    ttl_s: float


@dataclass(frozen=True, slots=True)
class Failed:
    """Nothing is known of what the call has done. The reason is one clause, for people."""

    reason: str


Answer = Seen | Leased | Failed


class NotEtcd(ValueError):
    """The answer is not that of an etcd of version 3."""


def prefix_of(run_id: str, job: str) -> str:
    """The prefix of a job's keys."""
    return f"/recoverrun/{run_id}/{job}/"


def witness_of(founder: str) -> str:
    """The witness in all configurations of the job that this launcher began."""
    return f"{ETCD}/{founder}"


def job_of(configuration: Configuration) -> str:
    """The job among those of one name: its founder, which is one process for all time."""
    return configuration.witness.partition("/")[2]


def request(call: Call, prefix: str) -> tuple[str, Json]:
    """The path and the body of a call."""
    leader, configuration = f"{prefix}leader", f"{prefix}roll"
    see: list[Json] = [{"requestRange": {"key": _b64(key)}} for key in (leader, configuration)]
    match call:
        case Look():
            return "/v3/kv/txn", {"success": see}
        case Grant(ttl_s=ttl_s):
            return "/v3/lease/grant", {"TTL": str(ttl_s)}
        case Renew(lease=lease):
            return "/v3/lease/keepalive", {"ID": str(lease)}
        case Revoke(lease=lease):
            return "/v3/lease/revoke", {"ID": str(lease)}
        case Stand(lease=lease, name=name):
            put: Json = {"key": _b64(leader), "value": _b64(name), "lease": str(lease)}
            free = _compare(leader, "CREATE", "create_revision", 0)
            return "/v3/kv/txn", _txn([free], put, see)
        case Decide(claim=claim, revision=revision, configuration=following):
            put = {"key": _b64(configuration), "value": _b64(json.dumps(following.plain()))}
            claimed = _compare(leader, "CREATE", "create_revision", claim)
            newest = _compare(configuration, "MOD", "mod_revision", revision)
            return "/v3/kv/txn", _txn([claimed, newest], put, see)


def answer(call: Call, content: object) -> Answer:
    """The content of the gateway's answer to `call`. Raises NotEtcd."""
    try:
        return _answer(call, cast(Json, content))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise NotEtcd(f"{type(error).__name__}: {error}") from error


def cluster(content: object) -> str:
    """The id of the cluster that has answered. Raises NotEtcd."""
    header = content.get("header") if isinstance(content, dict) else None
    found = header.get("cluster_id") if isinstance(header, dict) else None
    if not isinstance(found, str):
        raise NotEtcd("its answer names no cluster")
    return found


def _answer(call: Call, content: Json) -> Answer:
    match call:
        case Grant():
            return Leased(_int(content["ID"]), float(_int(content["TTL"])))
        case Renew(lease=lease):
            result = cast(Json, content["result"])
            return Leased(lease, float(_int(result.get("TTL", "0"))))
        case Revoke(lease=lease):
            return Leased(lease, 0.0)
        case _:
            responses = cast(list[Json], content["responses"])
            leader, configuration = (_kv(response) for response in responses[-2:])
            return Seen(
                done=bool(content.get("succeeded", False)),
                leader=_text(leader) if leader else "",
                claim=_int(leader["create_revision"]) if leader else 0,
                lease=_int(leader.get("lease", "0")) if leader else 0,
                configuration=_configuration(_text(configuration)) if configuration else None,
                revision=_int(configuration["mod_revision"]) if configuration else 0,
            )


def _txn(compare: list[Json], put: Json, see: list[Json]) -> Json:
    return {"compare": compare, "success": [{"requestPut": put}, *see], "failure": see}


def _compare(key: str, target: str, field: str, number: int) -> Json:
    return {"key": _b64(key), "target": target, "result": "EQUAL", field: str(number)}


def _kv(response: Json) -> Json | None:
    found = cast(Json, response["response_range"])
    kvs = cast(list[Json], found.get("kvs", []))
    return kvs[0] if kvs else None


def _text(kv: Json) -> str:
    return base64.b64decode(cast(str, kv.get("value", ""))).decode()


def _configuration(text: str) -> Configuration:
    number, term, members, witness = cast(ConfigurationFields, json.loads(text))
    return Configuration(int(number), int(term), tuple(map(str, members)), str(witness))


def _int(value: object) -> int:
    return int(cast(str, value))


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
