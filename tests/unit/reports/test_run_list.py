"""A list of runs is told from the ends of their journals, and names what may be removed."""

from pathlib import Path

import pytest

from recoverrun.reports.run_list import END_BYTES, Run, prunable, runs_below, size, table
from rendezvous.journal.writer import journal_path
from tests.unit import journals
from tests.unit.journals import WALL, Story

HOST = "gpu-01"


def _runs(top: Path, *, locked: frozenset[str] = frozenset()) -> dict[str, Run]:
    found = runs_below(top, HOST, lambda place: place.name in locked)
    return {run.name: run for run in found}


def _written(top: Path, name: str, run: str = "clean") -> Path:
    place = top / name
    place.mkdir(parents=True)
    return journals.RUNS[run](place)


def test_each_run_has_its_script_its_steps_and_its_verdict(tmp_path: Path) -> None:
    _written(tmp_path, "train/1")
    _written(tmp_path, "train/2", "user_exception")
    _written(tmp_path, "named", "launcher_killed")
    (tmp_path / "train/latest").symlink_to("2")
    (tmp_path / "other").mkdir()

    found = _runs(tmp_path)

    assert {name: (run.last_step + 1, run.verdict) for name, run in found.items()} == {
        "train/1": (40, "completed"),
        "train/2": (3, "failed (1)"),
        "named": (9, "no end on record"),
    }
    assert {(run.title, run.nodes, run.began) for run in found.values()} == {
        ("train.py tiny-hsdp", 1, WALL)
    }
    assert any("39" in line.split() for line in table(list(found.values()), 0))


def test_a_journal_of_any_length_is_told_from_its_ends(tmp_path: Path) -> None:
    place = tmp_path / "long"
    place.mkdir()
    story = Story(place)
    story.start()
    story.steps(0, 9999)
    story.end()
    story.close()
    assert journal_path(place, "gpu-01").stat().st_size > 3 * END_BYTES

    (run,) = _runs(tmp_path).values()

    assert (run.last_step, run.verdict) == (9_999, "completed")
    assert run.size_bytes == journal_path(place, "gpu-01").stat().st_size


def test_a_lost_node_does_not_tell_how_far_the_run_is(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    story = Story(tmp_path / "train")
    story.start(nodes=2)
    story.write("step.part", "", "gpu-02", step=50, generation=1, quota={"1": 4}, redone=0,
                microbatches=4, total=12, ms=400.0)  # fmt: skip
    story.write("node.lost", "it is silent", name="gpu-02", ranks=[3, 4, 5])
    story.steps(0, 9)  # All ranks have begun again without it.
    story.end()
    story.close()

    (run,) = _runs(tmp_path).values()
    assert (run.last_step, run.nodes) == (9, 2)


def test_a_run_that_a_launcher_holds_lives(tmp_path: Path) -> None:
    _written(tmp_path, "1")

    run = _runs(tmp_path, locked=frozenset({"1"}))["1"]

    assert (run.verdict, run.removable) == ("running", False)


@pytest.mark.parametrize("code", [0, 7])
def test_a_node_that_was_left_out_does_not_say_how_the_run_ended(tmp_path: Path, code: int) -> None:
    (tmp_path / "1").mkdir()
    story = Story(tmp_path / "1")
    story.start(nodes=2)
    for node, ended in (("gpu-02", 86), ("gpu-01", code)):
        story.write("run.end", "", node, exit_code=ended, root_rank=-1)
    story.close()

    assert _runs(tmp_path)["1"].exit_code == code


@pytest.mark.parametrize("lost", [True, False])
def test_a_run_has_ended_when_all_of_its_nodes_have(tmp_path: Path, lost: bool) -> None:
    (tmp_path / "1").mkdir()
    story = Story(tmp_path / "1")
    story.start(nodes=3)
    for node in ("gpu-01", "gpu-03"):
        story.write("run.end", "", node, exit_code=0, root_rank=-1)
    if lost:
        story.write("node.lost", "gpu-02: silent", name="gpu-02", ranks=[2, 3])
    story.close()

    run = _runs(tmp_path)["1"]

    assert (run.exit_code, run.removable) == ((0, True) if lost else (None, False))


def test_a_run_without_an_end_may_go_only_if_nobody_elsewhere_can_write_to_it(
    tmp_path: Path,
) -> None:
    _written(tmp_path, "1", "launcher_killed")

    (here,) = runs_below(tmp_path, "gpu-01.example.org", lambda _: False)
    (elsewhere,) = runs_below(tmp_path, "login-01", lambda _: False)

    assert (here.removable, elsewhere.removable) == (True, False)


@pytest.mark.parametrize(("step", "cut"), [(4, True), (-1, False)])
def test_a_run_whose_last_steps_the_disk_refused_says_so(
    tmp_path: Path, step: int, cut: bool
) -> None:
    (tmp_path / "1").mkdir()
    story = Story(tmp_path / "1")
    story.start(nodes=1)
    story.write("journal.drop", "the disk took no records: full", records=5, step=step)
    story.write("run.end", "", exit_code=0, root_rank=-1)
    story.close()

    run = _runs(tmp_path)["1"]

    assert (run.verdict, run.cut) == ("completed", cut)
    assert table([run], 0)[1].endswith("completed, records are missing") == cut


def test_a_journal_that_took_nothing_has_no_date(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "events.gpu-01.jsonl").touch()

    line = table([*_runs(tmp_path).values()], 0)[1]

    assert "1970" not in line and "no end on record" in line


def _run(
    name: str, began: float, *, title: str = "a.py", code: int | None = 0, number: int = 0
) -> Run:
    return Run(
        path=Path(name), name=name, title=title, began=began, number=number, nodes=1,
        last_step=0, cut=False, exit_code=code, size_bytes=1, alive=False, here=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("keep", "older_than_s", "gone"),
    [(2, 0.0, {"1", "2"}), (0, 75.0, {"1", "2", "b1"}), (3, 70.0, {"1"}), (9, 0.0, set())],
)
def test_the_newest_of_each_script_stay_and_the_young_ones(
    keep: int, older_than_s: float, gone: set[str]
) -> None:
    runs = [_run("1", 10.0), _run("3", 30.0), _run("4", 40.0), _run("2", 20.0)]
    runs.append(_run("b1", 15.0, title="b.py"))

    removed, kept = prunable(runs, keep=keep, older_than_s=older_than_s, now=100.0)

    assert ({run.name for run in removed}, kept) == (gone, [])


def test_the_newest_runs_stay_also_where_the_clock_was_set_back() -> None:
    runs = [_run("old", 90.0, number=1), _run("new", 10.0, number=2), _run("before", 95.0)]

    removed, _ = prunable(runs, keep=1, older_than_s=0.0, now=100.0)

    assert [run.name for run in removed] == ["old", "before"]


def test_what_may_live_is_named_and_kept() -> None:
    runs = [_run("1", 10.0, code=None), _run("2", 20.0)]

    removed, kept = prunable(runs, keep=0, older_than_s=0.0, now=100.0)

    assert [run.name for run in removed] == ["2"]
    assert [run.name for run in kept] == ["1"]


def test_a_node_that_left_earlier_does_not_say_how_the_run_ended(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    story = Story(tmp_path / "1")
    story.start(nodes=2)
    for node, ended in (("gpu-01", 143), ("gpu-02", 7)):
        story.wait(1.0)
        story.write("run.end", "", node, exit_code=ended, root_rank=-1)
    story.close()

    assert _runs(tmp_path)["1"].exit_code == 7


@pytest.mark.parametrize("damage", [b"", b"\0" * 100, b"[1]\n{}\n[[]]\n", b'{"ev":"run.end"}\n'])
def test_a_journal_that_cannot_be_read_is_a_run_without_an_end(
    tmp_path: Path, damage: bytes
) -> None:
    (tmp_path / "1").mkdir()
    journal_path(tmp_path / "1", "x").write_bytes(damage)

    run = _runs(tmp_path)["1"]

    assert (run.last_step, run.verdict, run.removable) == (-1, "no end on record", False)
    assert len(table([run], 0)) == 2


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 B"), (1023, "1023 B"), (27_829, "27 KiB"), (1_500_000, "1.4 MiB")]
)
def test_sizes_are_said_as_people_do(count: int, words: str) -> None:
    assert size(count) == words


@pytest.mark.parametrize("steps", [3, 3000])
def test_of_two_runs_in_one_directory_the_newest_is_told(tmp_path: Path, steps: int) -> None:
    """Also where the second one's beginning is at neither end of the file."""
    story = Story(tmp_path / "1")
    story.run_dir.mkdir()
    for number, (name, code) in enumerate((("old.py", 1), ("new.py", 0))):
        story.wait(100.0)
        story.write("run.start", "", run_id="none", folder=f"t/{number}", argv=[name], nnodes=1,
                    world_size=1, version="1", inject="")  # fmt: skip
        for step in range(steps):
            story.write("notice.give", f"words of step {step}", rank=0, event="said")
        story.write("run.end", "", exit_code=code, root_rank=-1)
    story.close()

    run = _runs(tmp_path)["1"]

    assert (run.title, run.exit_code, run.began) == ("new.py", 0, WALL + 200.0)
