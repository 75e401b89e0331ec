"""No replica is left whole: all go back, and weights are bit for bit those without a loss."""

import os
import signal
from pathlib import Path

import pytest
import torch

from recoverrun.worker.snapshots.files_read_back import READ_BACK
from rendezvous.bays import memory
from rendezvous.protocol.worker_env import UNASKED_AFTER_S
from rendezvous.snapshots import bay_header
from tests.e2e.judge import ended_well, nothing_left
from tests.e2e.runs import Run, running
from tests.e2e.snapshots import WITHIN_S, GoingBack, gone_back, undisturbed, weights_of

pytestmark = [pytest.mark.e2e, pytest.mark.rest, pytest.mark.timeout(900)]

CASES = (
    GoingBack(shape="counting"),
    GoingBack(shape="trainer", dies="0@18"),
    GoingBack(shape="epochs", dies="0@18,0@22"),
    GoingBack(shape="workers", dies="0@22"),
    GoingBack(shape="lasting-still", dies="0@22"),
    GoingBack(shape="counting", dies="", inject="r0@step:15:snapshot"),
    GoingBack(shape="counting", every="auto"),
    GoingBack(shape="ahead", dies="0@13,0@22"),
    GoingBack(shape="decays", dies="0@13,0@22"),
    GoingBack(shape="renewed", dies="0@8,0@18,0@22"),
    GoingBack(shape="given", dies="0@8,0@18"),
    GoingBack(shape="relabelled", dies="0@13,0@22"),
    GoingBack(shape="keeping", dies="0@13,0@22"),
    GoingBack(shape="drawing", dies="0@13,0@22"),
    GoingBack(shape="header", dies="0@13,0@22"),
    GoingBack(shape="remembering", dies="0@13,0@22"),
    GoingBack(shape="noisy", dies="0@8,0@22"),
    GoingBack(shape="streaming", dies="0@13,0@22"),
    GoingBack(shape="asking", dies="0@13,0@22"),
    GoingBack(shape="thawing", dies="0@13,0@18"),
    GoingBack(shape="thawing", layout="fsdp2", ranks=2, dies="1@13"),
    *(
        GoingBack(shape=framework, dies="0@6,0@18", needs=framework)
        for framework in ("accelerate", "transformers", "lightning")
    ),
    GoingBack(shape="micro", layout="ddp"),
    GoingBack(shape="counting", layout="ddp", ranks=2, dies="all@13"),
    GoingBack(shape="fading", layout="ddp", ranks=2, dies="all@13"),
    GoingBack(shape="averaged", layout="fsdp2", ranks=2, dies="1@13"),
    GoingBack(shape="epochs", layout="fsdp2", ranks=2, dies="1@13"),
    GoingBack(shape="counting", layout="fsdp2", ranks=2, dies="all@13"),
    GoingBack(shape="micro", layout="fsdp2", ranks=2, dies="0@8,1@13,all@22"),
    GoingBack(shape="counting", layout="fsdp1", ranks=2, dies="1@13"),
    GoingBack(shape="epochs", layout="fsdp1-original", ranks=2, dies="0@22"),
)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=pytest.mark.quick if case is CASES[0] else ())
        for case in CASES
    ],
)
def test_weights_are_those_of_a_run_without_a_loss(case: GoingBack, tmp_path: Path) -> None:
    if case.needs:
        pytest.importorskip(case.needs, reason="`make compat` installs it")
    expected = undisturbed(case, tmp_path / "plain")

    weights, steps = gone_back(case, tmp_path / "back")

    assert len(steps) == case.losses
    for rank, theirs in expected.items():
        for name, tensor in theirs.items():
            assert torch.equal(weights[rank][name], tensor), f"rank {rank}: {name}"


@pytest.mark.parametrize(
    ("shape", "layout", "dies"),
    [("counting", "single", "0"), ("micro", "ddp", "0"), ("counting", "fsdp2", "1")],
)
def test_where_nobody_asked_the_only_replica_goes_back(
    shape: str, layout: str, dies: str, tmp_path: Path
) -> None:
    """Its steps are long enough, and once it has promised to it does."""
    ranks = 2 if layout == "fsdp2" else 1
    case = GoingBack(shape=shape, layout=layout, ranks=ranks, dies=f"{dies}@255", steps=260)
    expected = undisturbed(case, tmp_path / "plain")
    gate = tmp_path / "gate"
    with running(
        case,
        tmp_path / "back",
        arguments=(f"--dies={case.dies}", f"--awaits=250@{gate}", "--pace=0.06"),
        bound_s=WITHIN_S,
    ) as run:
        run.await_record("promise.state")
        gate.touch()
        ended_well(run)
        nothing_left(run)
        weights = weights_of(run)
        first = run.records("promise.state", "snapshot.restored", "keeper.spawn")
        begun = [record["ts"] for record in run.records("keeper.spawn", "worker.hello")]

    assert [record["ev"] for record in first[:3]] == [
        "keeper.spawn", "promise.state", "snapshot.restored",
    ]  # fmt: skip
    assert first[1]["promise"] == "rollback"
    assert begun[ranks] > begun[0] + UNASKED_AFTER_S
    for rank, theirs in expected.items():
        for name, tensor in theirs.items():
            assert torch.equal(weights[rank][name], tensor), f"rank {rank}: {name}"


def test_where_nobody_asked_a_job_that_is_soon_over_has_no_keeper(tmp_path: Path) -> None:
    case = GoingBack(shape="counting", layout="fsdp2", ranks=2, dies="", steps=4)
    with running(case, tmp_path / "run", bound_s=WITHIN_S) as run:
        ended_well(run)
        told = run.records("keeper.spawn", "promise.state", "notice.give")

    assert not told


def test_a_replica_survives_and_once_none_is_left_all_go_back(tmp_path: Path) -> None:
    case = GoingBack(shape="epochs", layout="ddp", ranks=2, dies="1@8,0@18")
    expected = undisturbed(case, tmp_path / "plain")
    gate = tmp_path / "gate"
    with running(
        case,
        tmp_path / "back",
        options=("--snapshot-every=5",),
        arguments=(f"--dies={case.dies}", f"--awaits=8@{gate}"),
        bound_s=WITHIN_S,
    ) as run:
        run.await_record("snapshot.safe", lambda record: record["step"] == 5)
        gate.touch()
        ended_well(run)
        nothing_left(run)
        weights = weights_of(run)
        order = ("replica.lost", "recovery.done", "snapshot.plan", "snapshot.restored")
        happened = [(record["ev"], record.get("step")) for record in run.records(*order)]
        promises = {record["promise"] for record in run.records("promise.state")}

    assert [event for event, _ in happened] == [order[0], order[1], order[0], *order[2:]]
    assert [step for event, step in happened if event.startswith("snapshot")] == [5, 5]
    assert promises == {"exact-samples"}
    for rank, theirs in expected.items():
        for name, tensor in theirs.items():
            assert torch.equal(weights[rank][name], tensor), f"rank {rank}: {name}"


@pytest.mark.parametrize(
    ("layout", "dies", "promises"),
    [
        ("by-hand", "all@13", ["exact-samples"]),
        ("divided", "1@13", ["exact-samples", "rollback"]),  # its first updates are not heard yet
        ("zero", "0@13", ["rollback"]),
    ],
)
def test_the_promise_is_the_same_once_all_have_gone_back(
    layout: str, dies: str, promises: list[str], tmp_path: Path
) -> None:
    case = GoingBack(shape="epochs", layout=layout, ranks=2, dies=dies)
    expected = undisturbed(case, tmp_path / "plain")
    with running(
        case,
        tmp_path / "back",
        options=("--snapshot-every=5",),
        arguments=(f"--dies={dies}",),
        bound_s=WITHIN_S,
    ) as run:
        ended_well(run)
        nothing_left(run)
        weights = weights_of(run)
        said = [record["promise"] for record in run.records("promise.state")]
        back = len(run.records("snapshot.restored"))

    assert (said, back) == (2 * promises, 1)
    for rank, theirs in expected.items():
        for name, tensor in theirs.items():
            assert torch.equal(weights[rank][name], tensor), f"rank {rank}: {name}"


def test_snapshots_go_on_once_a_lost_replica_is_back(tmp_path: Path) -> None:
    """It comes back before all go back to a snapshot, of which it has its part, and after that."""
    case = GoingBack(shape="epochs", layout="ddp", ranks=2, dies="1@8,all@90,1@95", steps=180)
    expected = undisturbed(case, tmp_path / "plain")
    gates = [tmp_path / name for name in ("before", "after")]
    with running(
        case,
        tmp_path / "back",
        inject="pace:400",
        options=("--snapshot-every=5", "--return", "--exact"),
        arguments=(f"--dies={case.dies}", f"--awaits=88@{gates[0]},170@{gates[1]}"),
        bound_s=WITHIN_S,
    ) as run:
        for attempt, gate in enumerate(gates):
            _await_return_and_snapshot(run, attempt)
            gate.touch()
        ended_well(run)
        nothing_left(run)
        weights = weights_of(run)
        restored = [int(record["step"]) for record in run.records("snapshot.restored")]
        promises = {record["promise"] for record in run.records("promise.state")}

    assert len(restored) == 1 and restored[0] > 8
    assert promises == {"exact-samples"}
    for rank, theirs in expected.items():
        for name, tensor in theirs.items():
            assert torch.equal(weights[rank][name], tensor), f"rank {rank}: {name}"


def _await_return_and_snapshot(run: Run, attempt: int) -> None:
    """Wait for one more return than there were attempts before, and a snapshot after that."""
    run.await_record("replica.return", lambda _: len(run.records("replica.return")) > attempt)
    came = run.records("replica.return")[attempt]
    run.await_record("snapshot.safe", lambda record: record["seq"] > came["seq"])


def _damage(keeper: int, step: int) -> None:
    """Flip a bit of what this process keeps of the snapshot of that step."""
    for one in Path(f"/proc/{keeper}/fd").iterdir():
        if not os.readlink(one).startswith("/memfd:recoverrun-bay"):
            continue
        fd = os.open(one, os.O_RDWR)
        header = memory.header_of(fd)
        if header is not None and header.id.step == step:
            at = bay_header.content_begin(os.fstat(fd).st_size) + header.pieces // 2
            os.pwrite(fd, bytes([os.pread(fd, 1, at)[0] ^ 1]), at)
        os.close(fd)


def test_a_damaged_part_is_found_and_all_go_back_to_the_snapshot_before(tmp_path: Path) -> None:
    case = GoingBack(shape="counting", dies="")
    expected = undisturbed(case, tmp_path / "plain")
    (tmp_path / "back").mkdir()
    os.mkfifo(tmp_path / "back" / "go")
    with running(
        case,
        tmp_path / "back",
        options=("--snapshot-every=5",),
        arguments=("--waits=13",),
        bound_s=WITHIN_S,
    ) as run:
        run.await_file(run.out / "waits0")
        while not any(record["step"] == 10 for record in run.records("snapshot.safe")):
            run.tick()
        _damage(int(run.records("keeper.spawn")[0]["pid"]), 10)
        (tmp_path / "back" / "go").unlink()
        os.kill(int(run.records("worker.spawn")[0]["pid"]), signal.SIGKILL)
        ended_well(run)
        nothing_left(run)
        weights = weights_of(run)
        planned = [record["step"] for record in run.records("snapshot.plan")]
        restored = [record["step"] for record in run.records("snapshot.restored")]

    assert (planned, restored) == ([10, 5], [5])
    for name, tensor in expected[0].items():
        assert torch.equal(weights[0][name], tensor), name


@pytest.mark.parametrize(
    ("case", "why", "name"),
    [
        pytest.param(
            GoingBack(shape="overlapping", layout="fsdp2", ranks=2, dies=""),
            "a collective is under way between steps at ",
            "local_work waits",
            id="a collective",
        ),
        pytest.param(
            GoingBack(shape="counting", layout="power", dies=""),
            "DDP alone holds a PowerSGDState",
            "communication hook",
            id="a hook's state",
        ),
        pytest.param(
            GoingBack(shape="lasting", dies=""),
            "the worker processes of a DataLoader over a Noisy go on from one pass to the next ",
            "(persistent_workers)",
            id="worker processes",
        ),
    ],
)
def test_what_cannot_be_gone_back_to_is_told(
    case: GoingBack, why: str, name: str, tmp_path: Path
) -> None:
    with running(case, tmp_path / "run", options=("--snapshot-every=5",), bound_s=WITHIN_S) as run:
        ended_well(run)
        reasons = [str(record["reason"]) for record in run.records("promise.state")]

    assert any(f"snapshots are off: {why}" in one and name in one for one in reasons), reasons


def test_a_file_that_the_script_reads_again_is_told(tmp_path: Path) -> None:
    case = GoingBack(shape="filed", dies="")
    with running(case, tmp_path / "run", options=("--snapshot-every=5",), bound_s=WITHIN_S) as run:
        ended_well(run)
        said = [str(record["reason"]) for record in run.records("notice.give")]

    assert said.count(READ_BACK.format(run.out / "count0")) == 1, said


ORDERED = (
    ("single", 1, "r0@step:10:restore,r0@step:13:forward", 2, 0),
    ("single", 1, "keeper@step:10:restore,r0@step:13:forward", 1, 1),
    ("single", 1, "keeper@step:15,r0@step:18:forward", 1, 1),
    ("fsdp2", 2, "all@step:13,r1@step:10:restore", 2, 0),
    ("fsdp1", 2, "r1@step:15:snapshot,r0@step:10:restore", 2, 0),
)
"""Layout and ranks, kills, how often all go back, and how many keepers end."""


@pytest.mark.parametrize(
    ("layout", "ranks", "kills", "times", "keepers"), ORDERED, ids=[one[2] for one in ORDERED]
)
def test_ordered_faults_strike_and_leave_no_trace(
    layout: str, ranks: int, kills: str, times: int, keepers: int, tmp_path: Path
) -> None:
    case = GoingBack(shape="epochs", layout=layout, ranks=ranks, dies="")
    expected = undisturbed(case, tmp_path / "plain")
    gate = tmp_path / "gate"
    with running(
        case,
        tmp_path / "back",
        inject=kills,
        options=("--snapshot-every=5",),
        arguments=(f"--awaits=13@{gate}",),
        bound_s=WITHIN_S,
    ) as run:
        while not any(record["step"] == 10 for record in run.records("snapshot.safe")):
            run.tick()
        gate.touch()
        ended_well(run)
        nothing_left(run)
        weights = weights_of(run)
        planned = [record["step"] for record in run.records("snapshot.plan")]

    assert len(planned) == times
    assert all(step in (10, 15) for step in planned)
    assert len(run.records("keeper.exit")) == keepers
    for rank, theirs in expected.items():
        for name, tensor in theirs.items():
            assert torch.equal(weights[rank][name], tensor), f"rank {rank}: {name}"
