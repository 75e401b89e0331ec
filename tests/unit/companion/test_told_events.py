"""Each event is told by one node, in words, with the record."""

from pathlib import Path

import pytest

from recoverrun.companion.told_events import TellingNode, ToldEvent
from rendezvous.journal.reader import read_run
from tests.unit.journals import Story

PIDS = {"gpu-01": 100, "gpu-02": 200}


def story(tmp_path: Path) -> Story:
    """Two nodes, of which the first coordinates, and a loss."""
    story = Story(tmp_path)
    for node, pid in PIDS.items():
        story.write("run.start", "", node, run_id="job", argv=["train.py"], world_size=2,
                    nnodes=2, version="0.1.0", inject="", pid=pid)  # fmt: skip
    story.write("node.join", "gpu-02 joined", nproc=1, name="gpu-02")
    lost = {"slot": 1, "root_rank": 1, "ranks": [1], "generation": 2}
    story.write("replica.lost", "rank 1 was ended by signal 9", **lost)
    story.write("replica.lost", "rank 1 was ended by signal 9", "gpu-02", **lost, part=True)
    return story


def told(tmp_path: Path, node: str) -> list[ToldEvent]:
    return list(TellingNode(PIDS[node]).events(read_run(tmp_path).entries))


def test_a_loss_is_told_once_by_the_node_that_coordinates(tmp_path: Path) -> None:
    story(tmp_path).close()

    (loss,), others = told(tmp_path, "gpu-01"), told(tmp_path, "gpu-02")

    assert others == []
    assert loss.kind == "loss"
    assert loss.text.startswith("train.py: loss: replica 1 is lost: rank 1")
    assert loss.record["class"] == "loss"
    assert (loss.record["ranks"], loss.record["event"]) == ([1], "replica.lost")
    assert str(loss.record["id"]).startswith("job/gpu-01/")


@pytest.mark.parametrize(
    ("code", "words"), [(0, "train.py ended well"), (137, "train.py failed with exit code 137: ")]
)
def test_the_end_is_told_once_although_all_nodes_record_it(
    tmp_path: Path, code: int, words: str
) -> None:
    run = story(tmp_path)
    for node in PIDS:
        run.write("run.end", "rank 1 was ended by signal 9", node, exit_code=code, root_rank=1)
    run.close()

    found = [one for node in PIDS for one in told(tmp_path, node) if one.kind == "end"]

    assert len(found) == 1
    assert found[0].text.startswith(words)


def test_after_a_takeover_the_new_coordinator_tells(tmp_path: Path) -> None:
    run = story(tmp_path)
    run.write("leader.succeed", "gpu-02 coordinates", "gpu-02", tenure=2)
    run.write("run.end", "done", "gpu-02", exit_code=0, root_rank=-1)
    run.close()

    assert [one.kind for one in told(tmp_path, "gpu-02")] == ["end"]


def test_a_loss_of_a_lost_coordinator_is_told_again_by_its_successor(tmp_path: Path) -> None:
    run = story(tmp_path)
    run.write("leader.succeed", "gpu-02 coordinates", "gpu-02", tenure=2)
    lost = {"slot": 1, "root_rank": 1, "ranks": [1], "generation": 2}
    run.write("replica.lost", "gone", "gpu-02", **lost, part=True, inherited=True)
    run.close()

    assert [one.text for one in told(tmp_path, "gpu-02")] == [
        "train.py: loss: replica 1 is lost: gone"
    ]


def test_a_reason_cannot_break_a_line(tmp_path: Path) -> None:
    run = story(tmp_path)
    run.write("hang.stick", "rank\x1b[31m 0\nhangs", lag_s=9.0)
    run.close()

    assert told(tmp_path, "gpu-01")[-1].text == "train.py: hang: rank 0 hangs"


def test_a_journal_of_an_earlier_run_in_the_same_directory_is_not_told(tmp_path: Path) -> None:
    story(tmp_path).close()

    assert list(TellingNode(999).events(read_run(tmp_path).entries)) == []
