"""Places of an attempt that are vacant, and who takes them while the others train.

A place is a node rank with its ranks. A launcher that waits takes one whose node is lost if it has
as many workers. It hosts the same ranks then, under its own name; nobody else's place changes, so
the job grows back to the size that it had, and never beyond. A launcher that was started with the
node rank of a lost one comes before the others.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from rendezvous.protocol.formation_messages import Join, Start
from rendezvous.protocol.peer import Peer


def assigned(start: Start, vacant: Iterable[int], waiting: Sequence[Join]) -> dict[int, Join]:
    """The launchers of `waiting` that take `vacant` node ranks, first come first served."""
    several_roles = start.role_world_size not in (-1, start.world_size)
    if several_roles:  # who has which role is not known of those who are lost
        return {}
    found: dict[int, Join] = {}
    for node_rank in sorted(vacant):
        nproc = start.peers[node_rank][3]
        left = [join for join in waiting if join not in found.values() and join.nproc == nproc]
        left.sort(key=lambda join: join.node_rank != node_rank)  # stable
        if left:
            found[node_rank] = left[0]
    return found


def with_peer(start: Start, node_rank: int, peer: Peer, name: str, asked: int) -> Start:
    """`start` as it is once the launcher `peer`, on the node `name`, has that place.

    `asked`: the node rank that it asked for, -1 for any.
    """
    peers = (*start.peers[:node_rank], peer, *start.peers[node_rank + 1 :])
    nodes = (*start.nodes[:node_rank], name, *start.nodes[node_rank + 1 :])
    ranks = start.asked or (-1,) * len(peers)
    ranks = (*ranks[:node_rank], asked, *ranks[node_rank + 1 :])
    return replace(start, peers=peers, nodes=nodes, asked=ranks)


def name_of(start: Start, node_rank: int, host: str) -> str:
    """The name of a node on `host` in that place: two nodes never have one name."""
    by_place = f"{host}.{node_rank}"
    if start.nodes[node_rank] in (host, by_place):
        return start.nodes[node_rank]
    return by_place if host in start.nodes or by_place in start.nodes else host


def start_of(start: Start, incarnation: str, leader: str) -> Start | None:
    """The message to the launcher `incarnation` about its place, None if it has none.

    `start` is that of any launcher: all agree but for their own ranks.
    """
    first = 0
    for node_rank, peer in enumerate(start.peers):
        if peer[0] == incarnation:
            one_role = start.role_world_size in (-1, start.world_size)
            return replace(
                start,
                node_rank=node_rank,
                first_rank=first,
                nproc=peer[3],
                first_role_rank=first if one_role else -1,
                leader=leader,
                succeeds=True,
            )
        first += peer[3]
    return None
