"""Losses as a replica comes back: ledgers stay whole, and all weights bit for bit the same.

`make matrix` does all cells, `make test-all` the first of each kind.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.e2e.judge import ended_well, nothing_left
from tests.e2e.launching import free_port
from tests.e2e.return_losses import NODES, Cell, OnTwoNodes, all_cells
from tests.e2e.returns import STEPS, WITHIN_S, Returning, Weights, undisturbed
from tests.e2e.runs import Record, Run, recoverrun, running

pytestmark = [pytest.mark.e2e, pytest.mark.rest, pytest.mark.timeout(700)]
matrix = pytest.mark.matrix

OPTIONS = ("--exact", "--return")
WITHIN = 2 * WITHIN_S  # a third process of a rank is started 20 s after it was lost
AFTERWARDS = 3  # steps that all replicas make together before the pace is let go

Expected = Callable[[Returning], Weights]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Expected:
    """The weights of a job where nobody is lost; each is trained once."""
    known: dict[tuple[int, int], Weights] = {}

    def weights(job: Returning) -> Weights:
        shape = (job.ranks, job.shards)
        if shape not in known:
            known[shape] = undisturbed(job, tmp_path_factory.mktemp("plain") / job.name)
        return known[shape]

    return weights


def firsts(cells: list[Cell]) -> set[str]:
    """One of each kind: its first."""
    return {one.id for one in {cell.kind: cell for cell in reversed(cells)}.values()}


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(one, id=one.id, marks=() if one.id in firsts(all_cells()) else matrix)
        for one in all_cells()
    ],
)
def test_whoever_dies_in_a_return_all_train_again(
    cell: Cell, tmp_path: Path, expected: Expected
) -> None:
    job = cell.job
    wanted = expected(job)

    with running(job, tmp_path / "run", inject=job.kills, options=OPTIONS, bound_s=WITHIN) as run:
        await_whole(run, struck=len(cell.kills), replicas=job.ranks // max(1, job.shards))
        (run.out / "go").touch()
        ended_well(run)
        nothing_left(run)
        same({rank: run.weights(rank) for rank in range(job.ranks)}, wanted, run)
        proved(run, run.journal)


@pytest.mark.parametrize(
    "case", [pytest.param(one, id=one.id, marks=matrix if n else ()) for n, one in enumerate(NODES)]
)
def test_the_node_that_coordinates_may_be_lost_in_a_return(
    case: OnTwoNodes, tmp_path: Path, expected: Expected
) -> None:
    """The other one goes on by itself, and the replica that was coming back comes."""
    wanted = expected(Returning(shape="range", ranks=4))
    where = ("--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{free_port()}", *OPTIONS)
    kills = ",".join(one for one in ("r3@step:6:backward", case.kill) if one)
    first, second = ((*where, f"--node-rank={rank}") for rank in (0, 1))
    with (
        running(case, tmp_path / "0", inject=kills, options=first, bound_s=WITHIN) as lost,
        running(case, tmp_path / "1", inject=kills, options=second, bound_s=WITHIN) as run,
    ):
        if case.record:
            run.await_record(case.record, lambda one: again(one, case.record))
            lost.end()
        gone = await_lost(run, rank=0)
        run.await_record("step.commit", lambda one: one["seq"] > gone + AFTERWARDS)
        await_whole(run, struck=1, replicas=2)
        (run.out / "go").touch()
        ended_well(run)
        nothing_left(run)
        same({rank: run.weights(rank) for rank in (2, 3)}, wanted, run)
        proved(run, lost.journal, run.journal)


def again(record: Record, event: str) -> bool:
    """True if a record is about the process that was started in rank 3's place."""
    return event != "worker.spawn" or (record["rank"] == 3 and record["incarnation"] != 0)


def await_lost(run: Run, rank: int) -> int:
    """Wait until a replica is lost; the number of that record."""
    found = run.await_record("replica.lost", lambda one: rank in one["ranks"])
    return int(found["seq"])


def await_whole(run: Run, *, struck: int, replicas: int) -> None:
    """Wait until so many were killed, somebody came back, and so many replicas have made some
    steps together.
    """

    def trains(commit: Record) -> bool:
        views = run.records("view.change")
        came = [one["step"] for one in views if "joined" in one]
        if not came or len(views[-1]["live"]) != replicas:
            return False
        ends = run.records("worker.exit")
        killed = [one for one in ends if one["signal"] == 9 and not one["ours"]]
        return len(killed) >= struck and commit["step"] >= came[-1] + AFTERWARDS

    run.await_record("step.commit", trains)


def same(found: Weights, wanted: Weights, run: Run) -> None:
    for rank, theirs in found.items():
        assert theirs.keys() == wanted[rank].keys()
        for name, tensor in theirs.items():
            equal = torch.equal(tensor, wanted[rank][name])
            assert equal, f"rank {rank}: {name} is not that of a run without a loss{run.story()}"


def proved(run: Run, *journals: Path) -> None:
    """`postmortem --verify` proves each step's microbatches."""
    done = recoverrun("postmortem", *map(str, journals), "--verify", "--json")
    assert done.returncode == 0, f"{done.stdout}{done.stderr}{run.story()}"
    proof = json.loads(done.stdout)["invariant"]
    assert proof["verdict"] == "proved" and proof["steps"] == proof["exact"] == STEPS, proof
