"""The records and lines about who takes part and who leads."""

from collections.abc import Callable, Iterable

from rendezvous.consensus.configuration import Configuration
from rendezvous.protocol.records import Json, Record, notice

WAYS_ON = (
    "it goes on alone if the others are proved dead, with a witness, or with "
    "--on-partition=continue"
)
"""What a user can do about a stop for silence."""


def elected(name: str, number: int, *, etcd: bool) -> Record:
    """Return the record of this launcher's election in round `number`, or by that claim."""
    words = f"{name} coordinates ({'claim' if etcd else 'ballot'} {number})"
    return Record("leader.elect", words, {"round": number})


def decided(configuration: Configuration, name: Callable[[str], str], *, etcd: bool) -> Record:
    """Return the record of a configuration; `name` gives the node of a launcher."""
    names = [name(member) for member in configuration.members]
    second = "; a witness votes too" if configuration.witness in configuration.voters else ""
    second = "; decided by etcd" if etcd else second
    words = f"launchers that take part: {', '.join(names)}{second}"
    return Record("roll.decide", words, {"number": configuration.number, "nodes": list(names)})


def taken_over(name: str, place: str, term: int, former: str, why: str) -> Record:
    """Return the record of a takeover by the launcher on this node, which others reach at `place`,
    "" if that is not known. `why` that on the node `former` has left, "" if it did not say so.
    """
    words = f"node {name} coordinates this run now" + (f": {why}" if why else "")
    known: dict[str, Json] = {"place": place} if place else {}
    known |= {"former": former} if former else {}
    return Record("leader.succeed", words, {"tenure": term, **known})


def alone(names: Iterable[str]) -> Record:
    """Return what a user should know who has said that silence is death."""
    return notice(
        f"this node goes on alone (--on-partition=continue): nothing proves that "
        f"{', '.join(names)} ended, and if not, two jobs train from here on"
    )


def cut_off(reason: str, *, silent: bool) -> str:
    """Return why this node has no part in the job any more."""
    ways = f"; {WAYS_ON}" if silent else ""
    return f"this node is cut off from the job: {reason}{ways}"
