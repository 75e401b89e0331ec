"""Several runs whose journals lie in one directory: the newest is read."""

from pathlib import Path

from rendezvous.journal.reader import Entry, RunTail, read_run
from rendezvous.protocol.records import Json
from tests.unit.journals import Scene


def begins(scene: Scene, folder: str, *nodes: str, ranks: int = 2) -> None:
    """Launchers of these nodes begin to write."""
    scene.wait(10.0)
    for node in nodes or ("a",):
        fields: dict[str, Json] = {"run_id": "none", "folder": folder, "world_size": ranks}
        fields |= {"argv": ["t.py"], "nnodes": len(nodes), "version": "1", "inject": ""}
        scene.write("run.start", folder, node, **fields)


def note(scene: Scene, reason: str, node: str = "a") -> None:
    scene.wait(1.0)
    scene.write("notice.give", reason, node, rank=0, event="said")


def ends(scene: Scene, *nodes: str) -> None:
    for node in nodes or ("a",):
        scene.wait(1.0)
        scene.write("run.end", "end", node, exit_code=0, root_rank=-1)


def told(entries: list[Entry] | tuple[Entry, ...]) -> list[str]:
    return [entry.reason for entry in entries]


def test_of_two_runs_the_second_is_read(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    begins(scene, "t/1")
    note(scene, "old")
    begins(scene, "t/2")
    note(scene, "new")

    log = read_run(scene.close())

    assert (told(log.entries), log.earlier) == (["t/2", "new"], 1)


def test_a_node_of_an_earlier_run_alone_is_no_part_of_the_next(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    begins(scene, "t/1", "a", "b")
    note(scene, "old", "b")
    begins(scene, "t/2", "a")
    note(scene, "late", "b")

    assert told(read_run(scene.close()).entries) == ["t/2"]


def test_a_launcher_that_takes_part_again_continues_its_run(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    begins(scene, "t/1", "a", "b")
    note(scene, "one", "b")
    begins(scene, "t/1", "b")
    note(scene, "two", "b")

    log = read_run(scene.close())

    assert (told(log.entries), log.earlier) == (["t/1", "t/1", "one", "t/1", "two"], 0)


def test_a_launcher_that_was_not_let_in_hides_no_run_that_is_under_way(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    begins(scene, "t/1")
    begins(scene, "t/2", "c", ranks=0)
    ends(scene, "c")
    note(scene, "goes on")
    ends(scene)

    assert told(read_run(scene.close()).entries) == ["t/1", "goes on", "end"]


def test_a_run_that_never_formed_is_the_newest_once_the_one_before_has_ended(
    tmp_path: Path,
) -> None:
    scene = Scene(tmp_path)
    begins(scene, "t/1")
    ends(scene)
    begins(scene, "t/2", ranks=0)
    note(scene, "nobody came")

    assert told(read_run(scene.close()).entries) == ["t/2", "nobody came"]


def test_who_follows_a_directory_is_told_that_another_run_has_begun(tmp_path: Path) -> None:
    scene, tail = Scene(tmp_path), RunTail(tmp_path)
    assert (told(tail.poll()), tail.run) == ([], "")

    begins(scene, "t/1")
    assert (told(tail.poll()), tail.run) == (["t/1"], "t/1")
    note(scene, "old")
    begins(scene, "t/2")
    note(scene, "new")

    assert (told(tail.poll()), tail.run) == (["t/2", "new"], "t/2")
    scene.close()


def test_lines_before_any_start_are_read(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    note(scene, "of whom")
    begins(scene, "t/1")

    assert told(read_run(scene.close()).entries) == ["of whom", "t/1"]


def test_two_directories_have_each_their_newest(tmp_path: Path) -> None:
    one, two = Scene(tmp_path / "one"), Scene(tmp_path / "two")
    for scene, node in ((one, "a"), (two, "b")):
        scene.run_dir.mkdir()
        begins(scene, "t/1", node)
        begins(scene, "t/2", node)

    log = read_run(one.close(), two.close())

    assert (told(log.entries), log.earlier) == (["t/2", "t/2"], 2)
