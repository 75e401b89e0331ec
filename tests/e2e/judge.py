"""The checks of every run of the kill matrix, whoever was killed in it and when.

Each check keeps its own account: the ledger is counted from the raw lines of the journal, the
canary tells what was really summed, and the weights are compared with a run without losses.
"""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from recoverrun.reports.postmortem import Postmortem, postmortem
from rendezvous.journal.reader import read_run
from tests.e2e.jobs import Job
from tests.e2e.runs import Record, Run, recoverrun

CANARY = 1e-12
SIGKILL = 9

UNKNOWN = 0.01
"""Part of the time of a run that no record may explain."""


def judge(run: Run, dead: frozenset[int], reference: dict[int, Any], bound: float) -> None:
    """`run` went on without the replicas of the `dead`, and nobody can tell by its results, unless
    two ranks were killed in the same microbatch: then it had fresh data, and that was told.

    `reference` holds the final weights of the failure-free run, by rank.
    """
    ended_well(run)
    nothing_left(run)
    deaths(run, dead)
    ledger(run)
    if not any("died in it" in record["reason"] for record in run.records("notice.give")):
        canary(run, dead)
        weights(run, dead, reference, bound)
    proof(run)
    blame(run, dead)


def ended_well(run: Run) -> None:
    code = run.finish()
    assert code == 0, f"exit code {code}{run.story()}"


def nothing_left(run: Run) -> None:
    """The launcher has ended, and nobody whom it started is still there."""
    left = run.processes()
    assert not left, f"left behind: {left}{run.story()}"


def deaths(run: Run, dead: frozenset[int]) -> None:
    """The killed ranks died of it, others only by our hand and only in their replicas."""
    exits = {r["rank"]: r for r in run.records("worker.exit")}
    assert sorted(exits) == list(range(run.job.ranks)), f"exits of {sorted(exits)}{run.story()}"
    struck = {rank for rank, r in exits.items() if r["signal"] == SIGKILL and not r["ours"]}
    mates = {mate for rank in dead for mate in run.job.replica_of(rank)}
    assert struck <= dead, f"{struck - dead} were killed too{run.story()}"
    for rank in sorted(dead - struck):  # the launcher was faster: a mate of its died as well
        spared = exits[rank]["ours"] and struck & set(run.job.replica_of(rank))
        assert spared, f"rank {rank} was to be killed, and was not{run.story()}"
    for rank, record in exits.items():
        fine = record["code"] == 0 if rank not in mates else record["signal"] == SIGKILL
        assert fine, f"rank {rank} ended with {record['code']}{run.story()}"
    assert run.finishers() == run.job.survivors(dead)


def ledger(run: Run) -> None:
    """INV-1, INV-9: every transaction once, in order, with each of its B identities once."""
    commits = run.records("step.commit")
    steps = [record["step"] for record in commits]
    assert steps == list(range(run.job.transactions)), f"committed {steps}{run.story()}"
    home = Counter(run.job.identities)
    for record in commits:
        found = Counter(_identities(record))
        assert found == home, f"step {record['step']} has {found}{run.story()}"
        assert record["total"] == record["microbatches"] == home.total(), f"{record}"


def _identities(record: Record) -> list[tuple[int, int]]:
    if "done" in record:
        return [tuple(identity) for done in record["done"].values() for identity in done]
    return [(int(slot), index) for slot, n in record["quota"].items() for index in range(n)]


def canary(run: Run, dead: frozenset[int]) -> None:
    """INV-1, INV-8: what was summed had every microbatch once, and the divisor of all slots."""
    expected = 1 / (run.job.replicas * run.job.accumulation)
    for rank in run.job.survivors(dead):
        seen = run.canary(rank)
        assert len(seen) == run.job.steps, f"rank {rank} made {len(seen)} steps{run.story()}"
        for step, values in enumerate(seen):
            assert len(values) == run.job.canaries
            worst = max(abs(value - expected) for value in values)
            assert worst <= CANARY, f"rank {rank}, step {step}: {values}{run.story()}"


def weights(run: Run, dead: frozenset[int], reference: dict[int, Any], bound: float) -> None:
    """INV-3: survivors agree bit for bit, and with the failure-free run to rounding."""
    first: dict[int, Any] = {}
    worst = 0.0
    for rank in run.job.survivors(dead):
        found = run.weights(rank)
        clone = first.setdefault(rank % run.job.shards, found)
        assert found.keys() == reference[rank].keys()
        for name, tensor in found.items():
            same = torch.equal(tensor.view(torch.int64), clone[name].view(torch.int64))
            assert same, f"{name} of rank {rank} differs between survivors{run.story()}"
            difference = (tensor - reference[rank][name]).abs().nan_to_num(torch.inf)
            worst = max(worst, float(difference.max()))
    print(f"{run.job.name}: max |Δw| {worst:.1e}, allowed {bound:.1e}")
    assert worst <= bound, f"max |Δw| {worst} > {bound}{run.story()}"


def proof(run: Run) -> None:
    """`postmortem --verify` proves all steps."""
    done = recoverrun("postmortem", str(run.journal), "--verify", "--json")
    assert done.returncode == 0, f"{done.stdout}{done.stderr}{run.story()}"
    found = json.loads(done.stdout)["invariant"]
    assert found["verdict"] == "proved"
    assert found["steps"] == found["exact"] == run.job.transactions
    assert found["microbatches"] == len(run.job.identities)


def blame(run: Run, dead: frozenset[int]) -> None:
    """`postmortem --json` names the killed ranks, nobody else, and tells where the time went; also
    where the journal is cut.
    """
    done = recoverrun("postmortem", str(run.journal), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    roots = [loss["root_cause"]["rank"] for loss in found["losses"]]
    _names(roots, dead, run)
    assert all(loss["survived"] for loss in found["losses"]), f"{found['losses']}{run.story()}"
    assert found["causes"] == ({"sigkill": len(roots)} if dead else {})
    if dead:
        exits = run.records("worker.exit")
        killed = [r for r in exits if r["signal"] and not r["ours"]]
        first = min(killed, key=lambda r: float(r["mono"]) - r["age_ms"] / 1000)  # as it died
        assert found["root_cause"]["rank"] == first["rank"], f"{found['root_cause']}{run.story()}"
        assert found["root_cause"]["confidence"] == "proved"
    else:
        assert found["root_cause"] is None
    spent = {name: one["s"] for name, one in found["goodput"]["buckets"].items()}
    assert abs(sum(spent.values()) - found["wall_s"]) < 1e-3, f"{found['goodput']}"
    assert spent["unknown"] <= UNKNOWN * found["wall_s"], f"{found['goodput']}{run.story()}"
    for cut in cuts(run):
        assert sum(cut.goodput.buckets.values()) == cut.goodput.wall_us
        _names([loss.cause.root.rank for loss in cut.losses], dead, run)
        # The first fault, or that which the cut journal does not show to be made good.
        assert cut.root is None if not dead else cut.root and cut.root.rank in dead, f"{cut.root}"


def _names(roots: list[int], dead: frozenset[int], run: Run) -> None:
    """One root for each lost replica, and it is one of those who were killed."""
    lost = {run.job.replica_of(rank) for rank in dead}
    assert set(roots) <= dead, f"blames {roots}, killed were {sorted(dead)}{run.story()}"
    named = sorted(run.job.replica_of(rank) for rank in roots)
    assert named == sorted(lost), f"blames {roots}, killed were {sorted(dead)}{run.story()}"


def cuts(run: Run) -> list[Postmortem]:
    """The journal as it would be if it ended in the middle of its last line, or soon after the
    loss.
    """
    (path,) = run.journal.glob("events.*.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    lost = [n for n, line in enumerate(lines) if b'"ev":"replica.lost"' in line]
    ends = {len(lines) - 1, *([lost[-1] + 1] if lost else [])}
    return [_told(run.folder / f"cut{end}", path.name, lines, end) for end in sorted(ends)]


def _told(folder: Path, name: str, lines: list[bytes], end: int) -> Postmortem:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    half = lines[end][: len(lines[end]) // 2]
    (folder / name).write_bytes(b"".join(lines[:end]) + half)
    found = postmortem(read_run(folder))
    assert found.unreadable, "cut in the middle of a line"
    return found


def reference_of(run: Run, job: Job) -> dict[int, Any]:
    """The weights of a run without losses, which is judged as any other."""
    ended_well(run)
    nothing_left(run)
    deaths(run, frozenset())
    ledger(run)
    canary(run, frozenset())
    proof(run)
    blame(run, frozenset())
    return {rank: run.weights(rank) for rank in range(job.ranks)}
