"""Ranks that hang, in real processes. All ways and places: `python -m tests.e2e.hangs`."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rendezvous.protocol.exit_codes import ExitCode
from tests.e2e import hangs, hangs_alone
from tests.e2e.hangs_alone import CELLS, LIMIT_S, MORE_S, STEP, Cell, Weights
from tests.e2e.jobs import HANGING, HANGING_HSDP, Job
from tests.e2e.judge import ended_well, nothing_left
from tests.e2e.runs import recoverrun, running

pytestmark = [pytest.mark.e2e, pytest.mark.rest]

SLACK_S = 3.0
"""What a busy machine may add."""

Unhung = Callable[[Job], Weights]


@pytest.fixture(scope="session")
def unhung(tmp_path_factory: pytest.TempPathFactory) -> Unhung:
    """The weights of a run without a hang, made once for each job."""
    known: dict[str, Weights] = {}

    def weights(job: Job) -> Weights:
        if job.name not in known:
            known[job.name] = hangs_alone.reference(job, tmp_path_factory.mktemp(job.name) / "run")
        return known[job.name]

    return weights


SAMPLE = (
    "ddp3x1 keep in data of 1",
    "ddp3x1 sleep in forward of 1",
    "hsdp2x2 lock in forward of 3",
    "ddp3x1 stop in alone of 0",
)


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(
            cell,
            id=cell.name.replace(" ", "-"),
            marks=pytest.mark.quick if cell.name in SAMPLE[:1] else (),
        )
        for cell in CELLS
        if cell.name in SAMPLE or cell.how == "spin" and cell.where == "backward"
    ],
)
def test_a_rank_that_hangs_is_lost_and_the_others_go_on(
    cell: Cell, tmp_path: Path, unhung: Unhung
) -> None:
    """Check 6 of the user experience: the culprit by name, its stacks a second after the limit and
    before any kill. It keeps Python's lock, or sleeps; the others stand in the all-reduce.
    """
    expected = unhung(cell.job)
    with running(cell.job, tmp_path / "run", arguments=cell.arguments) as run:
        stood_s = hangs_alone.judge(replace(cell, slack_s=SLACK_S), run, expected)

    assert stood_s < cell.limit_s + MORE_S + SLACK_S

    told = json.loads(recoverrun("postmortem", str(run.journal), "--json").stdout)
    assert [loss["root_cause"]["cause"] for loss in told["losses"]] == ["hang"]


TOGETHER = (
    "ddp3x1 stop while redoing",
    "hsdp3x2 stop while redoing",
    "hsdp3x2 fail while redoing",
    "hsdp3x2 sleep while redoing",
    "ddp3x1 1 cannot hear 0+2",
    "hsdp2x2 0+1 cannot hear 2+3",
    "ddp3x1 2 stop as it waits",
    "ddp3x1 one barrier too many of 1",
    "hsdp2x2 one barrier too many of 1",
)


@pytest.mark.parametrize("name", TOGETHER, ids=lambda name: name.replace(" ", "-"))
def test_a_hang_that_others_have_part_in_ends_in_time(
    name: str, tmp_path: Path, unhung: Unhung
) -> None:
    (cell,) = (cell for cell in hangs.CELLS if cell.name == name)

    assert cell.strike(tmp_path / "run", unhung(cell.job)) < cell.limit_s + MORE_S + SLACK_S


def test_a_rank_that_is_late_and_comes_is_not_lost(tmp_path: Path, unhung: Unhung) -> None:
    expected = unhung(HANGING)
    late = ("--hang", f"late:forward:1:{STEP}")
    with running(HANGING, tmp_path / "run", arguments=late) as run:
        ended_well(run)

    assert not run.records("hang.condemn", "replica.lost")
    assert all(
        torch.equal(value, expected[rank][name])
        for rank in range(HANGING.ranks)
        for name, value in run.weights(rank).items()
    )


def test_tell_names_a_rank_and_ends_nobody(tmp_path: Path) -> None:
    cell = Cell(how="sleep", where="forward")
    options = ("--on-hang=tell",)
    with running(HANGING, tmp_path / "run", options=options, arguments=cell.arguments) as run:
        suspect = run.await_record("hang.suspect")
        run.await_record(
            "hang.suspect", lambda record: (record["rank"], record["step"]) == (1, STEP)
        )

        assert not run.records("hang.condemn")
        assert set(range(HANGING.ranks)) == {r["rank"] for r in run.records("worker.spawn")}
        assert not run.records("worker.exit")
    assert suspect["waiting"] == [0, 2]


def test_a_job_in_which_nobody_moves_stops_at_the_limit_that_the_user_has_set(
    tmp_path: Path,
) -> None:
    cell = Cell(how="sleep", where="body", ranks=(0, 1, 2, 3), job=HANGING_HSDP)
    options = ("--hang-limit=20",)
    with running(cell.job, tmp_path / "run", options=options, arguments=cell.arguments) as run:
        assert run.finish() == ExitCode.HANG
        nothing_left(run)

    [quiet] = run.records("hang.quiet")
    assert 20 <= quiet["quiet_s"] < 26 + SLACK_S
    assert "hanging.py" in quiet["reason"]
    stacks = list((run.journal / "hangs" / str(quiet["hang"])).glob("rank*.stack"))
    assert len(stacks) == cell.job.ranks


def test_below_the_minimum_of_replicas_a_hang_ends_the_job_with_its_own_code(
    tmp_path: Path,
) -> None:
    cell = Cell(how="stop", where="forward")
    options = ("--min-replicas=3",)
    with running(HANGING, tmp_path / "run", options=options, arguments=cell.arguments) as run:
        assert run.finish() == ExitCode.HANG
        nothing_left(run)
    assert "rank 1 hangs, stopped by a signal" in run.output()


def test_who_does_not_report_after_another_s_death_hangs_too(tmp_path: Path) -> None:
    both = ("--hang", f"die,stop:forward:1,2:{STEP}")
    with running(HANGING, tmp_path / "run", arguments=both) as run:
        ended_well(run)
        nothing_left(run)
        assert run.finishers() == [0]

    [first, second] = run.records("replica.lost")
    assert (first["root_rank"], second["root_rank"]) == (1, 2)
    assert "stopped by a signal" in second["reason"]
    assert second["ts"] - first["ts"] < LIMIT_S + MORE_S + SLACK_S


def test_a_process_that_outlives_its_script_and_does_nothing_is_ended(tmp_path: Path) -> None:
    lingers = ("--hang", f"linger:forward:1:{STEP}")
    with running(HANGING, tmp_path / "run", arguments=lingers, bound_s=150) as run:
        ended_well(run)
        nothing_left(run)

    [kill] = run.records("worker.kill")
    assert (kill["ranks"], kill["signal"]) == ([1], "SIGTERM")
    assert "its script ended" in kill["reason"]
    assert not run.records("replica.lost")


def test_who_has_no_other_data_computes_with_its_mates_all_the_same(tmp_path: Path) -> None:
    """Rank 3 can read neither rank 1's batch nor another one of its own; rank 2 waits for it in the
    forward of rank 0's.
    """
    loss = ("--hang", f"die:forward:1:{STEP}", "--niggard", "3")
    with running(HANGING_HSDP, tmp_path / "run", arguments=loss) as run:
        ended_well(run)
        nothing_left(run)
        assert run.finishers() == [2, 3]

    assert "computed once more with its shard mates, as no other data" in run.output()
    [lost] = run.records("replica.lost")
    assert lost["root_rank"] == 1 and not run.records("hang.condemn")


def test_shared_memory_may_be_cleared_under_a_job(tmp_path: Path) -> None:
    """As systemd does when a user's last session ends: a hang is seen, and survivors meet anew."""
    cell = Cell(how="sleep", where="forward")
    with running(cell.job, tmp_path / "run", arguments=cell.arguments) as run:
        run.await_record("step.commit")
        shutil.rmtree(_shared_memory(run.pid_of(0)))
        run.await_record("notice.give", lambda one: "is made again" in one["reason"])
        ended_well(run)
        nothing_left(run)

    assert [record["rank"] for record in run.records("hang.condemn")] == [1], run.story()
    assert run.finishers() == [0, 2]


def _shared_memory(pid: int) -> Path:
    """The private directory of the launcher that has started this worker."""
    environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    context = next(v for v in environ if v.startswith(b"RECOVERRUN_CONTEXT="))
    return Path(context.partition(b"=")[2].decode()).parent
