"""The words of demo and inject about runs: points of a verdict, tables, curves, kills."""

import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from recoverrun.cli.commands.inject import _kills, world_of
from recoverrun.fault_injection.comparison import (
    back_table,
    happened,
    loss_picture,
    phase_table,
    return_table,
    step_table,
    verdict_table,
)
from recoverrun.fault_injection.trial import Trial, figures, step_of
from recoverrun.fault_injection.verdict import (
    Comparison,
    Point,
    backs_points,
    exit_code,
    faults,
    faults_point,
    ledger_point,
    returns_point,
    same_weights_point,
    weights_point,
    witness_point,
)
from recoverrun.reports.history import history
from recoverrun.reports.proof import prove
from recoverrun.text import ASCII, UNICODE
from rendezvous.journal.reader import read_run
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.fault_schedule import ScheduledKill, ScheduleError, parse
from tests.unit import journals
from tests.unit.returning_run import ReturningRun

LOSSES: Mapping[int, float] = {step: 5.5 / (1 + step / 10) for step in range(40)}
KILLS = parse("r3@step:12:backward")
SAME = Comparison(
    ranks=(0, 1, 4, 5),
    elements=100,
    max_abs_diff=1.2e-7,
    bound=3.4e-5,
    within=True,
    tensor="head.weight",
)
FAR = replace(SAME, max_abs_diff=2e-3, within=False)


def trial(run_dir: Path, losses: Mapping[int, float] = LOSSES) -> Trial:
    log = read_run(run_dir)
    facts = history(log)
    return Trial(
        run_dir=run_dir,
        exit_code=0,
        wall_s=20.0,
        history=facts,
        proof=prove(facts, log),
        losses=losses,
        rates={},
        tail=(),
    )


@pytest.fixture
def reference(tmp_path: Path) -> Trial:
    (tmp_path / "clean").mkdir()
    return trial(journals.clean(tmp_path / "clean"))


@pytest.fixture
def faulted(tmp_path: Path) -> Trial:
    (tmp_path / "loss").mkdir()
    return trial(journals.one_loss(tmp_path / "loss"))


def drawn(part: RenderableType) -> list[str]:
    console = Console(file=io.StringIO(), width=80, color_system=None)
    console.print(part)
    text = console.file
    assert isinstance(text, io.StringIO)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def test_the_steps_around_the_loss_stand_side_by_side(reference: Trial, faulted: Trial) -> None:
    lines = drawn(step_table(reference, faulted, UNICODE))

    assert [line.split()[0] for line in lines] == ["step", "11", "12", "13", "14", "…", "39"]
    assert lines[1].split("  ")[0].strip() == "11"
    assert lines[1].count("4 · 4 · 4") == 2
    assert "6 · ✖ · 6" in lines[2]
    assert "4 · 4 · 4" in lines[2]
    assert lines[2].count("12/12 ✓") == 2


def test_tables_know_terminals_without_unicode(reference: Trial, faulted: Trial) -> None:
    lines = drawn(step_table(reference, faulted, ASCII))
    lines += drawn(phase_table(faulted.history.recoveries, ASCII))
    lines += drawn(loss_picture(reference, faulted, columns=40, ascii_only=True))

    assert "\n".join(lines).isascii()


def test_each_phase_of_a_recovery_is_shown_in_milliseconds(faulted: Trial) -> None:
    heading, row = drawn(phase_table(faulted.history.recoveries, UNICODE))

    assert heading.split()[3:5] == ["detect", "agree"]
    assert row.split()[-7:] == ["0.9", "3.1", "182.4", "151.0", "41.2", "6.0", "384.6"]


def test_a_recovery_is_told_in_one_line(faulted: Trial) -> None:
    (recovery,) = faulted.history.recoveries
    line = happened(recovery, UNICODE)

    assert line == "step 12: replica 1 lost with rank 3 → 3 microbatches redone, +385 ms"


def test_equal_loss_curves_cover_each_other(reference: Trial, faulted: Trial) -> None:
    picture = loss_picture(reference, faulted, columns=40, ascii_only=False)
    styles = {str(span.style) for span in picture.spans[:-7]}

    assert "green" in styles
    assert "bold red" not in styles


def test_a_run_that_logs_no_loss_has_no_picture(reference: Trial, faulted: Trial) -> None:
    mute = replace(faulted, losses={})

    picture = loss_picture(reference, mute, columns=40, ascii_only=False)
    assert "no loss curves" in picture.plain


def test_a_survived_loss_with_equal_weights_is_a_success(reference: Trial, faulted: Trial) -> None:
    points = [
        ledger_point("failure-free", reference),
        ledger_point("with losses", faulted),
        faults_point(KILLS, faulted.history),
        witness_point(SAME, faulted.history),
        weights_point(SAME, faulted),
    ]

    assert exit_code(points) == 0, points
    assert points[1].text == "with losses: 40/40 steps with exactly 12 microbatches"
    assert points[2].text == "1 kill, 1 loss survived"
    assert points[3].text == "final weights of 4 of 4 survivors compared"
    assert points[4].text.startswith("max |Δw| 1.2e-07, at most 3.4e-05")
    assert len(drawn(verdict_table(points, UNICODE))) == 5


def test_weights_beyond_the_bound_are_a_broken_invariant(faulted: Trial) -> None:
    point = weights_point(FAR, faulted)

    assert exit_code([point]) == ExitCode.INVARIANT


def test_a_run_that_came_down_to_equal_count_is_not_judged_by_its_weights(faulted: Trial) -> None:
    history = replace(faulted.history, weakened="from here on equal-count: x differs between ranks")
    weaker = replace(faulted, history=history)

    point = weights_point(FAR, weaker)
    assert point.held is None
    assert "from here on equal-count" in point.text
    assert weights_point(SAME, weaker).held


def test_a_survivor_without_a_witness_leaves_the_verdict_open(faulted: Trial) -> None:
    point = witness_point(replace(SAME, ranks=(0, 1)), faulted.history)

    assert point.held is None
    assert exit_code([point]) == 1


def test_what_cannot_be_compared_is_not_called_equal(faulted: Trial) -> None:
    assert weights_point(None, faulted).held is None
    assert weights_point(replace(SAME, bound=None, within=None), faulted).held is None


def test_a_kill_that_never_struck_is_named(faulted: Trial) -> None:
    kills = (*KILLS, ScheduledKill(rank=5, step=30, phase="redo"))

    assert faults(kills, faulted.history).missed == kills[1:]
    point = faults_point(kills, faulted.history)
    assert point.held
    assert point.text.endswith("never struck: r5@step:30:redo")


def test_of_ways_back_to_a_snapshot_each_kill_is_accounted_for(tmp_path: Path) -> None:
    story = journals.Story(tmp_path)
    story.start()
    story.write("promise.state", "one replica", promise="rollback", microbatches=0)
    for rank in range(2):
        story.exit(rank, signal=9)
    story.write("keeper.exit", "the keeper has ended", pid=1, code=-9)
    story.write("job.restart", "rank 0 was killed", attempt=1, restarts=0, root_rank=0)
    story.write("snapshot.plan", "", attempt=1, of=0, step=20, back=7)
    story.end()
    found = trial(story.close())
    kills = parse("all@step:27,keeper@step:20:restore,r1@step:20:restore,keeper@step:25")

    assert faults(kills, found.history).missed == kills[2:]
    assert faults_point(kills[:2], found.history) == Point(
        held=True, text="2 kills, 0 losses survived, 1 way back to a snapshot"
    )
    assert ledger_point("the run", found) == Point(
        held=None,
        text="the run: all ranks went back 1 time, microbatches are not counted where nobody votes",
    )
    assert [str(way) for way in found.ways_back] == ["back to step 20: 7 steps done again"]


def test_losses_around_a_way_back_stand_side_by_side(reference: Trial, tmp_path: Path) -> None:
    (tmp_path / "back").mkdir()
    story = journals.Story(tmp_path / "back")
    story.start()
    story.write("promise.state", "one replica", promise="rollback", microbatches=0)
    story.write("snapshot.plan", "", attempt=1, of=0, step=20, back=2)
    story.end()
    odd = {**LOSSES, 22: 9.0}
    found = trial(story.close(), odd)
    lines = drawn(back_table(reference, found, UNICODE))

    assert [line.split()[0] for line in lines[1:]] == [
        "19",
        "20",
        "21",
        "22",
        "23",
        "24",
        "…",
        "39",
    ]
    assert [line.endswith("✓ done again") for line in lines[2:5]] == [True, True, False]
    assert lines[4].split() == ["22", f"{LOSSES[22]:g}", "9", "✖"]
    assert drawn(back_table(reference, found, ASCII))[1].isascii()
    assert backs_points(found) == [Point(held=None, text="back to step 20: 2 steps done again")]
    assert backs_points(reference) == [Point(held=False, text="no snapshot was gone back to")]


def test_after_a_way_back_weights_are_the_same_in_every_bit() -> None:
    assert same_weights_point(replace(SAME, max_abs_diff=0.0)).held
    assert same_weights_point(SAME).held is False
    assert same_weights_point(None).held is None


def test_no_kill_that_struck_proves_nothing(reference: Trial) -> None:
    assert faults_point(KILLS, reference.history).held is False


def test_a_ledger_with_a_missing_microbatch_is_broken(tmp_path: Path) -> None:
    story = journals.Story(tmp_path)
    story.start()
    story.commit(0, {0: [(0, i) for i in range(4)], 1: [(1, i) for i in range(4)], 2: []})
    story.end()
    point = ledger_point("the run", trial(story.close()))

    assert exit_code([point]) == ExitCode.INVARIANT
    assert "in no replica's account" in point.text


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("step 12 loss 2.3456 lr 3.00e-04 123 tok/s", (12, 2.3456, 3e-4)),
        ("gpu-04:0│ step 7 loss 1e-3", (7, 1e-3, None)),
        ("step 3: loss 2.5, lr 1.2", (3, 2.5, 1.2)),
        ("lost step 12", None),
    ],
)
def test_figures_are_read_from_the_log_of_a_script(
    line: str, expected: tuple[int, float, float | None] | None
) -> None:
    assert figures(line) == expected
    assert step_of(line) == (expected[0] if expected else None)


@pytest.mark.parametrize(
    ("command", "world"),
    [
        (["--nproc-per-node", "4", "train.py"], 4),
        (["--nproc_per_node=2", "--nnodes=3", "train.py"], 6),
        (["--nproc-per-node=gpu", "train.py"], 0),
        (["train.py"], 1),
    ],
)
def test_the_size_of_the_world_comes_from_the_options(command: list[str], world: int) -> None:
    assert world_of(command) == world


def test_kills_at_random_are_those_of_their_seed() -> None:
    command = ["--nproc-per-node=6", "train.py"]
    one, again, other = (
        _kills("", command, count=2, seed=seed, steps=40, ranks=0) for seed in (7, 7, 8)
    )

    assert len(one) == 2
    assert one == again != other


@pytest.mark.parametrize(
    ("text", "count", "steps", "refusal"),
    [
        ("", 0, 40, "give one of them, for example --kill"),
        ("", 1, 0, "need --steps"),
        ("r9@step:3:vote", 0, 40, "outside of this run: the last rank of this run is "),
        ("r1@step:3:lunch", 0, 40, "a phase is one of"),
    ],
)
def test_an_impossible_schedule_is_refused_in_one_sentence(
    text: str, count: int, steps: int, refusal: str
) -> None:
    with pytest.raises(ScheduleError, match=refusal):
        _kills(text, ["--nproc-per-node=4", "train.py"], count=count, seed=0, steps=steps, ranks=0)


def test_of_an_unprotected_run_nobody_says_that_its_microbatches_were_counted(
    reference: Trial,
) -> None:
    bare = replace(reference, proof=replace(reference.proof, microbatches=0))

    point = ledger_point("the run", bare)

    assert point.held is None
    assert point.text == (
        "the run: 40 steps of an unprotected run, whose microbatches are not counted"
    )


def test_the_run_that_is_shown_had_its_replica_back(tmp_path: Path) -> None:
    run = ReturningRun(tmp_path)
    run.commit()
    run.lose(1)
    run.wait(1.0)
    run.start(1)
    run.wait(0.5)
    run.ready(1)
    run.hold()
    came = (("bytes", 2e6), ("place", 20.0), ("source", 0.0), ("step", 140.0), ("transfer", 8.0))
    run.commit(phases={1: came})
    log = run.log()
    run.close()
    facts = history(log)

    assert returns_point(facts, ()).held
    heading, row = drawn(return_table(facts.returns.backs, UNICODE))
    assert heading.split()[-5:] == ["hold", "transfer", "place", "first", "MB"]
    assert row.split()[-5:] == ["0", "8", "20", "140", "2.0"]
    assert faults(parse("r1@step:1:vote"), facts).missed == ()
    point = witness_point(replace(SAME, ranks=(0, 1, 2)), facts)
    assert (point.held, point.text) == (True, "final weights of 3 of 3 survivors compared")


def test_a_replica_that_stayed_away_leaves_the_verdict_open(tmp_path: Path) -> None:
    run = ReturningRun(tmp_path)
    run.commit()
    run.lose(1)
    facts = history(run.log())
    run.close()

    assert returns_point(facts, ()).text == "replica 1 did not come back: the run was over too soon"
    told = ("a lost replica does not come back: no model",)
    assert returns_point(facts, told).held is None
    assert returns_point(facts, told).text.endswith("did not come back: no model")


def test_a_kill_on_the_way_back_has_struck_if_that_process_died(tmp_path: Path) -> None:
    run = ReturningRun(tmp_path)
    run.commit()
    run.lose(1)
    run.start(1)
    run.kill(1)
    facts = history(run.log())
    run.close()
    kills = parse("r1@step:1:vote,r1@return:prologue,r1@return:2:prologue")

    assert faults(kills, facts).missed == kills[2:]
