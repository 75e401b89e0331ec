"""The proof from the ledger alone, and the page and JSON around it."""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from recoverrun.cli.commands import postmortem as command
from recoverrun.cli.commands import status as status_command
from recoverrun.reports.find_run import RunNotFound, find_run
from recoverrun.reports.postmortem import Postmortem, cells, identity_ranges, postmortem, to_json
from recoverrun.reports.proof import Proof
from recoverrun.reports.status import status_of
from rendezvous.journal.journal import journal_path, read_run
from tests.unit import journals
from tests.unit.journals import Scene


def _found(run_dir: Path) -> Postmortem:
    return postmortem(read_run(run_dir))


def _proof(run_dir: Path) -> Proof:
    return _found(run_dir).proof


def _scene(run_dir: Path) -> Scene:
    scene = Scene(run_dir)
    scene.start()
    scene.steps(0, 2)
    return scene


@pytest.mark.parametrize(
    ("name", "verdict", "steps"),
    [
        ("clean", "proved", 40),
        ("one_loss", "proved", 40),
        ("live", "proved", 21),
        ("two_at_once", "proved", 13),
        ("loss_during_recovery", "proved", 10),
        ("node_lost", "proved", 21),
        ("user_exception", "proved", 3),
        ("cut_line", "unproved", 39),
        ("launcher_killed", "unproved", 9),
    ],
)
def test_the_proof_of_every_kind_of_run(
    tmp_path: Path, name: str, verdict: str, steps: int
) -> None:
    proof = _proof(journals.RUNS[name](tmp_path))

    assert (proof.verdict, proof.steps, proof.exact) == (verdict, steps, steps)


HOME = {slot: [(slot, index) for index in range(4)] for slot in range(3)}


def _missing(scene: Scene) -> None:
    scene.commit(3, {**HOME, 1: HOME[1][:3]}, microbatches=12)


def _twice(scene: Scene) -> None:
    scene.commit(3, {**HOME, 1: [(0, 3), *HOME[1][1:]]})


def _foreign(scene: Scene) -> None:
    scene.commit(3, {**HOME, 1: [(1, 0), (1, 1), (1, 2), (1, 4)]})


def _short_vote(scene: Scene) -> None:
    scene.commit(3, total=11)


def _false_quota(scene: Scene) -> None:
    scene.commit(3, quota={"0": 5, "1": 3, "2": 4})


def _committed_twice(scene: Scene) -> None:
    scene.commit(2)


def _skipped(scene: Scene) -> None:
    scene.commit(4)


def _generation_back(scene: Scene) -> None:
    scene.generation = 5
    scene.commit(3)
    scene.generation = 4
    scene.commit(4)


def _view_back(scene: Scene) -> None:
    for generation in (3, 2):
        scene.write(
            "view.change", "", generation=generation, live=[0, 1, 2], lost_ranks=[]
        )  # fmt: skip


def _loss_forgotten(scene: Scene) -> None:
    scene.lose(1, 3, "rank 3 was killed by SIGKILL")
    scene.commit(3)


def _broken(scene: Scene) -> None:
    scene.write("invariant.break", "digests differ", invariant="INV-3")


def _differ(scene: Scene) -> None:
    scene.write("digest.differ", "replica 2 differs", step=2)


def _said_by_nobody(scene: Scene) -> None:
    scene.commit(3, inferred=[[1, 3]])


@pytest.mark.parametrize(
    ("act", "invariant", "words"),
    [
        (_missing, "INV-1", "microbatch 1:3 in nobody's account"),
        (_twice, "INV-1", "0:3 in two accounts"),
        (_foreign, "INV-1", "1:4 of no step"),
        (_short_vote, "INV-1", "counted 11 of 12"),
        (_false_quota, "INV-1", "1:3 in nobody's account; microbatch 0:4 of no step"),
        (_committed_twice, "INV-9", "step 2 was committed twice"),
        (_skipped, "INV-9", "step 3 skipped"),
        (_generation_back, "INV-2", "generation 4"),
        (_view_back, "INV-2", "generation 2 follows generation 3"),
        (_loss_forgotten, "INV-7", "no recovery"),
        (_broken, "INV-3", "digests differ"),
        (_differ, "INV-3", "at step 2"),
        (_said_by_nobody, "INV-1", "their replica lives"),
    ],
)
def test_a_ledger_that_contradicts_an_invariant_is_a_violation(
    tmp_path: Path, act: Callable[[Scene], None], invariant: str, words: str
) -> None:
    scene = _scene(tmp_path)

    act(scene)

    proof = _proof(scene.close())
    assert proof.exit_code == 85
    assert [one.invariant for one in proof.violations] == [invariant]
    assert words in proof.violations[0].what


def test_steps_that_the_disk_refused_are_missing_and_not_skipped(tmp_path: Path) -> None:
    scene = _scene(tmp_path)
    scene.commit(3)
    scene.commit(4)
    scene.commit(5)
    run_dir = scene.close()
    path = journal_path(run_dir, "gpu-01")
    lines = [line for line in path.read_bytes().splitlines(True) if b'"step":4,' not in line]
    path.write_bytes(b"".join(lines))

    proof = _proof(run_dir)

    assert (proof.verdict, proof.exit_code) == ("unproved", 1)
    assert any("step 4 missing from the journal" in doubt for doubt in proof.unproved)


def test_a_shorter_step_of_the_script_is_noted_where_all_replicas_do_the_same(
    tmp_path: Path,
) -> None:
    scene = _scene(tmp_path)
    scene.commit(3, quota={"0": 2, "1": 2, "2": 2}, microbatches=6, total=6)
    scene.end()

    proof = _proof(scene.close())
    assert proof.verdict == "proved"
    assert proof.notes == ("the script's own shorter steps, all replicas alike: 3",)


def test_a_longer_step_of_the_script_is_proved_by_its_identities(tmp_path: Path) -> None:
    """What one epoch left is added to the first step of the next; here on fewer replicas."""
    scene = _scene(tmp_path)
    done = {
        0: [(0, index) for index in range(5)] + [(1, 0), (1, 1)],
        2: [(2, index) for index in range(5)] + [(1, 2), (1, 3), (1, 4)],
    }
    scene.commit(3, done, total=15)
    scene.end()

    proof = _proof(scene.close())
    assert not proof.violations
    assert proof.notes == ("the script's own longer steps, all replicas alike: 3",)


def test_a_longer_step_that_lacks_a_microbatch_violates_the_ledger(tmp_path: Path) -> None:
    scene = _scene(tmp_path)
    done = {0: [(0, 0), (0, 1), (1, 0)], 2: [(2, index) for index in range(5)]}
    scene.commit(3, done, total=15)
    scene.end()

    assert [one.invariant for one in _proof(scene.close()).violations] == ["INV-1"]


def test_a_shorter_step_on_fewer_replicas_is_proved_by_its_identities(tmp_path: Path) -> None:
    scene = _scene(tmp_path)
    done = {0: [(0, 0), (0, 1), (1, 0)], 2: [(2, 0), (2, 1), (1, 1)]}
    scene.commit(3, done, total=6)
    scene.end()

    proof = _proof(scene.close())
    assert (proof.verdict, proof.exit_code) == ("proved", 0)
    assert proof.notes == ("the script's own shorter steps, all replicas alike: 3",)


def test_a_step_whose_replicas_do_not_say_its_length_is_left_in_doubt(tmp_path: Path) -> None:
    scene = _scene(tmp_path)
    done = {0: [(0, 0), (1, 0), (1, 1)], 2: [(2, 0), (2, 1), (0, 1)]}
    scene.commit(3, done, total=6)
    scene.end()

    proof = _proof(scene.close())
    assert proof.exit_code == 1
    assert "B = 6 instead of 12" in proof.unproved[0]


def test_a_microbatch_of_a_replica_that_died_before_it_could_say_so_counts(
    tmp_path: Path,
) -> None:
    scene = _scene(tmp_path)
    scene.exit(3, signal=9)
    scene.lose(1, 3, "rank 3 was killed by SIGKILL")
    scene.commit(3, HOME, inferred=[[1, index] for index in range(4)])
    scene.recovered(3, {1: 3}, [])
    scene.end()

    proof = _proof(scene.close())
    assert proof.verdict == "proved"
    assert any("did not live to say so" in note for note in proof.notes)


def test_a_restart_of_all_workers_may_count_from_an_older_step(tmp_path: Path) -> None:
    scene = _scene(tmp_path)
    for rank in range(6):
        scene.exit(rank, signal=9, ours=rank != 0)
    for rank in range(6):
        scene.write("worker.spawn", "", rank=rank, pid=5000 + rank, incarnation=1)
    scene.generation = 2
    scene.steps(0, 4)
    scene.end()

    found = _found(scene.close())
    assert found.attempts == 2
    assert found.proof.verdict == "proved"


def test_a_journal_without_steps_or_layout_proves_nothing(tmp_path: Path) -> None:
    empty = _proof(tmp_path)
    scene = Scene(tmp_path)
    scene.commit(0)

    assert empty.exit_code == 1
    assert _proof(scene.close()).exit_code == 1


def test_what_was_redone_is_told_by_identity(tmp_path: Path) -> None:
    (loss,) = _found(journals.one_loss(tmp_path)).losses

    assert identity_ranges(loss.again) == "1:0-2"
    assert [(m.replica, identity_ranges(m.identities)) for m in loss.moved] == [
        (0, "1:0-1"),
        (2, "1:2-3"),
    ]
    assert loss.redone == 3


def test_the_timeline_never_hides_a_loss(tmp_path: Path) -> None:
    found = _found(journals.one_loss(tmp_path))

    for columns in (1, 2, 7, 80):
        row = cells(found.lanes[1], began=found.began, latest=found.latest, columns=columns)
        assert len(row) == columns
        assert row.count("lost") == 1


def test_the_json_holds_the_whole_story(tmp_path: Path) -> None:
    story = json.loads(json.dumps(to_json(_found(journals.one_loss(tmp_path)))))

    assert story["schema"] == 1
    assert story["invariant"]["verdict"] == "proved"
    (loss,) = story["losses"]
    assert (loss["replica"], loss["root_rank"], loss["total_ms"]) == (1, 3, 384.6)
    assert loss["redone_identities"] == [[1, 0], [1, 1], [1, 2]]


def test_any_damage_gives_a_page_and_never_a_traceback(tmp_path: Path) -> None:
    journals.one_loss(tmp_path)
    path = journal_path(tmp_path, "gpu-01")
    lines = path.read_text().splitlines()
    rng = random.Random(11)
    values: list[object] = [None, -1, 10**300, "x", [], {}, [[1]], {"1": 10**9}, True, 1e308]

    for _ in range(150):
        damaged = list(lines)
        for _ in range(3):
            place = rng.randrange(len(damaged))
            record = json.loads(damaged[place])
            record[rng.choice(sorted(record))] = rng.choice(values)
            damaged[place] = json.dumps(record)
        path.write_text("\n".join(damaged) + "\n")
        log = read_run(tmp_path)
        json.dumps(to_json(postmortem(log)))
        status_of(log, journals.WALL)


# --------------------------------------------------------------------------------- the commands


def _app() -> typer.Typer:
    app = typer.Typer()
    command.register(app)
    status_command.register(app)
    return app


@pytest.mark.parametrize(
    ("name", "code"), [("one_loss", 0), ("cut_line", 1), ("launcher_killed", 1)]
)
def test_verify_leaves_with_the_verdict(tmp_path: Path, name: str, code: int) -> None:
    journals.RUNS[name](tmp_path)

    result = CliRunner().invoke(_app(), ["postmortem", str(tmp_path), "--verify"])

    assert result.exit_code == code, result.output


def test_verify_prints_the_violated_invariant_and_leaves_with_85(tmp_path: Path) -> None:
    scene = _scene(tmp_path)
    _missing(scene)
    scene.close()

    result = CliRunner().invoke(_app(), ["postmortem", str(tmp_path), "--verify"])

    assert result.exit_code == 85
    assert "INV-1 violated: step 3: microbatch 1:3 in nobody's account" in result.output


def test_a_run_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    for words in (["postmortem", str(tmp_path)], ["status", str(tmp_path)]):
        result = CliRunner().invoke(_app(), words)
        assert result.exit_code == 2, result.output


def test_status_prints_plain_lines_or_json_where_there_is_no_terminal(tmp_path: Path) -> None:
    journals.live(tmp_path)

    plain = CliRunner().invoke(_app(), ["status", str(tmp_path)])
    machine = CliRunner().invoke(_app(), ["status", str(tmp_path), "--json"])

    assert "12/12 microbatches" in plain.output
    assert "\x1b" not in plain.output
    assert json.loads(machine.output)["step"] == 20


def test_a_run_is_found_by_directory_name_and_latest(tmp_path: Path) -> None:
    old, new = tmp_path / "runs" / "a", tmp_path / "runs" / "b" / "20261121"
    for place in (old, new):
        place.mkdir(parents=True)
        journals.user_exception(place)
    os.utime(journal_path(old, "gpu-01"), (1, 1))

    assert find_run("latest", tmp_path) == new
    assert find_run("a", tmp_path) == old
    assert find_run("b", tmp_path) == new
    assert find_run(str(old), tmp_path) == old
    with pytest.raises(RunNotFound, match="c"):
        find_run("c", tmp_path)


def test_a_promise_that_came_down_is_told_with_its_first_step(tmp_path: Path) -> None:
    scene = _scene(tmp_path)
    for rank in (0, 2):
        reason = f"from here on equal-count: rank {rank} says why"
        scene.write("notice.give", reason, rank=rank, event="promise.weaken")
    scene.steps(3, 4)
    run_dir = scene.close()

    found = _found(run_dir)
    page = CliRunner().invoke(_app(), ["postmortem", str(run_dir)]).output
    status = status_of(read_run(run_dir), now=0.0)

    why = "from here on equal-count: rank 0 says why"
    assert to_json(found)["promise"] == "exact-samples"
    assert to_json(found)["weakened"] == {"step": 3, "reason": why}
    assert " ".join(page.split()).count(f"step 3: {why}") == 1
    assert (status.promise, status.promise_reason) == ("equal-count", why)


def test_a_promise_that_held_is_not_weakened(tmp_path: Path) -> None:
    scene = _scene(tmp_path)
    scene.write("notice.give", "something else", rank=0, event="notice.give")

    assert to_json(_found(scene.close()))["weakened"] is None
