"""The takers of a lost node's place, and what launchers are told of it."""

from dataclasses import replace

from rendezvous.membership.vacant_places import assigned, name_of, start_of, with_peer
from rendezvous.protocol.formation_messages import Join, Start


def start() -> Start:
    peers = (("a", "h", 1, 2), ("b", "h", 2, 3), ("c", "h", 3, 2))
    return Start(
        generation=1, node_rank=0, nnodes=3, first_rank=0, nproc=2, world_size=7, master_addr="h:1",
        nodes=("n0", "n1", "n2"), first_role_rank=0, role_world_size=7, leader="a", peers=peers,
    )  # fmt: skip


def join(name: str, nproc: int = 2, node_rank: int = -1) -> Join:
    return Join(
        run_id="job", node=name, incarnation=name, node_rank=node_rank, nproc=nproc, version="1"
    )


def taken(*waiting: Join, vacant: tuple[int, ...] = (0, 2)) -> dict[int, str]:
    return {rank: one.incarnation for rank, one in assigned(start(), vacant, waiting).items()}


def test_who_came_first_takes_the_first_place_that_fits() -> None:
    assert taken(join("x"), join("y"), join("z")) == {0: "x", 2: "y"}
    assert taken(join("x", nproc=3)) == {}
    assert taken(join("x", nproc=3), vacant=(1, 2)) == {1: "x"}
    assert taken() == taken(join("x"), vacant=()) == {}


def test_a_launcher_with_the_node_rank_of_a_lost_one_comes_first() -> None:
    assert taken(join("x"), join("y", node_rank=0)) == {0: "y", 2: "x"}
    assert taken(join("x", node_rank=1)) == {0: "x"}


def test_no_place_is_given_away_where_nodes_have_different_roles() -> None:
    several = replace(start(), role_world_size=4)

    assert assigned(several, (0,), (join("x"),)) == {}


def test_the_launcher_hosts_the_ranks_of_the_lost_one_and_all_know_it() -> None:
    now = with_peer(start(), 1, ("x", "g", 9, 3), "m", -1)
    told, other = start_of(now, "x", "c"), start_of(now, "c", "c")

    assert told is not None and other is not None
    assert (told.node_rank, told.first_rank, told.nproc, told.first_role_rank) == (1, 2, 3, 2)
    assert (other.node_rank, other.first_rank, other.nproc) == (2, 5, 2)
    assert told.peers == other.peers and told.nodes == ("n0", "m", "n2")
    assert told.succeeds and told.leader == "c" and told.world_size == 7
    assert start_of(now, "b", "c") is None


def test_no_two_nodes_have_one_name() -> None:
    named = replace(start(), nodes=("n", "n.1", "m"))

    assert name_of(start(), 1, "other") == "other"
    assert name_of(start(), 1, "n1") == "n1"
    assert name_of(named, 1, "n") == "n.1"
    assert name_of(named, 2, "n") == "n.2"
