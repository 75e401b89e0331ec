"""A lost replica comes back: weights of all ranks are bit for bit those of a run without a loss."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.e2e.judge import ended_well, nothing_left
from tests.e2e.returns import WITHIN_S, Returning, returned, undisturbed
from tests.e2e.runs import SCRIPTS, running

pytestmark = [pytest.mark.e2e, pytest.mark.rest, pytest.mark.timeout(600)]

CASES = (
    Returning(shape="range"),
    Returning(shape="epochs"),
    Returning(shape="workers"),
    Returning(shape="counting", kills="r0@step:6:reduce"),
    Returning(shape="micro", kills="r1@step:6:vote"),
    Returning(shape="trainer", kills="r0@step:6:forward"),
    Returning(shape="norms"),
    Returning(shape="weighed"),
    Returning(shape="fading"),
    Returning(shape="masters"),
    Returning(shape="range", ranks=2, shards=1),
    Returning(shape="range", ranks=4, shards=2, kills="r3@step:6:backward"),
    Returning(shape="evaluated", ranks=4, shards=2),
    Returning(shape="averaged", ranks=4, shards=2, kills="r3@step:6:backward"),
    Returning(shape="range", ranks=3, kills="r1@step:6:backward,r2@step:9:forward", comes=2),
    # Who gives the second one its place has come back itself.
    Returning(shape="counting", then=(0,), comes=2),
    Returning(shape="packed", then=(0,), comes=2),
    Returning(shape="weighed", then=(0,), comes=2),
    # One after another, until all have come back.
    Returning(shape="range", ranks=3, then=(0, 2, 1), comes=4),
    Returning(shape="range", ranks=4, shards=2, then=(0, 3), comes=3),
    Returning(shape="drawing", ranks=3),
    Returning(shape="shares"),
    Returning(shape="phases", kills="r1@step:8:backward"),
    Returning(shape="phases", ranks=3, kills="r1@step:8:backward,r0@step:12:forward", comes=2),
    Returning(shape="heads", ranks=3, script="heads.py", kills="r1@step:8:backward"),
    Returning(shape="heads", ranks=4, shards=2, script="heads.py", kills="r3@step:8:forward"),
    Returning(shape="banked", ranks=3, script="banked.py", kills="r1@step:8:backward"),
    Returning(shape="banked", ranks=3, script="banked.py", kills="r0@step:8:vote"),
    Returning(shape="range", wrap="unused"),
    Returning(shape="range", wrap="static", kills="r0@step:6:backward"),
    Returning(shape="range", wrap="views"),
    Returning(shape="range", wrap="each", kills="r1@step:6:forward", exact=False),
    Returning(shape="epochs", wrap="flat", kills="r0@step:6:vote", exact=False),
    Returning(shape="range", wrap="fsdp1", ranks=4, shards=2, exact=False),
    Returning(shape="range", wrap="fsdp1-orig", ranks=4, shards=2, exact=False),
    Returning(shape="range", wrap="tensors", ranks=4, shards=2, kills="r3@step:6:backward"),
    Returning(shape="range", wrap="stages", ranks=4, shards=2, kills="r2@step:6:forward"),
    Returning(shape="range", dies="prologue"),
    Returning(shape="range", dies="forward", comes=2),
    # Its machine has spoilt its gradients: nothing of them was in the sum.
    Returning(
        shape="range", ranks=3, kills="", faulty=("--overflows=1:6",), checks=("--check-finite",)
    ),
    Returning(
        shape="range", ranks=4, shards=2, kills="", faulty=("--overflows=3:6",),
        checks=("--check-finite",),
    ),
)  # fmt: skip


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            id=case.name,
            marks=pytest.mark.quick if case.name in ("epochs-2x1", "epochs-flat-2x1") else (),
        )
        for case in CASES
    ],
)
def test_weights_are_those_of_a_run_without_a_loss(case: Returning, tmp_path: Path) -> None:
    expected = undisturbed(case, tmp_path / "plain")

    weights, returns = returned(case, tmp_path / "returned")

    assert len(returns) >= case.comes
    for rank, theirs in expected.items():
        for name, tensor in theirs.items():
            assert torch.equal(weights[rank][name], tensor), f"rank {rank}: {name}"


@pytest.mark.parametrize(("ranks", "shards", "odd"), [(3, 0, 1), (6, 2, 3)])
def test_a_replica_with_other_parameters_comes_back_with_those_of_the_others(
    ranks: int, shards: int, odd: int, tmp_path: Path
) -> None:
    case = Returning(
        shape="range", ranks=ranks, shards=shards, kills="", faulty=(f"--corrupt={odd}:7",),
        checks=("--check-params-every=2",),
    )  # fmt: skip

    weights, (back,) = returned(case, tmp_path)

    assert odd in back["ranks"]
    for rank, theirs in weights.items():
        mates = weights[rank % max(1, shards)]
        for name, tensor in theirs.items():
            assert torch.equal(tensor, mates[name]), f"rank {rank}: {name}"


def test_a_process_that_takes_another_way_leaves_and_the_others_train_on(tmp_path: Path) -> None:
    case = Returning(shape="range", dies="elsewhere")
    expected = undisturbed(case, tmp_path / "plain")

    arguments = (f"--dies={case.dies}",)
    with running(
        case, tmp_path / "run", inject=case.kills, options=("--exact", "--return"),
        arguments=arguments, bound_s=WITHIN_S,
    ) as run:  # fmt: skip
        run.await_output("a lost replica does not come back: this process calls", 1)
        (run.out / "go").touch()
        ended_well(run)
        nothing_left(run)
        weights = run.weights(0)

    assert not run.records("replica.return")
    assert len(run.records("replica.start")) == 1
    assert all(torch.equal(weights[name], one) for name, one in expected[0].items())


def test_where_the_script_was_edited_meanwhile_nobody_comes_back(tmp_path: Path) -> None:
    case, script = Returning(shape="range"), tmp_path / "returning.py"
    expected = undisturbed(case, tmp_path / "plain")
    text = (SCRIPTS / case.script).read_text()
    script.write_text(text)

    with running(
        replace(case, script=str(script)), tmp_path / "run", inject=case.kills,
        options=("--exact", "--return"), bound_s=WITHIN_S,
    ) as run:  # fmt: skip
        run.await_record("step.commit")
        script.write_text(text.replace("PACE_S = 0.8", "PACE_S = 0.9"))
        run.await_output(f"does not come back: {script} has changed since the run", 1)
        (run.out / "go").touch()
        ended_well(run)
        nothing_left(run)
        weights = run.weights(0)

    assert len(run.records("replica.start")) == 1
    assert all(torch.equal(weights[name], one) for name, one in expected[0].items())


@pytest.mark.parametrize(
    ("shape", "stray"), [("range", "alone"), ("told", "otherwise"), ("micro", "fewer")]
)
def test_one_that_comes_back_and_goes_another_way_leaves_and_the_others_train_on(
    shape: str, stray: str, tmp_path: Path
) -> None:
    case = Returning(shape=shape, ranks=3, dies=stray)
    expected = undisturbed(replace(case, dies=""), tmp_path / "plain")

    options = ("--exact", "--return")
    with running(
        case, tmp_path / "run", inject=case.kills, options=options, arguments=(f"--dies={stray}",),
        bound_s=WITHIN_S,
    ) as run:  # fmt: skip
        run.await_output("a lost replica does not come back", 1)
        (run.out / "go").touch()
        ended_well(run)
        nothing_left(run)
        weights = {rank: run.weights(rank) for rank in (0, 2)}

    assert len(run.records("replica.start")) == 1
    for rank, theirs in weights.items():
        for name, tensor in theirs.items():
            assert torch.equal(tensor, expected[rank][name]), f"rank {rank}: {name}"


@pytest.mark.parametrize("exact", [False, True])
def test_one_that_takes_fewer_microbatches_after_its_first_step_leaves(
    exact: bool, tmp_path: Path
) -> None:
    case = Returning(shape="micro", ranks=3, dies="fewer later", exact=exact)

    with running(
        case, tmp_path / "run", inject=case.kills, options=(*case.options, "--return"),
        arguments=(f"--dies={case.dies}",), bound_s=WITHIN_S,
    ) as run:  # fmt: skip
        run.await_record("replica.prove", lambda _: True)
        (run.out / "go").touch()
        ended_well(run)
        nothing_left(run)

    said = [one["reason"] for one in run.records("notice.give")]
    assert any("rank 1 came back and takes another number of microbatches" in one for one in said)
    assert len(run.records("replica.start")) == 1


def test_where_all_were_lost_before_the_one_that_came_back_last_leaves(tmp_path: Path) -> None:
    """Rank 1 dies as rank 0 is back, and is given its state by that one."""
    kills = "r0@step:6:backward,r1@welcome:between"
    case = Returning(shape="micro", dies="fewer later", kills=kills)

    with running(
        case, tmp_path / "run", inject=kills, options=(*case.options, "--return"),
        arguments=(f"--dies={case.dies}",), bound_s=WITHIN_S,
    ) as run:  # fmt: skip
        run.await_record("replica.prove", lambda one: one["ranks"] == [1])
        (run.out / "go").touch()
        ended_well(run)
        nothing_left(run)

    said = [one["reason"] for one in run.records("notice.give")]
    assert any("rank 1 came back and takes another number of microbatches" in one for one in said)
    assert len(run.records("replica.start")) == 2


@pytest.mark.parametrize("stray", ["noisy", "noisy, then lost"])
def test_where_nobody_can_execute_for_one_that_came_back_the_run_goes_on_and_is_not_exact(
    stray: str, tmp_path: Path
) -> None:
    """A later proof shows it or, if it is lost again before, its own microbatch."""
    case = Returning(shape="range", ranks=3, dies=stray)

    with running(
        case, tmp_path / "run", inject=case.kills, options=("--exact", "--return"),
        arguments=(f"--dies={case.dies}",), bound_s=WITHIN_S,
    ) as run:  # fmt: skip
        run.await_record("replica.prove", lambda _: True)
        (run.out / "go").touch()
        ended_well(run)
        nothing_left(run)

    said = [one["reason"] for one in run.records("notice.give")]
    assert any(one.startswith("from here on not exact, equal-count: ") for one in said), said


def test_a_mean_that_goes_on_with_another_rank_s_losses_steers_aloud(tmp_path: Path) -> None:
    case = Returning(shape="means", exact=False)
    with running(
        case, tmp_path / "run", inject=case.kills, options=("--return",), bound_s=WITHIN_S
    ) as run:
        run.await_record("replica.return", lambda _: True)
        (run.out / "go").touch()
        ended_well(run)

    notices = run.records("notice.give")
    (said,) = [one["reason"] for one in notices if one["event"] == "promise.steer"]
    assert " is given what rank 1 took over from another rank as it came back (total)" in said


@pytest.mark.parametrize(
    ("shape", "kills"),
    [
        ("loose", "r1@step:6:backward"),
        ("ahead", "r1@step:6:backward"),
        # It is lost before it comes to the second loop, and is back only in there.
        ("phases", "r1@step:2:backward"),
    ],
)
def test_with_other_samples_a_rank_comes_back_with_data_of_its_own(
    shape: str, kills: str, tmp_path: Path
) -> None:
    case = Returning(shape=shape, kills=kills, exact=False)

    weights, returns = returned(case, tmp_path)

    assert len(returns) == 1
    for name, tensor in weights[0].items():
        assert torch.equal(weights[1][name], tensor), name


@pytest.mark.parametrize(
    ("shape", "why"),
    [("silent phases", "the loop at"), ("odd state", "the state of a AdamW['param_groups']")],
)
def test_where_a_phase_was_left_silently_or_an_optimizer_cannot_travel_nobody_is_started_again(
    shape: str, why: str, tmp_path: Path
) -> None:
    case = Returning(shape=shape, kills="r1@step:8:backward")

    with running(
        case, tmp_path, inject=case.kills, options=("--exact", "--return"), bound_s=WITHIN_S
    ) as run:
        run.await_output(f"a lost replica does not come back: {why}", 1)
        (run.out / "go").touch()
        ended_well(run)
        nothing_left(run)

    assert not run.records("replica.start", "replica.return")
