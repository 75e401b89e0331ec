"""Scripts that once went wrong without a word: now exact, or it is said.

Without a loss each ends with the weights that torch alone gives it, and prints the same figures.
With a loss it ends with these weights, too, or the promise is taken back.
"""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from recoverrun.fault_injection.trial import Trial
from recoverrun.fault_injection.verdict import faults
from rendezvous.coordinator.guarantees import WITHOUT_SURVIVORS
from rendezvous.protocol.fault_schedule import parse
from tests.hunt.plain import Plain
from tests.truth.case import Case
from tests.truth.cases import CASES
from tests.truth.runs import Left, apart, ours, story, under_torch

pytestmark = [pytest.mark.e2e, pytest.mark.rest]

Reference = Callable[[Case], Left]
STEERS = "what the script computes from it may differ"
"""Of a figure over the survivors alone, which the script goes on with."""


QUICK = frozenset({"A3-file", "B4", "C4-rate-range", "T2-named"})
"""One of each letter: `make test` does its first loss."""


def _marks(sample: bool, quick: bool = False) -> list[pytest.MarkDecorator]:
    """`make test` does a few, `make test-all` a sample, `make matrix` the others."""
    if quick:
        return [pytest.mark.quick]
    return [] if sample else [pytest.mark.matrix]


FIRST = {case.script: case for case in reversed(CASES)}
"""Of each script: without a loss its ways are much the same."""

ALL = [pytest.param(case, marks=_marks(FIRST[case.script] is case), id=case.name) for case in CASES]
KILLED = [
    pytest.param(
        case,
        inject,
        marks=_marks(case.sample and not number, case.name in QUICK and not number),
        id=f"{case.name}-{inject}",
    )
    for case in CASES
    for number, inject in enumerate(case.kills)
]


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reference]:
    """The result of torch alone for a case, run once for all tests."""

    @cache
    def known(case: Case) -> Left:
        if case.needs:
            pytest.importorskip(case.needs, reason="`make compat` installs it")
        left = under_torch(case, tmp_path_factory.mktemp(case.name), plain)
        assert left.code == 0, left.output
        assert sorted(left.weights) == list(range(case.ranks))
        return left

    with Plain() as plain:
        yield known


@pytest.mark.quick
def test_the_few_are_rows_that_are() -> None:
    assert {case.name for case in CASES if case.kills} >= QUICK


@pytest.mark.parametrize("case", ALL)
def test_without_a_loss_it_is_the_run_of_torch_alone(
    case: Case, reference: Reference, tmp_path: Path
) -> None:
    expected = reference(case)

    left, trial = ours(case, tmp_path)

    assert left.code == 0, story(left, trial)
    assert left.figures == expected.figures, story(left, trial)
    for rank, weights in expected.weights.items():
        distance = apart(left.weights[rank], weights)
        assert distance <= (0.0 if case.bitwise else case.apart), story(left, trial)


@pytest.mark.parametrize(("case", "inject"), KILLED)
def test_a_loss_changes_nothing_or_it_is_said(
    case: Case, inject: str, reference: Reference, tmp_path: Path
) -> None:
    expected = reference(case)

    left, trial = ours(case, tmp_path, inject)

    problems = judged(case, inject, left, trial, expected)
    assert not problems, "\n".join([*problems, story(left, trial)])


def judged(case: Case, inject: str, left: Left, trial: Trial, expected: Left) -> list[str]:
    """The broken parts of the contract."""
    facts = trial.history
    if facts.promise in WITHOUT_SURVIVORS and not facts.recoveries:  # as under torchrun
        missing = [] if facts.promise_reason else [f"{facts.promise}, and nobody says why"]
        return missing + (["it must be protected"] if case.contract == "exact" else [])
    problems = [] if left.code == 0 else [f"exit code {left.code}"]
    problems += [f"never struck: {kill}" for kill in faults(parse(inject), facts).missed]
    if trial.proof.verdict != "proved":
        proof = trial.proof
        problems.append(f"the ledger is {proof.verdict}: {proof.violations} {proof.unproved}")
    problems += _ended(case, inject, left)
    steered = any(STEERS in notice for notice in trial.notices)
    exact = facts.promise == "exact-samples" and not facts.weakened
    stands = exact and (not steered or case.contract == "steered")
    distance = max(
        (apart(weights, expected.weights[rank]) for rank, weights in left.weights.items()),
        default=float("inf"),
    )
    if stands and not distance <= case.apart:
        problems.append(f"exact-samples stands, and the weights are {distance:.1e} off")
    if stands and case.contract == "told":
        problems.append("the promise still stands")
    if case.contract == "steered" and not steered:
        problems.append("nobody said what steers")
    if not stands and case.contract in ("exact", "steered"):
        problems.append(f"the promise was taken back: {facts.weakened or facts.promise_reason}")
    if case.told and not any(case.told in said for said in (*trial.notices, facts.promise_reason)):
        problems.append(f"nobody said {case.told!r}")
    return problems


def _ended(case: Case, inject: str, left: Left) -> list[str]:
    """Survivors come to their end, all with the same weights."""
    lost = {
        kill.rank // case.shards * case.shards + mate
        for kill in parse(inject)
        for mate in range(case.shards)
    }
    survivors = [rank for rank in range(case.ranks) if rank not in lost]
    problems = [f"no weights of rank {rank}" for rank in survivors if rank not in left.weights]
    found = [left.weights[rank] for rank in survivors if rank in left.weights]
    if any(apart(found[0], other) for other in found[1:]):
        problems.append("survivors have different weights")
    return problems
