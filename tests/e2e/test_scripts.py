"""Scripts as people write them, which survive exactly."""

import re
from pathlib import Path

import pytest

from tests.e2e.script_runs import ROOT, SCRIPTS, run, under_torchrun

pytestmark = [pytest.mark.e2e, pytest.mark.rest]


def seldom(*values: object) -> object:
    """A case that only `make matrix` tries."""
    return pytest.param(*values, marks=pytest.mark.matrix)


@pytest.mark.parametrize(
    ("script", "kills"),
    [
        seldom("strided.py", ["r0@step:4:forward,r1@step:20:between", "r2@step:4:reduce"]),
        seldom("augmenting.py", ["r1@step:3:forward", "r0@step:2:vote,r2@step:5:reduce"]),
        seldom("skipping.py", ["r1@step:4:forward", "r0@step:2:vote"]),
        ("ahead.py", ["r1@step:3:forward,r0@step:6:reduce"]),
        ("irregular.py", ["r0@step:1:vote", "r2@step:4:reduce,r0@step:6:between"]),
    ],
)
def test_a_script_ends_with_the_weights_of_the_run_without_losses(
    script: str, kills: list[str], tmp_path: Path
) -> None:
    whole = run(SCRIPTS / script, tmp_path)
    assert whole.code == 0, whole.text
    assert whole.promises == ("exact-samples",), whole.text
    [expected] = set(whole.weights().values())

    for inject in kills:
        outcome = run(SCRIPTS / script, tmp_path, inject=inject)

        assert outcome.code == 0, outcome.text
        assert not outcome.notices
        assert outcome.weights(), outcome.text
        for rank, total in outcome.weights().items():
            assert total == pytest.approx(expected, abs=2e-8), f"rank {rank} after {inject}"


@pytest.mark.parametrize("how", [(), ("alone",)], ids=["in DDP", "beside it"])
def test_two_models_that_train_each_other_end_as_under_torchrun(
    how: tuple[str, ...], tmp_path: Path
) -> None:
    """Running means are among what is compared."""
    script = SCRIPTS / "adversarial.py"
    plain = under_torchrun(script, tmp_path, *how, ranks=2)

    for kill in ("r0@step:6:reduce", "r1@step:9:vote"):
        killed = run(script, tmp_path, *how, ranks=2, inject=kill)

        assert (plain.code, killed.code) == (0, 0), killed.text
        assert killed.promises == ("exact-samples",), killed.text
        [(rank, total)] = killed.weights().items()
        assert total == pytest.approx(plain.weights()[rank], abs=1e-10)


def test_what_is_executed_again_is_not_counted_again(tmp_path: Path) -> None:
    script = SCRIPTS / "bookkeeping.py"
    plain = under_torchrun(script, tmp_path)
    whole = run(script, tmp_path)
    killed = run(script, tmp_path, inject="r1@step:3:forward,r0@step:6:vote")

    assert (plain.code, whole.code, killed.code) == (0, 0, 0), killed.text
    assert whole.promises == ("exact-samples",) and not killed.notices
    assert whole.books() == plain.books()
    assert killed.books() == {2: plain.books()[2]}
    for outcome in (whole, killed):
        assert set(outcome.weights().values()) == {plain.weights()[2]}
    assert whole.text.count("a batch") == plain.text.count("a batch") == 27


def test_what_a_module_remembers_of_its_rank_is_known_of_a_lost_one(tmp_path: Path) -> None:
    script = SCRIPTS / "bookkeeping.py"
    plain = under_torchrun(script, tmp_path, STATEFUL="1")
    killed = run(script, tmp_path, inject="r1@step:3:forward", STATEFUL="1")

    assert (plain.code, killed.code) == (0, 0), killed.text
    assert killed.promises == ("exact-samples",) and not killed.notices, killed.text
    assert killed.books() == {rank: plain.books()[rank] for rank in (0, 2)}
    assert killed.weights() == {rank: plain.weights()[rank] for rank in (0, 2)}


@pytest.mark.parametrize(
    ("inject", "dies", "left"),
    [
        seldom("r2@step:3:forward", "", {0, 1}),  # a loss before, of another replica than rank 0's
        ("r1@step:3:forward", "", {2, 3}),
        ("", "finish0", {2, 3}),
    ],
)
def test_a_sharded_checkpoint_is_whole_whoever_is_lost(
    inject: str, dies: str, left: set[int], tmp_path: Path
) -> None:
    script = SCRIPTS / "checkpoints.py"

    outcome = run(script, tmp_path, ranks=4, inject=inject, CHECKPOINT_DIES=dies)

    assert outcome.code == 0, outcome.text
    assert outcome.books() == dict.fromkeys(left, "same"), outcome.text
    if dies:
        assert any("begun again" in notice for notice in outcome.notices), outcome.text


@pytest.mark.quick
def test_what_rank_0_does_alone_is_done_by_its_deputy(tmp_path: Path) -> None:
    script = SCRIPTS / "saving.py"
    whole = run(script, tmp_path / "whole")

    outcome = run(script, tmp_path / "killed", inject="r0@step:3:reduce")

    assert outcome.code == whole.code == 0, outcome.text
    assert whole.books() == dict.fromkeys(range(3), "True 11"), whole.text
    assert outcome.books() == dict.fromkeys((1, 2), "True 11"), outcome.text
    assert all(abs(one - whole.weights()[0]) < 1e-9 for one in outcome.weights().values())
    said = [notice for notice in outcome.notices if "rank 0" in notice]
    expected = [
        r"in the place of rank 0, log was made anew: what it held there is lost",
        r"does rank 0's work from here on \(checkpoints, logging\)",
    ]
    assert all(re.search(*pair) for pair in zip(expected, said, strict=True)), said


@pytest.mark.parametrize("way", [seldom("pipeline"), "scaler", seldom("in-backward")])
def test_what_torch_does_to_gradients_by_itself_is_done_to_the_reduced_ones(
    way: str, tmp_path: Path
) -> None:
    script = SCRIPTS / "scaled.py"
    theirs = under_torchrun(script, tmp_path / "theirs", way, ranks=4)

    ours = run(script, tmp_path / "ours", way, ranks=4)

    assert theirs.code == ours.code == 0, ours.text
    assert len(ours.weights()) == 4
    for rank, total in theirs.weights().items():
        assert abs(ours.weights()[rank] - total) < 1e-11, ours.text


@pytest.mark.parametrize(
    ("kind", "way"),
    [("ddp", "norms"), seldom("ddp", "between"), seldom("hsdp", "loosely")],
)
def test_gradients_that_a_script_limits_by_itself_are_the_reduced_ones(
    kind: str, way: str, tmp_path: Path
) -> None:
    """From the first step on, as under torchrun."""
    script, ranks = ROOT / "tests/compat/scripts/hand_clipped.py", 3 if kind == "ddp" else 4
    theirs = under_torchrun(script, tmp_path / "theirs", kind, way, ranks=ranks)

    ours = run(script, tmp_path / "ours", kind, way, ranks=ranks)

    assert theirs.code == ours.code == 0, ours.text
    assert len(ours.weights()) == ranks
    for rank, total in theirs.weights().items():
        assert abs(ours.weights()[rank] - total) < 1e-11, ours.text


def test_a_rank_that_reads_gradients_alone_keeps_nobody_waiting(tmp_path: Path) -> None:
    """Others do something else meanwhile, which waits for that rank."""
    ours = run(SCRIPTS / "read_alone.py", tmp_path)

    assert ours.code == 0, ours.text
    assert ours.promises == ("exact-samples",), ours.text
