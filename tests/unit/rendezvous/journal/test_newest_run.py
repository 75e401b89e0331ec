"""Several runs whose journals lie in one directory: the newest is read."""

from pathlib import Path

from rendezvous.journal.reader import Entry, RunTail, read_run
from rendezvous.protocol.records import Json
from tests.unit.journals import Story


def begins(story: Story, folder: str, *nodes: str, ranks: int = 2) -> None:
    """Launchers of these nodes begin to write."""
    story.wait(10.0)
    for node in nodes or ("a",):
        fields: dict[str, Json] = {"run_id": "none", "folder": folder, "world_size": ranks}
        fields |= {"argv": ["t.py"], "nnodes": len(nodes), "version": "1", "inject": ""}
        story.write("run.start", folder, node, **fields)


def note(story: Story, reason: str, node: str = "a") -> None:
    story.wait(1.0)
    story.write("notice.give", reason, node, rank=0, event="said")


def ends(story: Story, *nodes: str) -> None:
    for node in nodes or ("a",):
        story.wait(1.0)
        story.write("run.end", "end", node, exit_code=0, root_rank=-1)


def told(entries: list[Entry] | tuple[Entry, ...]) -> list[str]:
    return [entry.reason for entry in entries]


def test_of_two_runs_the_second_is_read(tmp_path: Path) -> None:
    story = Story(tmp_path)
    begins(story, "t/1")
    note(story, "old")
    begins(story, "t/2")
    note(story, "new")

    log = read_run(story.close())

    assert (told(log.entries), log.earlier) == (["t/2", "new"], 1)


def test_a_clock_that_was_set_back_hides_no_run(tmp_path: Path) -> None:
    story = Story(tmp_path)
    begins(story, "t/1")
    note(story, "old")
    ends(story)
    story.wait(-3600.0)
    begins(story, "t/2")
    note(story, "new")

    assert told(read_run(story.close()).entries) == ["t/2", "new"]


def test_a_node_of_an_earlier_run_alone_is_no_part_of_the_next(tmp_path: Path) -> None:
    story = Story(tmp_path)
    begins(story, "t/1", "a", "b")
    note(story, "old", "b")
    begins(story, "t/2", "a")
    note(story, "late", "b")

    assert told(read_run(story.close()).entries) == ["t/2"]


def test_a_launcher_that_takes_part_again_continues_its_run(tmp_path: Path) -> None:
    story = Story(tmp_path)
    begins(story, "t/1", "a", "b")
    note(story, "one", "b")
    begins(story, "t/1", "b")
    note(story, "two", "b")

    log = read_run(story.close())

    assert (told(log.entries), log.earlier) == (["t/1", "t/1", "one", "t/1", "two"], 0)


def test_a_launcher_that_was_not_let_in_hides_no_run_that_is_under_way(tmp_path: Path) -> None:
    story = Story(tmp_path)
    begins(story, "t/1")
    begins(story, "t/2", "c", ranks=0)
    ends(story, "c")
    note(story, "goes on")
    ends(story)

    assert told(read_run(story.close()).entries) == ["t/1", "goes on", "end"]


def test_a_run_that_never_formed_is_the_newest_once_the_one_before_has_ended(
    tmp_path: Path,
) -> None:
    story = Story(tmp_path)
    begins(story, "t/1")
    ends(story)
    begins(story, "t/2", ranks=0)
    note(story, "nobody came")

    assert told(read_run(story.close()).entries) == ["t/2", "nobody came"]


def test_who_follows_a_directory_is_told_that_another_run_has_begun(tmp_path: Path) -> None:
    story, tail = Story(tmp_path), RunTail(tmp_path)
    assert (told(tail.poll()), tail.run) == ([], "")

    begins(story, "t/1")
    assert (told(tail.poll()), tail.run) == (["t/1"], "t/1")
    note(story, "old")
    begins(story, "t/2")
    note(story, "new")

    assert (told(tail.poll()), tail.run) == (["t/2", "new"], "t/2")
    story.close()


def test_lines_before_any_start_are_read(tmp_path: Path) -> None:
    story = Story(tmp_path)
    note(story, "of whom")
    begins(story, "t/1")

    assert told(read_run(story.close()).entries) == ["of whom", "t/1"]


def test_two_directories_have_each_their_newest(tmp_path: Path) -> None:
    one, two = Story(tmp_path / "one"), Story(tmp_path / "two")
    for story, node in ((one, "a"), (two, "b")):
        story.run_dir.mkdir()
        begins(story, "t/1", node)
        begins(story, "t/2", node)

    log = read_run(one.close(), two.close())

    assert (told(log.entries), log.earlier) == (["t/2", "t/2"], 2)
