"""Words about the nodes of a job that forms: their names, their kinds, those that are missing."""

from collections.abc import Collection, Iterable

from rendezvous.protocol.formation_messages import Join

NAMED_MOST = 8
"""Node ranks that are named one by one."""


def node_names(hosts: list[str]) -> tuple[str, ...]:
    """The names of the nodes: their hosts', with node ranks if one host has several launchers."""
    if len(set(hosts)) == len(hosts):
        return tuple(hosts)
    return tuple(f"{host}.{rank}" for rank, host in enumerate(hosts))


def awaited_words(here: int, least: int, most: int, taken: Collection[int]) -> str:
    """Words for those who wait, `here` of `least` to `most` nodes; some asked for the node ranks
    `taken`.
    """
    missing = least - here
    vacant = [str(rank) for rank in range(most) if rank not in taken]
    # Ranks can be named only where everybody who is here has one.
    known = len(taken) == here and len(vacant) == missing <= NAMED_MOST
    ranks = f" (node rank{'s' if missing > 1 else ''} {', '.join(vacant)})" if known else ""
    return f"waiting for {missing} of {least} nodes{ranks}"


def incomplete_words(joins: Iterable[Join], least: int, timeout_s: float) -> str:
    """Words about a job that has not formed in time; `joins` are of those who are here."""
    nodes = sorted(join.node for join in joins)
    here = ", ".join(nodes) or "none"
    return f"{len(nodes)} of {least} nodes joined within {timeout_s:g} s ({here})"


def kind(join: Join) -> tuple[object, ...]:
    """The part of a join in which all nodes of a job are alike."""
    return join.torch, join.role, join.script, join.agreement, join.options
