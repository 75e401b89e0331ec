"""A node that is lost again and again is held off longer each time, then refused for an hour."""

from rendezvous.membership.flapping import HOUR_S, FlappingNodes, HeldOff
from rendezvous.protocol.formation_messages import Join, Refusal


def _join(incarnation: str, node: str = "n7", rank: int = -1) -> Join:
    return Join(
        run_id="job", node=node, incarnation=incarnation, node_rank=rank, nproc=2, version="1",
        address="10.0.0.7",
    )  # fmt: skip


class Node:
    """Comes and is lost."""

    def __init__(self) -> None:
        self.flapping_nodes = FlappingNodes()
        self.said: list[str] = []
        self.times = 0

    def lose(self, now: float, node: str = "n7") -> None:
        self.times += 1
        join = _join(f"i{self.times}", node)
        self.flapping_nodes.know([join])
        self.said += [
            record.reason for record in self.flapping_nodes.lose(join.incarnation, "gone", now)
        ]

    def judge(self, now: float, node: str = "n7") -> Refusal | HeldOff | None:
        return self.flapping_nodes.judge(_join("new", node), now)


def test_each_loss_holds_a_node_off_for_longer_and_the_third_for_an_hour() -> None:
    node = Node()

    node.lose(0.0)
    assert (node.judge(1.5), node.judge(2.0)) == (HeldOff(0.5), None)
    node.lose(10.0)
    assert (node.judge(15.0), node.judge(30.0)) == (HeldOff(15.0), None)
    node.lose(40.0)
    refusal = node.judge(100.0)

    assert isinstance(refusal, Refusal) and refusal.exit_code == 80
    assert refusal.reason == (
        "node n7 was lost 3 times within an hour, and this job takes it no more for 58 min; "
        "last: gone"
    )
    assert node.said == [
        "node n7 was lost 2 times within an hour and may join again in 20 s (gone)",
        "node n7 was lost 3 times within an hour and is not let in again (gone)",
    ]


def test_a_loss_is_forgotten_after_an_hour_and_others_are_not_blamed() -> None:
    node = Node()
    for at in (0.0, 100.0, 200.0):
        node.lose(at)

    assert node.judge(300.0, node="n8") is None
    assert isinstance(node.judge(HOUR_S - 1), Refusal)
    assert node.judge(HOUR_S) is None


def test_a_planned_leave_and_an_unknown_launcher_are_no_loss() -> None:
    flapping_nodes = FlappingNodes()
    flapping_nodes.know([_join("i1")])
    flapping_nodes.forget("i1")

    assert flapping_nodes.lose("i1", "gone", 0.0) == flapping_nodes.lose("i2", "gone", 0.0) == []
    assert flapping_nodes.judge(_join("i3"), 0.1) is None


def test_a_loss_is_counted_once() -> None:
    flapping_nodes = FlappingNodes()
    flapping_nodes.know([_join("i1")])

    flapping_nodes.lose("i1", "gone", 0.0)

    assert flapping_nodes.lose("i1", "gone", 0.1) == []
    assert flapping_nodes.judge(_join("i2"), 0.5) == HeldOff(1.5)
