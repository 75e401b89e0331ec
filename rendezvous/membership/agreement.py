"""Nodes that cannot take part in a job: what they are told, and what those who wait are told."""

from collections.abc import Iterable
from difflib import get_close_matches

from rendezvous.protocol.formation_messages import Join


def disagreement(join: Join, other: Join) -> str:
    """The reason why they cannot, as it is said to the one that joins; "" if they can."""
    if join.agreement != other.agreement:
        return "its launcher has another --etcd, or another etcd behind it"
    if join.role != other.role or join.options == other.options:
        return ""
    here = [option for option in join.options if option not in other.options]
    there = [option for option in other.options if option not in join.options]
    only = [
        f"{' '.join(options)} is given {place} only"
        for options, place in ((here, "here"), (there, "there"))
        if options
    ]
    return f"{', '.join(only)}; all nodes need the same options"


def misfit(join: Join, others: Iterable[Join], *, version: str) -> str:
    """The version by which this node differs from the others of its job, or ""."""
    if join.version != version:
        versions = f"this is recoverrun {join.version}, the job runs {version}"
        return f"{versions}: all nodes need the same version"
    for other in others:
        if join.torch and other.torch and join.torch != other.torch:
            versions = f"this node has torch {join.torch}, {whereabouts(other)} {other.torch}"
            return f"{versions}: all nodes need the same version"
    return ""


MISTYPED = 0.8
"""The least likeness of two names of scripts of which one is a slip of the pen for the other."""

NAME_MOST = 255
"""Characters of names that are compared: longer ones would take long, and anybody may knock."""


def belongs(join: Join, other: Join) -> bool:
    """True if both were started to do the same: one that is refused is no stranger."""
    own = join.role, join.arguments
    return own == (other.role, other.arguments) and _same_script(join, other)


def _same_script(join: Join, other: Join) -> bool:
    """True if both name it. A node that has no such file is taken to have mistyped its name, if
    that is nearly the other's and all else is the same.
    """
    if join.script == other.script:
        return True
    hindered = bool(join.hindrance or other.hindrance) and join.arguments == other.arguments
    if not hindered or max(len(join.script), len(other.script)) > NAME_MOST:
        return False
    return bool(get_close_matches(join.script, [other.script], n=1, cutoff=MISTYPED))


def strangeness(join: Join, others: Iterable[Join], *, run_id: str) -> str:
    """The reason why this launcher is of another job than `run_id`, or ""."""
    for other in others:
        if join.role == other.role and not _same_script(join, other):
            jobs = f"run {run_id!r} is {other.script} on {whereabouts(other)}"
            return f"{jobs}, not {join.script}: another job uses this id, choose an --rdzv-id"
    return ""


def whereabouts(join: Join) -> str:
    """The node, and the address from which it came."""
    return f"{join.node} ({join.address})" if join.address else join.node


REFUSED_MOST = 8
"""Nodes of which it is told that they were refused: anybody may knock."""


class RefusedNodes:
    """The nodes that a job has refused while it waited for others, with what they were told."""

    def __init__(self) -> None:
        self._told: dict[str, str] = {}

    def add(self, join: Join, reason: str) -> str:
        """The words for those who wait; "" if they know, or have been told of many."""
        node = whereabouts(join)
        full = node not in self._told and len(self._told) >= REFUSED_MOST
        if full or self._told.get(node) == reason:
            return ""
        self._told[node] = reason
        return _refused(node, reason)

    def words(self) -> str:
        """The words that are added to the reason of a job that never formed, or ""."""
        return "".join(f"; {_refused(*item)}" for item in [*self._told.items()][-1:])


def _refused(node: str, reason: str) -> str:
    return f"{node} was refused, and told: {reason}"
