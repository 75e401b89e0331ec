"""A job that ended with its launcher goes on from what its keepers had written."""

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from recoverrun.worker.snapshots.taking import UNEQUAL
from rendezvous.coordinator.snapshots import UNFIT
from rendezvous.protocol.exit_codes import ExitCode
from tests.e2e.judge import ended_well, nothing_left
from tests.e2e.launching import free_port
from tests.e2e.lost_nodes import HOST, LosingNodes, NodeRun
from tests.e2e.runs import running
from tests.e2e.snapshots import WITHIN_S, GoingBack, Weights, undisturbed, weights_of

pytestmark = [pytest.mark.e2e, pytest.mark.rest, pytest.mark.timeout(900)]

CASES = (
    GoingBack(shape="epochs", dies=""),
    GoingBack(shape="epochs", layout="fsdp2", ranks=2, dies=""),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_after_kill_9_of_all_the_next_start_goes_on(case: GoingBack, tmp_path: Path) -> None:
    expected = undisturbed(case, tmp_path / "plain")
    options = ("--snapshot-every=5", f"--snapshot-dir={tmp_path}/kept")
    arguments = ("--halts=13",)
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "halt").touch()
    with running(
        case, tmp_path / "first", options=options, arguments=arguments, bound_s=WITHIN_S
    ) as run:
        written = run.await_record("snapshot.persisted")
        for rank in range(case.ranks):
            run.await_file(run.out / f"halts{rank}")
        for pid in run.processes():
            os.kill(pid, signal.SIGKILL)

    with running(
        case, tmp_path / "second", options=options, arguments=arguments, bound_s=WITHIN_S
    ) as run:
        ended_well(run)
        nothing_left(run)
        weights = weights_of(run)
        [restored] = run.records("snapshot.restored")

    assert restored["step"] == written["step"] == 5
    _assert_equal(expected, weights)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_sigterm_takes_one_snapshot_more_and_the_next_start_goes_on(
    case: GoingBack, tmp_path: Path
) -> None:
    expected = undisturbed(case, tmp_path / "plain")
    options = ("--snapshot-every=5", f"--snapshot-dir={tmp_path}/kept")
    arguments = ("--waits=7", "--halts=20")
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "halt").touch()
    os.mkfifo(tmp_path / "first" / "go")
    with running(
        case, tmp_path / "first", options=options, arguments=arguments, bound_s=WITHIN_S
    ) as run:
        run.await_record("snapshot.persisted")
        for rank in range(case.ranks):
            run.await_file(run.out / f"waits{rank}")
        run.terminate()
        run.await_record("drain.begin")
        go = os.open(tmp_path / "first" / "go", os.O_RDWR)
        code = run.finish()
        os.close(go)
        nothing_left(run)
        newest = run.records("snapshot.persisted")[-1]
        [end] = run.records("run.end")

    with running(
        case, tmp_path / "second", options=options, arguments=arguments, bound_s=WITHIN_S
    ) as run:
        ended_well(run)
        weights = weights_of(run)
        [restored] = run.records("snapshot.restored")

    assert code == ExitCode.REQUEUE
    assert restored["step"] == newest["step"] >= 7
    assert f"the snapshot of step {newest['step']} is on the disk, start the job" in end["reason"]
    _assert_equal(expected, weights)


def test_where_the_newest_does_not_fit_the_same_start_takes_the_older_one(tmp_path: Path) -> None:
    """No snapshot has what another program has changed between two starts."""
    case, scale = GoingBack(shape="counting", dies=""), tmp_path / "scale"
    options = ("--snapshot-every=5", f"--snapshot-dir={tmp_path}/kept")
    arguments = (f"--scaled={scale}", "--waits=12")
    scale.write_text("24 1.0")
    (tmp_path / "first").mkdir()
    os.mkfifo(tmp_path / "first" / "go")
    with running(
        case, tmp_path / "first", options=options, arguments=arguments, bound_s=WITHIN_S
    ) as run:
        run.await_record("snapshot.persisted")
        run.await_file(run.out / "waits0")
        run.terminate()
        run.await_record("drain.begin")
        go = os.open(tmp_path / "first" / "go", os.O_RDWR)
        code = run.finish()
        os.close(go)
        *_, older, newest = [int(one["step"]) for one in run.records("snapshot.persisted")]
    assert code == ExitCode.REQUEUE and older < newest, (older, newest, run.story())

    scale.write_text(f"{newest} 2.0")
    with running(
        case, tmp_path / "second", options=options, arguments=arguments, bound_s=WITHIN_S
    ) as run:
        ended_well(run)
        assert UNFIT.format(newest, UNEQUAL) in run.output()
        weights = weights_of(run)
        restored = [int(one["step"]) for one in run.records("snapshot.restored")]
    with running(case, tmp_path / "plain", arguments=arguments, bound_s=WITHIN_S) as run:
        ended_well(run)
        expected = weights_of(run)

    assert restored == [newest, older]
    _assert_equal(expected, weights)


def _pair(
    stack: ExitStack, folder: Path, kept: tuple[Path, Path], arguments: tuple[str, ...] = ()
) -> list[NodeRun]:
    """Two launchers with directories of their own, of which the second comes later."""
    job = LosingNodes(nodes=2)
    found: list[NodeRun] = []
    options = ("--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--snapshot-every=5")
    for number, directory in enumerate(kept):
        run = NodeRun(
            job,  # type: ignore[arg-type]
            folder / f"node{number}",
            options=(*options, f"--snapshot-dir={directory}"),
            arguments=arguments,
            bound_s=WITHIN_S,
            within=(*HOST, f"gpu-{directory.name}"),
        )
        stack.callback(run.end)
        if arguments:
            (run.folder / "halt").touch()
        found.append(run)
        if number == 0:
            run.await_output("waiting for 1 of 2 nodes", 1)
    return found


def test_nodes_that_come_in_another_order_find_their_own_parts(tmp_path: Path) -> None:
    expected = undisturbed(LosingNodes(nodes=2).alike, tmp_path / "plain")
    one, other = tmp_path / "one", tmp_path / "other"
    with ExitStack() as stack:
        first = _pair(stack, tmp_path / "first", (one, other), ("--halts=13",))
        while not (
            any(run.records("snapshot.persisted") for run in first)
            and all(list(run.out.glob("halts*")) for run in first)
        ):
            first[-1].tick()
        for run in first:
            run.lose()

        second = _pair(stack, tmp_path / "second", (other, one))
        assert [run.finish() for run in second] == [0, 0], second[0].story()

    restored = [record["step"] for run in second for record in run.records("snapshot.restored")]
    weights = {
        rank: next(run.weights(rank) for run in second if (run.out / f"weights{rank}.pt").exists())
        for rank in range(2)
    }
    assert restored == [5]
    _assert_equal(expected, weights)


def _assert_equal(expected: Weights, weights: Weights) -> None:
    for rank, theirs in expected.items():
        for name, tensor in theirs.items():
            assert torch.equal(weights[rank][name], tensor), f"rank {rank}: {name}"
