"""The first failure where a whole node is lost (rule 4)."""

from pathlib import Path

from recoverrun.reports.root_cause import losses
from rendezvous.journal.reader import read_run
from tests.unit.journals import Story


def test_ranks_that_came_to_their_end_on_a_node_that_is_silent_are_not_blamed(
    tmp_path: Path,
) -> None:
    """A launcher that is stopped while its workers train on is lost after they have ended."""
    story = Story(tmp_path)
    story.start(nodes=3)
    story.steps(0, 6)
    for rank in (2, 3):
        story.exit(rank, node="gpu-02")
    story.wait(5.5)
    story.write("node.lost", "gpu-02: its launcher was silent for too long", ranks=[2, 3])
    story.lose(1, 2, "node gpu-02 is lost: its launcher was silent for too long")
    story.recovered(6, {1: 2}, [])
    story.end()

    (loss,) = losses(read_run(story.close()))

    assert loss.root.cause == "node-lost"
    assert loss.root.what == "node gpu-02 was lost with ranks 2, 3"


def test_a_node_that_is_lost_after_a_rank_of_it_has_left_is_not_why(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.start(nodes=3)
    story.steps(0, 6)
    story.exit(3, node="gpu-02")
    story.lose(1, 3, "rank 3 exited with code 0 before the end of step 7")
    story.wait(0.1)
    story.write("node.lost", "gpu-02: its launcher has ended", ranks=[2, 3])
    story.recovered(6, {1: 3}, [])
    story.end()

    (loss,) = losses(read_run(story.close()))

    assert loss.root.what == "rank 3 exited with code 0 while others still trained"
