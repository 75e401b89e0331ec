"""The judge is judged: runs whose verdict is known."""

from pathlib import Path

import pytest

from tests.hunt.books import Books, read
from tests.hunt.plan import planned
from tests.hunt.script import written
from tests.hunt.verdict import Ended, with_loss, without_loss

EXACT = Ended(code=0, promise="exact-samples", struck=True)


def books(folder: Path, *changed: tuple[str, str], dead: int | None = None) -> Books:
    """Two ranks, two steps; rank `dead` dies in the last one and rank 0 does its work."""
    folder.mkdir(exist_ok=True)
    for rank in (0, 1):
        pid = 10 + rank
        lines = [f"began {pid} {rank} 5"]
        for step in (0, 1):
            lines.append(f"batch {pid} {rank} {step} 0 {step},{rank} 7{step}{rank}")
            lines.append(f"step {pid} {rank} {step} {(0.5 + step).hex()}")
        lines.append(f"weights {pid} {rank} {(1.0).hex()} {(2.0).hex()}")
        if dead is not None:
            lines = lines[:-3] if rank == dead else [*lines, "batch 10 1 1 0 1,1 711"]
        text = "\n".join(lines)
        for old, new in changed:
            text = text.replace(old, new)
        (folder / f"lines.{pid}").write_text(text)
    return read(folder, ["step 0 loss 0.5"])


def test_a_run_that_is_the_same_is_whole(tmp_path: Path) -> None:
    reference = books(tmp_path / "plain")

    assert without_loss(reference, books(tmp_path / "a"), EXACT, 2).kind == "whole"
    assert with_loss(reference, books(tmp_path / "b", dead=1), EXACT, 2).kind == "whole"


def test_a_survivor_may_execute_its_own_once_more(tmp_path: Path) -> None:
    more = ("step 10 0 1", "batch 10 0 1 0 1,0 710\nstep 10 0 1")

    verdict = with_loss(books(tmp_path / "a"), books(tmp_path / "b", more, dead=1), EXACT, 2)

    assert verdict.kind == "whole"


def test_what_a_survivor_writes_of_a_step_as_the_lost_rank_is_not_its_own(tmp_path: Path) -> None:
    """The file of a lost rank may be read before the survivor's."""
    more = ("began 10 0 5", f"began 10 0 5\nstep 10 1 1 {(9.0).hex()}")

    verdict = with_loss(books(tmp_path / "a"), books(tmp_path / "b", more, dead=1), EXACT, 2)

    assert verdict.kind == "whole"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("1,1 711", "1,2 711", "microbatch (1, 1, 0)"),
        ("1,1 711", "1,1 712", "microbatch (1, 1, 0)"),
        ("0x1.0000000000000p+0 0x1", "0x1.0000001000000p+0 0x1", "weights"),
        ("10 0 1 0 1,0", "10 0 1 0 5,0", "of its own"),
        ("weights", "nothing", "no survivor"),
    ],
)
def test_a_silent_difference_after_a_loss_is_found(
    old: str, new: str, words: str, tmp_path: Path
) -> None:
    lossy = books(tmp_path / "lossy", (old, new), dead=1)

    verdict = with_loss(books(tmp_path / "plain"), lossy, EXACT, 2)

    assert verdict.kind == "finding" and words in verdict.reason


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("11 1 1 0 1,1", "11 1 1 0 2,1", "other samples"),
        ("batch 11 1 1", "batch 12 1 1", "other samples"),
        ("began 11 1 5", "began 11 1 5\nbatch 99 0 1 0 1,0 7", "no rank"),
        ("began 11 1 5", "began 11 1 5\nbatch 11 0 1 0 1,0 7", "by another"),
        ("step 10 0 1", "batch 10 0 1 0 1,0 710\nstep 10 0 1", "once more"),
        ("10 0 1 0x1.8000000000000p+0", "10 0 1 0x1.8000000000001p+0", "loss in step 1"),
        ("0x1.0000000000000p+1", "0x1.0000000000001p+1", "weights"),
    ],
)
def test_any_bit_is_found_without_a_loss(old: str, new: str, words: str, tmp_path: Path) -> None:
    found = books(tmp_path / "whole", (old, new))

    verdict = without_loss(books(tmp_path / "plain"), found, EXACT, 2)

    assert verdict.kind == "finding" and any(words in one for one in verdict.details)


def test_what_was_said_is_told_and_what_hangs_or_crashes_is_found(tmp_path: Path) -> None:
    reference, lossy = books(tmp_path / "plain"), books(tmp_path / "b", ("711", "712"), dead=1)
    kinds = [
        with_loss(reference, lossy, ended, 2).kind
        for ended in (
            Ended(code=0, promise="equal-count", struck=True),
            Ended(code=0, promise="exact-samples", weakened="said", struck=True),
            Ended(code=0, promise="exact-samples", steered="said", struck=True),
            Ended(code=1, promise="unprotected", struck=True),
            Ended(code=1, promise="unprotected", struck=True, tail=("Traceback (most",)),
            Ended(code=1, promise="rollback", struck=True, tail=("Traceback (most",)),
            Ended(code=1, promise="equal-count", struck=True, tail=("Traceback (most",)),
            Ended(code=-1, struck=True, hung=True),
        )
    ]

    assert kinds == ["told"] * 6 + ["finding"] * 2


def back(folder: Path, *changed: tuple[str, str]) -> Books:
    """Two ranks, three steps; rank 1 is lost in step 1, and its new process begins with step 2."""
    folder.mkdir(exist_ok=True)
    lines = ["began 10 0 5", "began 11 1 5", "began 12 1 9", "batch 10 1 1 0 1,1 711"]
    for step in (0, 1, 2):
        there = (10, 0), ({0: 11, 1: None, 2: 12}[step], 1)
        for pid, rank in ((pid, rank) for pid, rank in there if pid is not None):
            lines.append(f"batch {pid} {rank} {step} 0 {step},{rank} 7{step}{rank}")
            lines.append(f"step {pid} {rank} {step} {(0.5 + step).hex()}")
    lines += ["weights 10 0 0x1.0p+0", "weights 12 1 0x1.0p+0"]
    text = "\n".join(lines)
    for old, new in changed:
        text = text.replace(old, new)
    (folder / "lines.10").write_text(text)
    return read(folder, ["step 0 loss 0.5"])


def whole(folder: Path) -> Books:
    """The run of `back` without a loss."""
    return back(folder, ("batch 10 1", "batch 11 1"), ("began 12 1 9\n", ""), (" 12 1 ", " 11 1 "))


def test_a_rank_that_came_back_is_one_of_all(tmp_path: Path) -> None:
    verdict = with_loss(whole(tmp_path / "a"), back(tmp_path / "b"), EXACT, 2, returns=True)

    assert verdict.kind == "whole" and not verdict.reason


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("weights 12 1 0x1.0p+0", "weights 12 1 0x1.1p+0", "rank 1's weights"),
        ("weights 12 1 0x1.0p+0", "", "[1] stay away"),
        ("12 1 2 0 2,1 721", "12 1 2 0 2,1 722", "of its own"),
        ("12 1 2 0 2,1 721", "12 1 2 0 2,5 721", "of its own"),
        ("batch 10 1 1 0 1,1 711\n", "", "microbatch (1, 1, 0) is nothing"),
    ],
)
def test_a_silent_difference_after_a_return_is_found(
    old: str, new: str, words: str, tmp_path: Path
) -> None:
    found = back(tmp_path / "lossy", (old, new))

    verdict = with_loss(whole(tmp_path / "plain"), found, EXACT, 2, returns=True)

    assert verdict.kind == "finding" and words in " ".join(verdict.details)


def test_a_rank_that_stays_away_is_told(tmp_path: Path) -> None:
    found = back(tmp_path / "lossy", ("weights 12 1 0x1.0p+0", ""))
    ended = Ended(code=0, promise="exact-samples", struck=True, refused="said")

    verdict = with_loss(whole(tmp_path / "plain"), found, ended, 2, returns=True)

    assert verdict.kind == "whole" and verdict.reason == "said"


def test_a_seed_is_always_the_same_script() -> None:
    assert written(planned(7)) == written(planned(7))
    assert len({written(planned(seed)) for seed in range(50)}) == 50


def test_all_scripts_are_python() -> None:
    for seed in range(500):
        for returns in (False, True):
            compile(written(planned(seed, returns=returns)), f"<seed {seed}>", "exec")
