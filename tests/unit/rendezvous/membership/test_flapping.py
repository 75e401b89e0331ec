"""A node that is lost again and again is held off longer each time, then refused for an hour."""

from rendezvous.membership.flapping import HOUR_S, FlappingNodes, HeldOff
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.formation_messages import Join, Refusal, Start


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

    assert isinstance(refusal, Refusal) and refusal.exit_code == ExitCode.NEVER_FORMED
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
    flapping_nodes.leave("i1")

    assert flapping_nodes.lose("i1", "gone", 0.0) == flapping_nodes.lose("i2", "gone", 0.0) == []
    assert flapping_nodes.judge(_join("i3"), 0.1) is None


def test_a_planned_leave_undoes_its_loss_whoever_has_counted_or_tells_of_it() -> None:
    node = Node()
    node.lose(0.0)
    node.lose(10.0)
    leaver = FlappingNodes()
    leaver.leave("i2")
    (word,) = leaver.told(10.0)
    successor = FlappingNodes()
    for told in (word, *node.flapping_nodes.told(11.0)):
        successor.learn(told, 11.0)
    node.flapping_nodes.learn(word, 11.0)

    assert node.judge(11.9) is successor.judge(_join("new"), 11.9) is None
    (one,) = node.flapping_nodes.strikes(11.9)
    assert [who for who, _ in one.lost] == ["i1"]
    assert word in successor.told(11.9)  # it tells it on


def test_a_loss_is_counted_once() -> None:
    flapping_nodes = FlappingNodes()
    flapping_nodes.know([_join("i1")])

    flapping_nodes.lose("i1", "gone", 0.0)

    assert flapping_nodes.lose("i1", "gone", 0.1) == []
    assert flapping_nodes.judge(_join("i2"), 0.5) == HeldOff(1.5)


def test_the_next_coordinator_goes_on_from_what_it_is_told() -> None:
    node = Node()
    node.lose(0.0)
    node.lose(10.0)
    successor = FlappingNodes()  # its clock shows something else
    for told in node.flapping_nodes.strikes(15.0):
        successor.learn(told, 1000.0)

    assert successor.judge(_join("new"), 1000.0) == HeldOff(15.0)
    assert successor.judge(_join("new"), 1015.0) is None
    successor.know([_join("i3")])
    said = successor.lose("i3", "gone again", 1020.0)

    assert "was lost 3 times within an hour and is not let in again" in said[0].reason
    refusal = successor.judge(_join("new"), 1030.0)
    assert isinstance(refusal, Refusal) and refusal.reason.endswith("last: gone again")
    assert successor.judge(_join("new"), 1000.0 - 15.0 + HOUR_S) is None


def test_a_loss_that_several_tell_of_is_counted_once() -> None:
    node = Node()
    node.lose(0.0)
    successor = FlappingNodes()
    successor.know([_join("i1")])
    (told,) = node.flapping_nodes.strikes(1.0)

    successor.learn(told, 1.0)
    successor.learn(told, 1.2)

    assert successor.lose("i1", "gone", 1.3) == []
    assert successor.judge(_join("new"), 1.5) == HeldOff(0.5)


def test_members_whom_another_has_let_in_are_known_by_what_they_asked_for() -> None:
    successor = FlappingNodes()
    start = Start(
        generation=1, node_rank=2, nnodes=3, first_rank=2, nproc=1, world_size=3, master_addr="m",
        nodes=("n7.0", "n7.1", "n8"), asked=(0, 1, -1),
        peers=(("a", "", 1, 1), ("b", "10.0.0.7", 1, 1), ("c", "10.0.0.8", 1, 1)),
    )  # fmt: skip
    successor.know_members(start)

    successor.lose("a", "gone", 0.0)  # where it has called from nobody knows
    assert successor.judge(_join("new", rank=0), 0.5) == HeldOff(1.5)
    assert successor.judge(_join("new", rank=1), 0.5) is None
    successor.lose("b", "gone", 0.0)

    assert successor.judge(_join("new", rank=1), 0.5) == HeldOff(1.5)
    assert successor.judge(_join("new"), 0.5) is None


def test_only_the_losses_asked_for_are_told_and_none_older_than_an_hour() -> None:
    node = Node()
    node.lose(0.0)
    node.lose(10.0, node="n8")

    assert [one.node for one in node.flapping_nodes.strikes(20.0)] == ["n7", "n8"]
    assert [one.node for one in node.flapping_nodes.strikes(20.0, ["i2"])] == ["n8"]
    assert [one.node for one in node.flapping_nodes.strikes(HOUR_S + 5.0)] == ["n8"]


def test_the_reason_of_a_planned_leave_is_handed_on_and_kept() -> None:
    leaver, other = FlappingNodes(), FlappingNodes()
    leaver.leave("old")
    leaver.leave("i1", "SIGTERM was sent")
    (word,) = leaver.told(0.0)

    other.learn(word, 0.0)
    other.leave("i1")  # told again by one who does not know why

    assert (other.why_left("i1"), other.why_left("old")) == ("SIGTERM was sent", "")
